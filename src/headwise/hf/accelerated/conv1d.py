"""The linear layers of GPT-2 and its kin, whose weight lies the other way round."""

from torch import Tensor
from transformers.pytorch_utils import Conv1D
from typing_extensions import override

from headwise.hf.accelerated.refusals import other_weight
from headwise.ops.projection import linear
from headwise.ops.projection.choice import FEW_ROWS


class FastConv1D(Conv1D):
    """The same on the fastest library there is for the call."""

    hands_over = f"calls of up to {FEW_ROWS} rows"

    refusal = staticmethod(other_weight)

    @override
    def forward(self, x: Tensor) -> Tensor:
        if x.numel() <= FEW_ROWS * x.shape[-1]:
            # Our kernel for few rows reads rows of weights, and these are columns.
            few: Tensor = super().forward(x)  # type: ignore[no-untyped-call]
            return few
        return linear(x, self.weight.t(), self.bias)


SWAPS: dict[type, type] = {Conv1D: FastConv1D}
