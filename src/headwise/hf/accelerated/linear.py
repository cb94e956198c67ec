"""Linear layers through ``ops/projection``."""

from torch import Tensor, nn
from torch.nn import functional
from torch.nn.modules import module as torch_modules
from typing_extensions import override

from headwise.ops.projection import linear


class FastLinear(nn.Linear):
    """A linear layer that runs on the fastest library there is for the call."""

    @staticmethod
    def refusal(module: nn.Module) -> str | None:
        """Leave a layer whose weight is no plain parameter: quantised, sharded, or made anew."""
        kind = type(module.weight)
        return None if kind is nn.Parameter else f"its weight is a {kind.__name__}"

    @override
    def forward(self, input: Tensor) -> Tensor:
        if input.is_nested:
            return functional.linear(input, self.weight, self.bias)
        return linear(input, self.weight, self.bias)


def is_heard(module: nn.Module) -> bool:
    """Say whether somebody listens to a module, so that it must be called."""
    return bool(
        module._forward_hooks
        or module._forward_pre_hooks
        or module._backward_hooks
        or module._backward_pre_hooks
        or torch_modules._global_forward_hooks
        or torch_modules._global_forward_pre_hooks
        or torch_modules._global_backward_hooks
        or torch_modules._global_backward_pre_hooks
    )


SWAPS: dict[type, type] = {nn.Linear: FastLinear}
