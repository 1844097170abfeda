"""Instructions that came with trn3: they exist to say so, and what trn2 has instead.

Source: docs/reference/nki.md, section "Not on trn2".
"""

from __future__ import annotations

from typing import Any, NoReturn

from dslearn.sim.isa.checks import trn3
from dslearn.sim.isa.enums import reduce_cmd as commands


def nc_matmul_mx(  # noqa: PLR0913 - the vendor's signature
    dst: Any,
    stationary: Any,
    moving: Any,
    stationary_scale: Any,
    moving_scale: Any,
    tile_position: Any = None,
    tile_size: Any = None,
    accumulate: Any = None,
    name: str | None = None,
) -> NoReturn:
    """Matmul of block-scaled quadruples: trn3.

    Raises:
        NotSupportedError: always.
    """
    raise trn3("nc_matmul_mx", "dequantise in SBUF, or scale the PSUM result per block")


def quantize_mx(dst: Any, src: Any, dst_scale: Any, name: str | None = None) -> NoReturn:
    """Block quantisation: trn3.

    Raises:
        NotSupportedError: always.
    """
    raise trn3("quantize_mx", "reduce the block's maximum, scale with tensor_scalar, then cast")


def activate2(  # noqa: PLR0913 - the vendor's signature
    dst: Any,
    op: Any,
    data: Any,
    imm0: Any,
    imm1: Any,
    op0: Any,
    op1: Any,
    relu_param: Any = 0.0,
    reverse0: bool = False,
    reverse1: bool = False,
    reduce_op: Any = None,
    reduce_res: Any = None,
    reduce_cmd: Any = commands.idle,
    name: str | None = None,
) -> NoReturn:
    """Activation behind two operators: trn3.

    Raises:
        NotSupportedError: always.
    """
    raise trn3("activate2", "activation has scale and bias, tensor_scalar the other operators")


def exponential(  # noqa: PLR0913 - the vendor's signature
    dst: Any,
    src: Any,
    max_value: Any = 0.0,
    reduce_res: Any = None,
    reduce_cmd: Any = commands.idle,
    reduce_init: Any = 0.0,
    name: str | None = None,
) -> NoReturn:
    """exp on the Vector engine: trn3.

    Raises:
        NotSupportedError: always.
    """
    raise trn3("exponential", "activation(op=nl.exp, bias=-max) on the Scalar engine")


def rand2(dst: Any, min: Any, max: Any, name: str | None = None) -> NoReturn:
    """Uniform random numbers: trn3.

    Raises:
        NotSupportedError: always.
    """
    raise trn3("rand2", "pass random numbers as an argument")
