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
    yield
    backend._decided.cache_clear()


def test_without_a_device_the_default_is_cpu_and_says_why():
    chosen = backend.current()
    assert chosen.name == "cpu"
    assert "torch_neuronx is absent" in chosen.reason


def test_a_device_without_kernels_is_not_used_and_that_is_said(monkeypatch):
    monkeypatch.setattr(backend, "neuron_device", lambda: (True, "counts 2 devices"))
    chosen = backend.current()
    assert chosen.name == "cpu"
    assert "counts 2 devices; this version has no kernels" in chosen.reason


def test_a_device_is_the_default_once_neuron_serves(monkeypatch):
    monkeypatch.setattr(backend, "neuron_device", lambda: (True, "counts 2 devices"))
    monkeypatch.setattr(backend, "SERVING", backend.NAMES)
    assert backend.current() == backend.Backend("neuron", "counts 2 devices")


@pytest.mark.parametrize("value", ["cpu", "CPU", " cpu "])
def test_the_environment_is_obeyed(monkeypatch, value):
    monkeypatch.setenv(backend.VARIABLE, value)
    assert backend.current().name == "cpu"
    assert backend.VARIABLE in backend.current().reason


def test_an_empty_variable_counts_as_unset(monkeypatch):
    monkeypatch.setenv(backend.VARIABLE, "")
    assert "no Neuron device" in backend.current().reason


@pytest.mark.parametrize("name", ["sim", "neuron"])
def test_a_backend_without_kernels_is_refused(monkeypatch, name):
    monkeypatch.setenv(backend.VARIABLE, name)
    with pytest.raises(BackendError, match=f"{name}.*no kernels yet, cpu is the only backend"):
        backend.current()
    with pytest.raises(BackendError, match="no kernels yet"), backend.use(name):
        pytest.fail("the block must not run")


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
    monkeypatch.setattr(backend, "SERVING", backend.NAMES)
    with backend.use("sim") as outer:
        assert backend.current() is outer
        with pytest.raises(RuntimeError, match="inside"), backend.use("neuron"):
            assert backend.current().name == "neuron"
            raise RuntimeError("inside")
        assert backend.current() is outer
    assert backend.current().name == "cpu"


def test_use_is_seen_by_its_own_thread_only(monkeypatch):
    monkeypatch.setattr(backend, "SERVING", backend.NAMES)
    seen = []
    with backend.use("sim"):
        thread = threading.Thread(target=lambda: seen.append(backend.current().name))
        thread.start()
        thread.join()
    assert seen == ["cpu"]
