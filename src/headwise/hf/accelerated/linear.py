"""Linear layers through ``ops/projection``."""

from torch import Tensor, nn
from typing_extensions import override

from headwise.ops.projection import linear


class FastLinear(nn.Linear):
    """A linear layer that runs on the fastest library there is for the call."""

    @staticmethod
    def refusal(module: nn.Module) -> str | None:
        """Take every plain linear layer."""
        return None

    @override
    def forward(self, input: Tensor) -> Tensor:
        return linear(input, self.weight, self.bias)


SWAPS: dict[type, type] = {nn.Linear: FastLinear}
