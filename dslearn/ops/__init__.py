"""One torch operation per kernel: `dslearn::NAME`, served by its twin or by the kernel.

    from dslearn import backend, ops
    from dslearn.ops.rmsnorm import rmsnorm

    y = rmsnorm(x, weight, 1e-20)          # cpu: the twin; sim, neuron: the kernel; never a guess
    with backend.use("sim"), ops.collect() as taken:
        y = rmsnorm(x, weight, 1e-20)
    print(taken)                           # rmsnorm: kernel 1
    ops.paths()                            # {"rmsnorm": {"twin": 1, "kernel": 1}}, this process

An operation is declared beside its twin, in `ops/NAME.py` for `kernels/NAME.py`:

    from dslearn.kernels import rmsnorm as kernels
    from dslearn.ops.registry import Op

    rmsnorm = Op(
        "rmsnorm(Tensor x, Tensor weight, float eps) -> Tensor",
        twin=reference,                                      # parameters as in the schema
        fake=lambda x, weight, eps: x.new_empty(x.shape),    # shape and dtype only, contiguous
        kernel=kernels.rmsnorm,
        takes={"x": "bf16|fp32 [R, K]", "weight": "bf16|fp32 [K]"},
        grid=2,                                              # or (2,); never depends on data
    )

* Schema: torch's own language, defaults as in Python. A tensor that is written in place is
  `Tensor(a!) cache`; an operation that only writes returns `()`. Optional: `Tensor? weight=None`.
* `takes` says which tensors the kernel path serves; anything else is refused with this text.
  Dtypes: bf16 fp16 fp32 e4m3 e5m2 ue8m0 u8 i8 i16 i32 i64 bool. A dim is a number, a name (the
  same size in all tensors) or `K/32`, rounded up.
* `adapt(kernel, *arguments)` is needed where the kernel wants other tensors than the caller has:
  it calls `kernel(...)` and gives the operation's result. Two helpers are in `ops.adapting`:

      def _adapt(kernel, x, codes, scale):
          return kernel(padded(x, 1, 32), padded(as_bytes(codes), 32, 32), scale)[:, : len(codes)]

  What is written in place must reach the kernel as itself or as a view, not as a padded copy.
* Results are contiguous, in memory of their own. No rows in, no rows out: a call whose results
  have no elements launches nothing.
* With gradients (enabled, and wanted by an argument) an operation is its twin, so that a trainer
  differentiates through it. The calling convention is positional or by keyword, like the schema.
"""

from __future__ import annotations

from dslearn.ops.ledger import Ledger, collect, paths
from dslearn.ops.registry import Op

__all__ = ["Ledger", "Op", "collect", "paths"]
