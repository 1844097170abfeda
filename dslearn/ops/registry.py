"""Declaring an operation: its schema in torch's registry, its twin, its fake, its kernel.

`torch.library.Library.impl` is used rather than `torch.library.custom_op`: 3 µs a call, not 13.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor
from torch._subclasses.functional_tensor import FunctionalTensorMode

from dslearn.errors import UsageError
from dslearn.ops import dispatch, forms
from dslearn.ops.launch import Launcher, wrap
from dslearn.ops.ledger import note

NAMESPACE = "dslearn"
LIBRARY = torch.library.Library(NAMESPACE, "FRAGMENT")


def as_given(kernel: Callable[..., Any], *arguments: Any) -> Any:
    """The adapter of a kernel that takes what its operation takes."""
    return kernel(*arguments)


@dataclass(eq=False)
class Op:
    """An operation `dslearn::name` and everything that serves it; `dslearn.ops` shows how.

    Args:
        schema: name, arguments and results in torch's schema language, without namespace.
        twin: the reference in torch, with the parameters and defaults of the schema.
        fake: results of the right shape and dtype, contiguous, for the same arguments.
        kernel: a function marked `@nki.jit`.
        takes: tensor argument -> the form the kernel path serves, such as `bf16|fp32 [R, K]`.
        grid: cores, 1 or 2, as a number or a tuple of one.
        adapt: `adapt(kernel, *arguments)` calls the kernel and gives the operation's result.
    Raises:
        UsageError: twin, fake, forms or grid that do not fit the schema.
    """

    schema: str
    twin: Callable[..., Any]
    fake: Callable[..., Any]
    kernel: Any
    takes: Mapping[str, str]
    grid: int | tuple[int, ...] = 2
    adapt: Callable[..., Any] = as_given
    name: str = field(init=False)
    arguments: tuple[str, ...] = field(init=False)
    written: tuple[int, ...] = field(init=False)  # places of arguments that are mutated
    forms: dict[str, forms.Form] = field(init=False)
    launcher: Launcher = field(init=False)
    overload: Any = field(init=False)

    def __post_init__(self) -> None:
        parsed = torch._C.parse_schema(f"{NAMESPACE}::{self.schema}")
        self.name = parsed.name.partition("::")[2]
        self.arguments = tuple(a.name for a in parsed.arguments)
        self.written = tuple(
            i for i, a in enumerate(parsed.arguments) if a.alias_info and a.alias_info.is_write
        )
        _check_parameters(self, parsed)
        self.forms = {name: forms.parse(text) for name, text in self.takes.items()}
        tensors = [
            a.name for a in parsed.arguments if str(a.type) in ("Tensor", "Optional[Tensor]")
        ]
        if sorted(self.forms) != sorted(tensors):
            raise UsageError(f"{self.name}: takes= describes {sorted(self.forms)}, not {tensors}")
        self.launcher = wrap(self.kernel, self.grid)
        self.overload = _register(self)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Run it where `dslearn.backend.current()` says; with gradients, the twin.

        Raises:
            KernelError: on `sim` or `neuron`, arguments that the kernel does not take.
        """
        if torch.is_grad_enabled() and any(map(_wants_gradient, (*args, *kwargs.values()))):
            if not torch.compiler.is_compiling():
                note(self.name, "twin")
            return self.twin(*args, **kwargs)
        return self.overload(*args, **kwargs)


def _wants_gradient(value: Any) -> bool:
    if isinstance(value, list | tuple):
        return any(map(_wants_gradient, value))
    return isinstance(value, Tensor) and value.requires_grad


def _check_parameters(op: Op, parsed: Any) -> None:
    """Torch leaves out arguments that equal the schema's defaults: all must agree on those."""
    if any(a.kwarg_only for a in parsed.arguments):
        raise UsageError(f"{op.name}: the schema has arguments after *, which kernels do not take")
    empty = inspect.Parameter.empty
    wanted = [
        (a.name, a.default_value if a.has_default_value() else empty) for a in parsed.arguments
    ]
    for part, function in (("twin", op.twin), ("fake", op.fake)):
        parameters = inspect.signature(function).parameters.values()
        if [(p.name, p.default) for p in parameters] != wanted:
            raise UsageError(
                f"{op.name}: {part}{inspect.signature(function)} and the schema differ in names "
                f"or defaults: {op.schema}"
            )


def _register(op: Op) -> Any:
    LIBRARY.define(op.schema, tags=(torch.Tag.pt2_compliant_tag,))
    qualified = f"{NAMESPACE}::{op.name}"
    run = functools.partial(dispatch.run, op)
    LIBRARY.impl(op.name, run, "CompositeExplicitAutograd")
    torch.library.register_fake(qualified, op.fake, lib=LIBRARY)
    if op.launcher.device is not None:
        # The vendor's compiler must see the kernel in the graph, not an operation it cannot open.
        opened = functools.partial(dispatch.open_on_device, op)
        torch.library.register_torch_dispatch(qualified, FunctionalTensorMode, opened, lib=LIBRARY)
    return getattr(getattr(torch.ops, NAMESPACE), op.name).default
