"""Linear layers through ``ops/projection``."""

from torch import Tensor, nn
from torch.nn import functional
from torch.nn.modules import module as torch_modules
from typing_extensions import override

from headwise.hf.accelerated.refusals import other_weight
from headwise.ops.projection import linear


class FastLinear(nn.Linear):
    """A linear layer that runs on the fastest library there is for the call."""

    refusal = staticmethod(other_weight)

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
