"""What runs when an operation is called: its twin or its kernel, by backend, never by chance."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from dslearn.backend import current
from dslearn.errors import BackendError, KernelError
from dslearn.ops import forms
from dslearn.ops.ledger import note

if TYPE_CHECKING:
    from dslearn.ops.registry import Op


def run(op: Op, *args: Any) -> Any:
    """One call of an operation: the twin on `cpu`, else the kernel.

    Raises:
        KernelError: arguments that the kernel does not take, or a kernel that gives what the
            fake does not promise.
        BackendError: `neuron` without the vendor's torch_neuronx.
    """
    backend = current().name
    if backend == "cpu":
        note(op.name, "twin")
        return _contiguous(op.twin(*args))
    wrong = forms.complaint(op.forms, dict(zip(op.arguments, args, strict=False)))
    if wrong:
        taken = ", ".join(f"{name} {text}" for name, text in op.takes.items())
        raise KernelError(
            f"{op.name} on backend {backend}: {wrong}; the kernel {op.launcher.name} serves "
            f'{taken}; convert it, or compute the twin in a block `with backend.use("cpu")`'
        )
    if not all(t.numel() for t in _tensors(args)):
        nothing = op.fake(*args)
        if _tensors(nothing) and not any(t.numel() for t in _tensors(nothing)):
            return nothing
    result = _on_device(op, args) if backend == "neuron" else _simulated(op, args)
    note(op.name, "kernel")
    return result


def open_on_device(  # noqa: PLR0913 - torch's signature of a dispatch rule
    op: Op, mode: Any, func: Any, types: Any, args: Any = (), kwargs: Any = None
) -> Any:
    """While a graph is traced on `neuron`: the operation's kernel call, in place of itself."""
    if current().name != "neuron":
        return mode.__torch_dispatch__(func, types, args, kwargs)
    with mode:
        return run(op, *args, **(kwargs or {}))


def _on_device(op: Op, args: Sequence[Any]) -> Any:
    if op.launcher.device is None:
        raise BackendError(
            f"{op.name} on backend neuron: torch_neuronx was not there when dslearn.ops was "
            "imported; `dslearn doctor` says what is missing"
        )
    result = op.adapt(op.launcher.device, *args)
    return _contiguous(result) if op.overload._schema.returns else None


def _simulated(op: Op, args: Sequence[Any]) -> Any:
    # Optional arguments may be None, and at the end torch leaves them out.
    written = _tensors([args[i] for i in op.written if i < len(args)])

    def kernel(*given: Any) -> Any:
        places = {_place(t) for t in _tensors(given)}
        lost = [t for t in written if t.numel() and _place(t) not in places]
        if lost:
            raise KernelError(
                f"{op.name}: a tensor that it writes, {list(lost[0].shape)}, reaches the kernel as "
                "a copy: hand it over itself, or a view of it"
            )
        return op.launcher.simulated(*given)

    result = op.adapt(kernel, *args)
    if not op.overload._schema.returns:
        return None
    results = _tensors(result)
    shown = [(t.dtype, tuple(t.shape)) for t in results]
    promised = [(t.dtype, tuple(t.shape)) for t in _tensors(op.fake(*args))]
    if shown != promised:
        raise KernelError(f"{op.name}: the kernel gives {shown}, its fake promises {promised}")
    own = _own(results, args)
    return own[0] if isinstance(result, Tensor) else tuple(own)


def _own(results: list[Tensor], args: Sequence[Any]) -> list[Tensor]:
    """Results contiguous and in memory of their own, which is what torch expects of one."""
    taken = {_place(t) for t in _tensors(args)}
    own = []
    for t in results:
        shared = _place(t) in taken
        taken.add(_place(t))
        own.append(t.clone(memory_format=torch.contiguous_format) if shared else t.contiguous())
    return own


def _place(t: Tensor) -> int:
    return t.untyped_storage().data_ptr()


def _tensors(values: Any) -> list[Tensor]:
    """The tensors in a result or in arguments, one level of lists deep."""
    if isinstance(values, Tensor):
        return [values]
    inside: list[Tensor] = []
    for value in values or ():
        inside += _tensors(value) if isinstance(value, list | tuple | Tensor) else []
    return inside


def _contiguous(result: Any) -> Any:
    if isinstance(result, Tensor):
        return result.contiguous()
    return result and type(result)(t.contiguous() for t in result)
