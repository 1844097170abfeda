"""A fake `torch_neuronx` with the contract of the vendor's `wrap_nki`, run by the simulator.

A kernel must expose `.func` and `.sign`; the caller is indexed by a grid that it iterates over, so
a bare number fails; a call is one node `nki_kernel_wrapper` of a graph, in which tensors that the
kernel writes are functionalised; arguments that are no tensors are constants of that node.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
import torch
from torch._C import DispatchKey
from torch._ops import HigherOrderOperator
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.fx.experimental.proxy_tensor import ProxyTorchDispatchMode, track_tensor_tree
from torch.utils._pytree import tree_map_only

from dslearn import backend

KERNELS: list[Any] = []  # the vendor's process-global table; a kernel's place is in graphs
LAUNCHES: list[tuple[int, tuple[int, ...]]] = []  # (kernel, grid) of each execution


class _Wrapper(HigherOrderOperator):
    def __init__(self) -> None:
        super().__init__("nki_kernel_wrapper")

    def __call__(self, *, kernel_idx: int, grid: tuple[int, ...], args: tuple[Any, ...]) -> Any:
        return super().__call__(kernel_idx=kernel_idx, grid=grid, args=args)


nki_kernel_wrapper = _Wrapper()
for _key in ("PythonDispatcher", "PythonTLSSnapshot", "ADInplaceOrView", "BackendSelect",
             "AutocastCPU", "AutogradCPU"):  # fmt: skip
    nki_kernel_wrapper.fallthrough(getattr(DispatchKey, _key))


def _execute(kernel_idx: int, grid: tuple[int, ...], args: tuple[Any, ...]) -> Any:
    import nki

    return nki.simulate(KERNELS[kernel_idx][grid[0]])(*args)


@nki_kernel_wrapper.py_impl(DispatchKey.CompositeExplicitAutograd)
def _dense(*, kernel_idx: int, grid: tuple[int, ...], args: tuple[Any, ...]) -> Any:
    LAUNCHES.append((kernel_idx, grid))
    return _execute(kernel_idx, grid, args)


def _config(kernel_idx: int, grid: tuple[int, ...], args: tuple[Any, ...]) -> tuple[Any, int]:
    """A result made on ones, and which argument it is (-1: none): the vendor's "dump config"."""
    with torch.utils._python_dispatch._disable_current_modes():
        ones = tree_map_only(torch.Tensor, lambda t: torch.ones(t.shape, dtype=t.dtype), args)
        result = _execute(kernel_idx, grid, ones)
    return result, next((i for i, one in enumerate(ones) if one is result), -1)


@nki_kernel_wrapper.py_impl(FakeTensorMode)
def _fake(mode: Any, *, kernel_idx: int, grid: tuple[int, ...], args: tuple[Any, ...]) -> Any:
    result, _ = _config(kernel_idx, grid, args)
    with mode:
        return tree_map_only(torch.Tensor, lambda t: torch.empty(t.shape, dtype=t.dtype), result)


@nki_kernel_wrapper.py_impl(ProxyTorchDispatchMode)
def _trace(mode: Any, **kwargs: Any) -> Any:
    proxies = tree_map_only(torch.Tensor, lambda t: mode.tracer.unwrap_proxy(t), kwargs)
    node = mode.tracer.create_proxy("call_function", nki_kernel_wrapper, (), proxies)
    return track_tensor_tree(nki_kernel_wrapper(**kwargs), node, constant=None, tracer=mode.tracer)


@nki_kernel_wrapper.py_functionalize_impl
def _functional(ctx: Any, *, kernel_idx: int, grid: tuple[int, ...], args: tuple[Any, ...]) -> Any:
    plain = ctx.unwrap_tensors(args)
    _, written = _config(kernel_idx, grid, plain)
    with ctx.redispatch_to_next():
        inputs = tuple(a.clone() if i == written else a for i, a in enumerate(plain))
        result = nki_kernel_wrapper(kernel_idx=kernel_idx, grid=grid, args=inputs)
    if written < 0:
        return ctx.wrap_tensors(result)
    ctx.replace(args[written], result)
    ctx.commit_update(args[written])
    ctx.sync(args[written])
    return args[written]


class NKIHOPCaller:
    """What the vendor's `wrap_nki` gives; every call of it registers the kernel again."""

    def __init__(self, kernel: Any) -> None:
        self.func, self.sign = kernel.func, kernel.sign
        self.index = len(KERNELS)
        KERNELS.append(kernel)

    def __getitem__(self, grid: Any) -> Callable[..., Any]:
        cores = tuple(int(n) for n in grid)

        def call(*args: Any, **kwargs: Any) -> Any:
            bound = self.sign.bind(*args, **kwargs)
            constants = [a for a in bound.args if not isinstance(a, torch.Tensor)]
            hash(tuple(constants))  # they become part of a key, so a list is a TypeError
            return nki_kernel_wrapper(kernel_idx=self.index, grid=cores, args=bound.args)

        return call


def pretend(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """Install the fake package, and a device that answers, until the test ends."""
    package, hop = ModuleType("torch_neuronx"), ModuleType("torch_neuronx.nki_hop")
    hop.wrap_nki = NKIHOPCaller  # type: ignore[attr-defined]
    package.nki_hop = hop  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "torch_neuronx", package)
    monkeypatch.setitem(sys.modules, "torch_neuronx.nki_hop", hop)
    monkeypatch.setattr(torch, "neuron", SimpleNamespace(device_count=lambda: 2), raising=False)
    monkeypatch.setattr(backend, "neuron_device", lambda: (True, "a fake answers"))
    LAUNCHES.clear()
    return package
