"""Operations without a kernel: what runs, what a graph sees, and where they are refused."""

from __future__ import annotations

import pytest
import torch

from dslearn import backend
from dslearn.errors import BackendError
from dslearn.ops.host import host_op


def positive(x, least):
    """As many values as are not below `least`, then zeros: a loop over values."""
    kept = [v for v in x.tolist() if v >= least]
    return torch.tensor(kept + [0.0] * (len(x) - len(kept)))


first = host_op(
    "test_host_first(Tensor x, float least) -> Tensor",
    positive,
    lambda x, least: x.new_empty(len(x)),
)
X = torch.tensor([3.0, -1.0, 2.0, 0.5])
WANT = torch.tensor([3.0, 2.0, 0.0, 0.0])


@pytest.mark.parametrize("name", ["cpu", "sim"])
def test_a_graph_has_it_as_one_operation_and_runs_the_function(name):
    def step(x):
        return first(x * 2, 2.0) / 2

    with backend.use(name):
        torch._dynamo.reset()
        compiled = torch.compile(step, fullgraph=True, dynamic=False, backend="aot_eager")
        assert torch.equal(compiled(X), WANT) and torch.equal(step(X), WANT)
    assert set(torch.library.opcheck(first, (X, 1.0)).values()) == {"SUCCESS"}


def test_on_neuron_it_is_refused(monkeypatch):
    monkeypatch.setattr(backend, "neuron_device", lambda: (True, "counts 2 devices"))
    with (
        backend.use("neuron"),
        pytest.raises(BackendError, match="test_host_first has no kernel: it is for the cpu"),
    ):
        first(X, 1.0)
