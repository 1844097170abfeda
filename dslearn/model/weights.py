"""Between checkpoint names and the model's parameters.

Every tensor of the target part has one home here; the names are the checkpoint's own.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn

from dslearn.model.engram import Table
from dslearn.model.hyper import HyperConnection
from dslearn.model.linear import Linear
from dslearn.model.model import Model

if TYPE_CHECKING:
    from dslearn.checkpoint.reader import Checkpoint


def named_tensors(model: Model) -> Iterator[tuple[str, nn.Parameter]]:
    """Yield (checkpoint name, parameter) for every parameter that the model holds."""
    for path, module in model.named_modules():
        prefix = f"{path}." if path else ""
        for name, parameter in module.named_parameters(prefix="", recurse=False):
            if isinstance(module, HyperConnection):
                yield f"{path}_{name}", parameter
            else:
                yield prefix + name, parameter


def load(model: Model, checkpoint: Checkpoint) -> None:
    """Fill every parameter from `checkpoint`, dequantised; Engram rows keep their bytes.

    A router without `bias_vl` (a text-only checkpoint) uses its `bias` for images too.
    """
    modules = dict(model.named_modules())
    for module in modules.values():
        if isinstance(module, Linear):
            module.stored_quantised = module.stored_per_row = False
    with torch.no_grad():
        for name, parameter in list(named_tensors(model)):
            if name.endswith("ffn.gate.bias_vl") and name not in checkpoint.names:
                parameter.copy_(checkpoint.dense(name.removesuffix("_vl")))
                continue
            owner = modules.get(name.rpartition(".")[0])
            quantised = checkpoint.is_quantised(name)
            if isinstance(owner, Table) and quantised:
                scale = checkpoint.tensor(name.removesuffix("weight") + "scale")
                owner.store_fp8(_bytes(checkpoint.tensor(name)), _bytes(scale))
                continue
            if isinstance(owner, Linear):
                owner.stored_quantised = quantised
                owner.stored_per_row = checkpoint.is_per_row(name)
            parameter.copy_(checkpoint.dense(name))
    model.requires_grad_(False)


def _bytes(x: Tensor) -> Tensor:
    return x.view(torch.uint8)
