"""A graph written down: its source and its constants, to run it without building it again.

A file is one line, the SHA-256 of what follows, then what `torch.save` makes of plain values and
tensors; it is loaded with `weights_only`, so a file can hold source, but not pickled objects.
"""

from __future__ import annotations

import hashlib
import io
import math
from dataclasses import asdict, dataclass
from typing import Any

import torch
from torch import Tensor, fx, nn

from dslearn.errors import GraphError
from dslearn.findings import Finding
from dslearn.regions.carriers import Carried, Kind

_NAMES = {"torch": torch, "device": torch.device, "inf": math.inf, "nan": math.nan}
_NESTED = torch._ops.HigherOrderOperator
_LEFT_OUT = {"NoneType", "fx_pytree", "pytree"}  # what FX imports and a flat graph does not use


@dataclass(frozen=True)
class Written:
    """A carried graph as text.

    Attributes:
        source: `def forward(self, ...)` in ATen operations; `self` has the constants.
        constants: their values.
        inputs, outputs: the dtype whose bytes an input or output is, None for plain tensors.
        operations: how many it has.
        warnings: what the lint found that does not refuse.
    """

    source: str
    constants: dict[str, Tensor]
    inputs: tuple[Kind, ...]
    outputs: tuple[Kind, ...]
    operations: int
    warnings: tuple[Finding, ...] = ()

    def module(self) -> nn.Module:
        """A module whose `forward` is the graph, on bytes."""
        names: dict[str, Any] = dict(_NAMES)
        exec(compile(self.source, "<graph>", "exec"), names)
        module: nn.Module = type("Graph", (nn.Module,), {"forward": names["forward"]})()
        for name, value in self.constants.items():
            module.register_buffer(name, value)
        return module


def write(carried: Carried, warnings: tuple[Finding, ...] = ()) -> Written:
    """Write down a graph.

    Raises:
        GraphError: it refers to what source cannot name.
    """
    graph, module = carried.module.graph, carried.module
    closed = (n.target for n in graph.nodes if isinstance(n.target, _NESTED))
    code, lost = graph.python_code("self"), sorted({str(target) for target in closed})
    lost += sorted(set(code.globals) - set(_NAMES) - _LEFT_OUT)
    constants = {str(n.target): getattr(module, str(n.target)) for n in _constants(graph)}
    lost += sorted(name for name, value in constants.items() if not isinstance(value, Tensor))
    if lost:
        raise GraphError(
            f"the graph holds {', '.join(lost)}, which is neither an ATen operation nor a tensor: "
            "regions take plain operations, without nested graphs"
        )
    count = sum(node.op == "call_function" for node in graph.nodes)
    return Written(code.src, constants, carried.inputs, carried.outputs, count, warnings)


def to_bytes(written: Written) -> bytes:
    """The file."""
    plain = asdict(written) | {"warnings": [asdict(one) for one in written.warnings]}
    body = io.BytesIO()
    torch.save(plain, body)
    return _digest(body.getvalue()) + b"\n" + body.getvalue()


def from_bytes(data: bytes) -> Written | None:
    """What `to_bytes` wrote; None for anything else."""
    digest, _, body = data.partition(b"\n")
    if digest != _digest(body):
        return None
    # Read while torch traces, which would make every constant a tensor without values.
    with torch._guards.tracing(None):
        plain = torch.load(io.BytesIO(body), weights_only=True)
    plain["warnings"] = tuple(Finding(**one) for one in plain["warnings"])
    return Written(**plain)


def _digest(body: bytes) -> bytes:
    return hashlib.sha256(body).hexdigest().encode()


def _constants(graph: fx.Graph) -> list[fx.Node]:
    return [node for node in graph.nodes if node.op == "get_attr"]
