"""Linear layers and norms that know how the checkpoint stores them."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from dslearn.model import chip, chip_grouped, chip_linear
from dslearn.model.arith import Arith, rms_norm


class Linear(nn.Module):
    """y = x W^T with the input quantised when the weight is stored quantised.

    Args:
        inputs, outputs: K and N.
        arith: the model's arithmetic.
        quantised: whether the released checkpoint stores this weight in fp8 or fp4 and quantises
            its input (docs/reference/model.md, "Which linears are quantised").
    """

    def __init__(self, inputs: int, outputs: int, arith: Arith, *, quantised: bool) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(outputs, inputs))
        self.arith = arith
        self.quantised = quantised
        # Set by the loader: stored in fp8 or fp4; and if so, in fp4, with a scale per 32 inputs.
        self.stored_quantised = self.stored_per_row = False

    def prepare(self, x: Tensor) -> Tensor:
        """The input as this linear's product sees it."""
        return self.arith.activations(x, self.stored_quantised) if self.quantised else x

    def product(self, prepared: Tensor) -> Tensor:
        """The product on an input that went through `prepare`, rounded to the activation dtype."""
        if chip.serves(prepared, self.weight):
            return self.arith.round(self.arith.by_rows(prepared, chip_linear.placed(self)))
        return self.arith.round(self.arith.linear(prepared, self.weight))

    def forward(self, x: Tensor) -> Tensor:
        """x [..., K] -> [..., N]."""
        return self.product(self.prepare(x))

    def place(self) -> None:
        """See `chip.prepare`."""
        if chip.serves(self.weight):
            chip_linear.placed(self)


class GroupedLinear(Linear):
    """Groups of inputs, each with a weight of its own; the inputs are not quantised (`wo_a`).

    Args:
        groups: G.
        inputs, outputs: K and N of one group; the parameter is [G * N, K].
        arith: the model's arithmetic.
    """

    def __init__(self, groups: int, inputs: int, outputs: int, arith: Arith) -> None:
        super().__init__(inputs, groups * outputs, arith, quantised=False)
        self.groups = groups

    def forward(self, x: Tensor) -> Tensor:
        """x [..., G, K] -> [..., G * N]."""
        if chip.serves(x, self.weight):
            return self.arith.round(self.arith.by_rows(x.flatten(-2), chip_grouped.placed(self)))
        weight = self.weight.view(self.groups, -1, x.shape[-1])
        return self.arith.round(self.arith.grouped(x, weight))

    def place(self) -> None:
        """See `chip.prepare`."""
        if chip.serves(self.weight):
            chip_grouped.placed(self)


class Input:
    """Rows [R, K] that several quantised linears read: quantised once, when first asked for."""

    def __init__(self, x: Tensor, arith: Arith) -> None:
        self.x, self.arith = x, arith
        self._forms: dict[bool, Tensor] = {}

    def seen_by(self, stored_quantised: bool) -> Tensor:
        """The rows as a linear sees them that is stored quantised, or not."""
        if stored_quantised not in self._forms:
            self._forms[stored_quantised] = self.arith.activations(self.x, stored_quantised)
        return self._forms[stored_quantised]

    def rows(self, index: Tensor) -> Input:
        """Some of the rows, index [M]; their forms are taken from this one's."""
        part = Input(self.x[index], self.arith)
        part._forms = {stored: form[index] for stored, form in self._forms.items()}
        return part


class Fused:
    """Linears that read the same input, as one product over one contiguous weight.

    Built on demand; the parts' weights become views of the fused one, so no memory is doubled and
    a loader that fills the parts fills the whole. With gradients the parts stay apart.
    """

    def __init__(self, *parts: Linear) -> None:
        self.parts = parts
        self.sizes = [part.weight.shape[0] for part in parts]
        self._weight: Tensor | None = None
        self._places: list[int] = []  # where the parts' weights lie while they are its views

    def __call__(self, x: Input) -> list[Tensor]:
        """Each part's product on x [..., K]: one product where all parts are stored alike.

        On the chip each part has its kernel: tiles of two weights do not join at any size. A graph
        has the parts as its inputs, so that it cannot miss one that is replaced.
        """
        first = self.parts[0]
        apart = torch.compiler.is_compiling() or chip.serves(first.weight)
        weight = None if apart else self.joined()
        if weight is None:
            return [part.product(x.seen_by(part.stored_quantised)) for part in self.parts]
        prepared = x.seen_by(first.stored_quantised)
        out = first.arith.round(first.arith.linear(prepared, weight))
        return list(out.split(self.sizes, -1))

    def joined(self) -> Tensor | None:
        """The one weight [sum of N, K]; None where parts are not stored alike, or learn."""
        first = self.parts[0]
        alike = all(part.stored_quantised == first.stored_quantised for part in self.parts)
        if first.weight.requires_grad or not alike:
            return None
        if self._weight is None or self._places != self._now():
            # No inference tensors, wherever this is: parameters of another kind are new to a graph.
            with torch.inference_mode(False), torch.no_grad():
                self._weight = torch.cat([part.weight for part in self.parts])
            for part, rows in zip(self.parts, self._weight.split(self.sizes), strict=True):
                part.weight.data = rows
            self._places = self._now()
        return self._weight

    def _now(self) -> list[int]:
        """Addresses of the parts' weights: another one means that a weight was replaced."""
        return [part.weight.data_ptr() for part in self.parts]


class Norm(nn.Module):
    """RMSNorm computed in fp32 with one final rounding.

    Args:
        size: width K.
        eps: 1e-20 in V4.1: only a row of exact zeros ever feels it.
        arith: the model's arithmetic.
    """

    def __init__(self, size: int, eps: float, arith: Arith) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(size))
        self.eps = eps
        self.arith = arith

    def forward(self, x: Tensor) -> Tensor:
        """x [..., K] -> [..., K]."""
        norm = chip.rms_norm if chip.serves(x, self.weight) else rms_norm
        return self.arith.round(norm(x, self.weight, self.eps))
