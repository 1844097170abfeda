"""The table of host time: rows that add up, calls and launches that are counted."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest
import torch
from torch import nn

from dslearn import backend, regions
from dslearn.model.stage import stage
from dslearn.ops.rmsnorm import rmsnorm
from dslearn.regions import timing
from dslearn.regions.timing import OUTSIDE


class Layer(nn.Module):
    @stage("outer")
    def outer(self, x):
        return self.inner(rmsnorm(x, torch.ones(8), 1e-6)) + 1

    @stage("inner")
    def inner(self, x):
        return rmsnorm(rmsnorm(x, torch.ones(8), 1e-6), torch.ones(8), 1e-6)


@pytest.fixture
def clock(monkeypatch):
    """Each look at the clock is one second later."""
    times = iter(range(1000))
    monkeypatch.setattr(timing, "perf_counter", lambda: next(times))


@pytest.mark.usefixtures("own_graphs", "clock")
def test_each_second_and_launch_is_charged_once():
    with torch.inference_mode(), regions.record() as ledger:
        for name in ("cpu", "sim"):
            with regions.step(), backend.use(name):
                Layer().outer(torch.ones(2, 8))
                rmsnorm(torch.ones(2, 8), torch.ones(8), 1e-6)
    rows = ledger.rows
    assert ledger.steps == 2 and list(rows) == ["inner (Layer)", "outer (Layer)", OUTSIDE]
    # A step looks at the clock six times, at seconds 0, 1, 2, 3, 4 and 5.
    assert [row.seconds for row in rows.values()] == [2 * 1, 2 * 2, 2 * 2]
    assert [row.calls for row in rows.values()] == [2, 2, 2]
    assert [(row.kernels, row.twins) for row in rows.values()] == [(2, 2), (1, 1), (1, 1)]
    lines = str(ledger).splitlines()
    assert lines[0].split() == ["per", "step", "calls", "ms", "share", "kernels", "twins"]
    assert lines[1].split() == ["inner", "(Layer)", "1", "1000.000", "20.0%", "1", "1"]
    assert lines[3].split() == ["outside", "of", "stages", "1", "2000.000", "40.0%", "0.5", "0.5"]


@pytest.mark.usefixtures("own_graphs", "clock")
def test_compiled_stages_are_timed_and_so_is_a_call_that_fails():
    with torch.inference_mode(), regions.record() as ledger, regions.use("regions"):
        Layer().outer(torch.ones(2, 8))
        with pytest.raises(RuntimeError, match="normalized_shape"):
            Layer().outer(torch.ones(2, 9))
    assert ledger.rows["outer (Layer)"].calls == 2
    assert ledger.rows["outer (Layer)"].twins == 4 and OUTSIDE not in ledger.rows
    assert str(ledger).startswith("in all")


@pytest.mark.usefixtures("own_graphs")
def test_without_a_ledger_a_step_is_nothing():
    with regions.step():
        assert timing.active() is None


def test_the_environment_prints_a_table_at_the_end():
    code = (
        "import torch\nfrom dslearn import regions\n"
        "class L:\n    @regions.region(stage='twice')\n    def f(self, x): return x * 2\n"
        "with regions.step(): L().f(torch.ones(2))\n"
    )
    ran = subprocess.run(
        [sys.executable, "-c", code],
        env=os.environ | {"DSLEARN_HOST_TIMING": "1"},
        capture_output=True,
        text=True,
        timeout=120,
        check=True,
    )
    assert "twice (L)" in ran.stderr and OUTSIDE in ran.stderr and not ran.stdout
