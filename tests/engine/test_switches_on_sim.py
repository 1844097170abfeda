"""Every numeric switch of the shipped model on simulated kernels: the cpu's tokens and logits.

And the trace of a step says which operations a switch leaves to torch.
"""

from __future__ import annotations

from typing import Any

import pytest
import torch

from dslearn import Numerics, backend
from dslearn.engine import LM, load
from dslearn.engine.trace import step

PROMPT = "if x is not"
MARGIN = 2.5  # at least, of the last step under every switch: no bound reaches half of it
FLIP = 0.5  # one activation that rounds the other way moves a logit of tiny by 0.2
BF16 = 1.0  # another order of sums alone, on the cpu, moves a bf16 logit of tiny by 0.56
HOST = {"router", "engram_hash", "engram_rows"}  # no kernel serves them under any switch
RECORDS = {"rope", "sparse_attn", "compress_pool"}  # served where caches hold records

CASES: list[tuple[dict[str, Any], set[str]]] = [
    ({"fp8_max": 240}, set()),
    ({"activations": True, "fp8_max": 224}, set()),
    ({"row_invariant": True}, RECORDS | {"kv_store"}),
]
for arithmetic in ("fp32", "bf16"):
    for activations in (None, False):
        for caches in (True, False):
            switches = {"arithmetic": arithmetic, "activations": activations, "caches": caches}
            CASES.append((switches, set() if caches else RECORDS))


def shown(value: dict[str, Any] | set[str]) -> str:
    """The same in every process: sets have no order."""
    return str(value) if isinstance(value, dict) else " ".join(sorted(value)) or "none"


class Heard:
    """A model that keeps the last logits of each call."""

    def __init__(self, lm: LM) -> None:
        self.lm, self.logits = lm, []
        self.new_state = lm.new_state

    def forward(self, ids: list[list[int]], state: Any) -> torch.Tensor:
        logits = self.lm.forward(ids, state)
        self.logits.append(logits[0, -1])
        return logits


@pytest.mark.parametrize(("switches", "torch_too"), CASES, ids=shown)
def test_a_step_is_the_cpus_and_its_trace_says_what_torch_computed(switches, torch_too):
    numerics = Numerics(**switches)
    lm = load("tiny", numerics)
    ids = lm.encode(PROMPT)
    heard = {name: Heard(lm) for name in ("cpu", "sim")}
    lines = []
    for name, model in heard.items():
        with backend.use(name):
            lines = step(model, ids)
    expected, found = (torch.stack(model.logits) for model in heard.values())
    quantised = numerics.activations is not False or numerics.caches
    bound = FLIP if quantised else 1e-3
    bound = BF16 if numerics.arithmetic == "bf16" else bound
    assert (found - expected).abs().max() <= bound
    best, second = expected[-1].topk(2).values
    assert best - second > MARGIN and found[-1].argmax() == expected[-1].argmax()
    fake = set() if numerics.activations is False else {"fake_fp8"}
    assert {line.op for line in lines if line.path != "kernel"} == HOST | fake | torch_too
    kernels = {line.op for line in lines if line.path == "kernel"}
    assert {"hc_mixes", "rmsnorm", "swiglu", "engram_gate", "plain_linear"} <= kernels
    assert not kernels & torch_too
