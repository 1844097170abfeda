"""The backend is decided once, explains itself, and never falls back silently."""

from __future__ import annotations

import logging
import threading

import pytest

from dslearn import backend
from dslearn.errors import BackendError, UsageError


@pytest.fixture(autouse=True)
def undecided(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.delenv(backend.VARIABLE, raising=False)
    backend._decided.cache_clear()
    monkeypatch.setattr(backend, "captured_for", "cpu")
    yield
    backend._decided.cache_clear()


def test_without_a_device_the_default_is_cpu_and_says_why():
    chosen = backend.current()
    assert chosen.name == "cpu"
    assert "torch_neuronx is absent" in chosen.reason


def test_a_device_is_not_the_default_while_the_model_does_not_run_there(monkeypatch):
    monkeypatch.setattr(backend, "neuron_device", lambda: (True, "counts 2 devices"))
    chosen = backend.current()
    assert chosen.name == "cpu"
    assert "counts 2 devices, but the model does not run there yet" in chosen.reason


@pytest.mark.parametrize("value", ["cpu", "CPU", " cpu ", "sim", "Sim"])
def test_the_environment_is_obeyed(monkeypatch, value):
    monkeypatch.setenv(backend.VARIABLE, value)
    assert backend.current().name == value.strip().lower()
    assert backend.VARIABLE in backend.current().reason


def test_an_empty_variable_counts_as_unset(monkeypatch):
    monkeypatch.setenv(backend.VARIABLE, "")
    assert "no Neuron device" in backend.current().reason


def test_neuron_without_a_device_is_refused_and_says_why(monkeypatch):
    monkeypatch.setenv(backend.VARIABLE, "neuron")
    words = "'neuron': no Neuron device: torch_neuronx is absent; set DSLEARN_BACKEND to cpu or sim"
    with pytest.raises(BackendError, match=words):
        backend.current()
    with pytest.raises(BackendError, match=words), backend.use("neuron"):
        pytest.fail("the block must not run")


def test_neuron_with_a_device_is_there_for_the_asking(monkeypatch):
    monkeypatch.setattr(backend, "neuron_device", lambda: (True, "counts 2 devices"))
    monkeypatch.setenv(backend.VARIABLE, "neuron")
    reason = "DSLEARN_BACKEND=neuron asks for it; counts 2 devices"
    assert backend.current() == backend.Backend("neuron", reason)
    with backend.use("cpu"):
        assert backend.current().name == "cpu"


def test_an_unknown_name_is_refused_with_the_allowed_ones():
    with pytest.raises(UsageError, match="'gpu': must be one of cpu, sim, neuron"):
        backend.select("gpu", "a test")


def test_the_choice_is_made_once_and_logged_once(monkeypatch, caplog):
    with caplog.at_level(logging.INFO, logger="dslearn.backend"):
        first = backend.current()
        monkeypatch.setenv(backend.VARIABLE, "sim")
        assert backend.current() is first
    assert [record.getMessage() for record in caplog.records] == [f"backend cpu: {first.reason}"]


def test_use_lasts_for_its_block_nests_and_survives_an_error(monkeypatch):
    monkeypatch.setattr(backend, "neuron_device", lambda: (True, "counts 2 devices"))
    with backend.use("sim") as outer:
        assert backend.current() is outer
        with pytest.raises(RuntimeError, match="inside"), backend.use("neuron"):
            assert backend.current().name == "neuron"
            raise RuntimeError("inside")
        assert backend.current() is outer
    assert backend.current().name == "cpu"


def test_use_is_seen_by_its_own_thread_only():
    seen = []
    with backend.use("sim"):
        thread = threading.Thread(target=lambda: seen.append(backend.current().name))
        thread.start()
        thread.join()
    assert seen == ["cpu"]


def test_graphs_are_captured_for_the_backend_in_force(monkeypatch):
    """What `torch.compile` can read follows `current()` through blocks, errors and the decision."""
    monkeypatch.setenv(backend.VARIABLE, "Sim")
    assert backend.current().name == backend.captured_for == "sim"
    with backend.use("cpu"):
        assert backend.captured_for == "cpu"
        with pytest.raises(KeyError), backend.use("sim"):
            assert backend.captured_for == "sim"
            raise KeyError
        assert backend.captured_for == "cpu"
    assert backend.captured_for == "sim"
