"""The linear layers of GPT-2 and its kin, whose weight lies the other way round."""

from torch import Tensor, nn
from transformers.pytorch_utils import Conv1D
from typing_extensions import override

from headwise.ops.projection import linear


class FastConv1D(Conv1D):
    """The same on the fastest library there is for the call."""

    @staticmethod
    def refusal(module: nn.Module) -> str | None:
        """Leave a layer whose weight is no plain parameter."""
        kind = type(module.weight)
        return None if kind is nn.Parameter else f"its weight is a {kind.__name__}"

    @override
    def forward(self, x: Tensor) -> Tensor:
        return linear(x, self.weight.t(), self.bias)


SWAPS: dict[type, type] = {Conv1D: FastConv1D}
