"""Names that older kernels use and NKI 0.6 does not have, with what replaces them.

Source: docs/reference/nki.md, section "Versions".
"""

from __future__ import annotations

from dslearn.sim.rules import UnknownNameError

_COPY = "nisa.tensor_copy with .ap(scalar_offset=...)"
_RANGE = "slices, or .ap for patterns that no slice expresses"
_TOOL = "nki.simulate(kernel)(...) runs a kernel, benchmarks/ measures"

REMOVED: dict[str, dict[str, str]] = {
    "nki.language": {
        "arange": _RANGE,
        "mgrid": _RANGE,
        "par_dim": "dimension 0, which is the partition dimension",
        "spmd_dim": "a bare integer: kernel[2]",
        "nc": "a bare integer: kernel[2]",
        "static_cast": "dtype= of the function, or nisa.tensor_copy to a tile of that dtype",
        "loop_reduce": "accumulate in a tile, or in PSUM with nisa.nc_matmul(accumulate=...)",
        "atomic_rmw": "nisa.dma_compute",
        "int64": "nl.int32",
        "float64": "nl.float32",
        "fp32": "the number itself, -3.4028235e38 for nl.fp32.min",
    },
    "nki.isa": {
        "tensor_copy_dynamic_src": _COPY,
        "tensor_copy_dynamic_dst": _COPY,
        "tensor_tensor_scalar": "scalar_tensor_tensor",
        "tensor_partition_copy": "nisa.dma_copy or nisa.nc_stream_shuffle",
        "dma_copy_indirect": "nisa.dma_copy with .ap(vector_offset=...)",
    },
    "nki": {
        "simulate_kernel": "nki.simulate(kernel)(...)",
        "baremetal": _TOOL,
        "benchmark": _TOOL,
        "profile": _TOOL,
    },
}


def unknown(module: str, name: str) -> UnknownNameError:
    """The exception for `module.name`, saying what to use where that is known."""
    instead = REMOVED.get(module, {}).get(name)
    if instead is None:
        return UnknownNameError(f"module '{module}' has no attribute '{name}'", rule="name")
    return UnknownNameError(f"{module}.{name} was removed before NKI 0.6: use {instead}", "name")
