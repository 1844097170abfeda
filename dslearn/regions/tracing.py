"""From the graph of Dynamo, in torch's own functions, to ATen operations.

Stores stay stores. AOTAutograd, the usual way to ATen, turns `pool.index_copy_(0, rows, x)` into a
new pool and one `copy_` back at the end of the graph: on a CPU a cache of gigabytes is then written
twice for one row, whatever `keep_inference_input_mutations` says. (A device's compiler folds the
pair into the buffer that it aliases, and does so from this graph as well, since its backend calls
AOTAutograd itself.) Without gradients nothing needs the functional form, so it is never made.
"""

from __future__ import annotations

from contextlib import nullcontext
from typing import Any

import torch
from torch import Tensor, fx
from torch.fx import traceback
from torch.fx.experimental.proxy_tensor import make_fx
from torch.fx.experimental.symbolic_shapes import PropagateUnbackedSymInts

from dslearn.errors import GraphError


def to_aten(module: fx.GraphModule) -> fx.GraphModule:
    """The ATen graph of a graph that Dynamo captured; `meta["val"]` has each fake tensor.

    Inputs keep their order and what Dynamo knows of them: their source, and whether they are
    parameters.

    Raises:
        GraphError: a number that changes between calls is an input.
    """
    inputs = module.graph.find_nodes(op="placeholder")
    fakes = [node.meta["example_value"] for node in inputs]
    for node, given in zip(inputs, fakes, strict=True):
        if not isinstance(given, Tensor):
            raise GraphError(
                f"{node.name} is an input without a fixed value, {given}: regions have fixed "
                "shapes; compile with dynamic=False and pass what changes as a tensor"
            )

    def run(*given: Any) -> Any:
        return PropagateUnbackedSymInts(module).run(*given)

    # What the graph makes itself is to be as fake as its inputs.
    fake = next((one.fake_mode for one in fakes), nullcontext())
    with fake, torch.no_grad(), traceback.preserve_node_meta():
        made = make_fx(run, tracing_mode="real", _allow_non_fake_inputs=True)(*fakes)
    for before, after in zip(inputs, made.graph.find_nodes(op="placeholder"), strict=True):
        after.meta["val"] = before.meta["example_value"]
        if hasattr(before, "_dynamo_source"):
            after._dynamo_source = before._dynamo_source
    return made
