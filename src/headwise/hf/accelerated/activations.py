"""Activations of transformers, by the names that ``ops/projection`` has for them."""

from torch import Tensor, nn
from torch.nn import functional
from transformers import activations as theirs
from typing_extensions import override

from headwise.hf.accelerated.autocast import autocasts
from headwise.hf.accelerated.refusals import never


class _TanhGelu(nn.Module):
    """GELU by tanh in one pass; autocast chooses dtypes for the several passes of the original."""

    hands_over = "calls under autocast"

    refusal = staticmethod(never)

    @override
    def forward(self, input: Tensor) -> Tensor:
        if autocasts(input):
            found: Tensor = super().forward(input)
            return found
        return functional.gelu(input, approximate="tanh")


class FastNewGELU(_TanhGelu, theirs.NewGELUActivation):
    """What GPT-2 calls ``gelu_new``."""


class FastFastGELU(_TanhGelu, theirs.FastGELUActivation):
    """What transformers calls ``gelu_fast``."""


class FastAccurateGELU(_TanhGelu, theirs.AccurateGELUActivation):
    """What transformers calls ``gelu_accurate``."""


SWAPS: dict[type, type] = {
    theirs.NewGELUActivation: FastNewGELU,
    theirs.FastGELUActivation: FastFastGELU,
    theirs.AccurateGELUActivation: FastAccurateGELU,
}
_TANH = (*SWAPS, *SWAPS.values(), theirs.GELUTanh)


def name_of(module: nn.Module) -> str | None:
    """Return the name that ``linear`` has for an activation; ``None`` where it fuses none such."""
    kind = type(module)
    if kind in _TANH:
        return "gelu_tanh"
    if kind is theirs.GELUActivation:
        return "gelu"
    if kind is nn.GELU:
        return "gelu" if module.approximate == "none" else "gelu_tanh"
    return "silu" if kind in (theirs.SiLUActivation, nn.SiLU) else None
