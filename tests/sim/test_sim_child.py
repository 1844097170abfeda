"""A call in a child process: `nki` is the stand-in there, results and errors come back whole."""

from __future__ import annotations

import os
import pickle

import pytest

from dslearn.errors import BackendError, UsageError
from dslearn.sim import child, rules
from tests.support.vendor import write

HERE = """
import os
from dslearn.errors import UsageError
from dslearn.sim.rules import RuleError


def who():
    import nki
    return os.getpid(), nki.__dslearn_stand_in__


def given(*arguments):
    return arguments


def wrong():
    raise UsageError("no such thing")


def refused():
    raise RuleError("too many", rule="partition-limit")


def ends():
    os._exit(3)


def fails():
    return 1 / 0
"""


@pytest.fixture(autouse=True)
def module(tmp_path, monkeypatch):
    write(tmp_path, {"called_apart.py": HERE})
    monkeypatch.syspath_prepend(tmp_path)


def test_it_is_another_process_with_the_stand_in():
    pid, marked = child.call("called_apart:who")
    assert pid != os.getpid() and marked is True


def test_arguments_and_results_are_values():
    assert child.call("called_apart:given", 1, "two", [3.0]) == (1, "two", [3.0])


def test_errors_of_dslearn_come_back_as_they_are():
    with pytest.raises(UsageError, match=r"^no such thing$"):
        child.call("called_apart:wrong")
    with pytest.raises(rules.RuleError, match=r"^too many \[rule partition-limit: ") as caught:
        child.call("called_apart:refused")
    assert caught.value.rule == "partition-limit"


@pytest.mark.parametrize(("name", "words"), [("ends", "ended with 3"), ("fails", "ended with 1")])
def test_any_other_end_is_an_error(name, words, capfd):
    with pytest.raises(BackendError, match=words):
        child.call(f"called_apart:{name}")
    assert ("ZeroDivisionError" in capfd.readouterr().err) == (name == "fails")


def test_another_target_than_trn2_is_refused(monkeypatch):
    monkeypatch.setenv("NEURON_PLATFORM_TARGET_OVERRIDE", "trn3")
    with pytest.raises(rules.NotSupportedError, match="trn2"):
        child.call("called_apart:who")


@pytest.mark.parametrize(
    "kind",
    [rules.RuleError, rules.BoundsError, rules.ArgumentError, rules.UnknownNameError,
     rules.NkiValidationError, rules.NotSupportedError],
)  # fmt: skip
def test_refusals_can_be_pickled(kind):
    error = kind("text", rule="bounds")
    copy = pickle.loads(pickle.dumps(error))
    assert type(copy) is kind and (str(copy), copy.rule) == (str(error), "bounds")
