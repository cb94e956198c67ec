"""MPNet's attention on ``attend``, which reads its biases by distance and never spells them out."""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from transformers.models.mpnet.modeling_mpnet import MPNetEncoder, MPNetSelfAttention
from typing_extensions import override

from headwise.hf.accelerated.given_mask import read_mask
from headwise.hf.accelerated.refusals import never
from headwise.hf.attention import attention
from headwise.hf.pattern_mask import PatternMask
from headwise.ops import attend
from headwise.patterns import Full
from headwise.positions import RelativeBias

# Buckets that MPNet's code counts, whatever its configuration says.
_BUCKETS = 32


class _SharedBias(RelativeBias):
    """The biases of all layers in one forward pass, on the weights of the encoder."""

    def __init__(self, encoder: Any, length: int) -> None:
        super().__init__(encoder.n_heads, _BUCKETS, device="meta")
        self.weight = encoder.relative_attention_bias.weight
        self._length = length
        self._spelled: Tensor | None = None

    def spelled(self) -> Tensor:
        """Return the biases as transformers has them, but once for the whole batch."""
        if self._spelled is None:
            places = torch.arange(self._length, device=self.weight.device)
            buckets = self.buckets(places[:, None] - places)
            self._spelled = nn.functional.embedding(buckets, self.weight).permute(2, 0, 1)[None]
        return self._spelled


class FastMPNetEncoder(MPNetEncoder):
    """Hand the layers a rule of distances in place of n² numbers per head and sample.

    Layers that are not accelerated get the numbers of transformers.
    """

    hands_over = "calls with positions of their own, and those around layers that are left,"

    @staticmethod
    def refusal(module: nn.Module) -> str | None:
        """Leave what counts other buckets than MPNet's code."""
        theirs: Any = module
        buckets = theirs.relative_attention_bias.num_embeddings
        return (
            None if buckets == _BUCKETS else f"has {buckets} buckets of distances, not {_BUCKETS}"
        )

    @override
    @torch.compiler.disable(  # type: ignore[no-untyped-call, untyped-decorator]
        reason="the rule of distances is a module made anew in each pass"
    )
    def compute_position_bias(
        self, x: Tensor, position_ids: Tensor | None = None, num_buckets: int = _BUCKETS
    ) -> Any:
        layers: Any = self.layer
        fast = all(type(layer.attention.attn) is FastMPNetSelfAttention for layer in layers)
        shared = isinstance(self.relative_attention_bias.weight, nn.Parameter)
        if fast and shared and position_ids is None and num_buckets == _BUCKETS and x.shape[1]:
            return _SharedBias(self, x.shape[1])
        return super().compute_position_bias(x, position_ids, num_buckets)  # type: ignore[no-untyped-call]


class FastMPNetSelfAttention(MPNetSelfAttention):
    """Attend as MPNet does; a query that may attend nowhere gets zeros."""

    hands_over = "calls that ask for weights, and those with a mask of other than numbers,"

    refusal = staticmethod(never)

    @override
    def forward(
        self,
        hidden_states: Tensor,
        attention_mask: Tensor | None = None,
        position_bias: Any = None,
        output_attentions: bool = False,
        **kwargs: Any,
    ) -> tuple[Tensor, ...]:
        mask = attention_mask
        if output_attentions or not (mask is None or mask.is_floating_point()):
            theirs: Callable[..., tuple[Tensor, ...]] = super().forward
            return theirs(hidden_states, mask, _numbers(position_bias), output_attentions, **kwargs)
        split = (*hidden_states.shape[:-1], -1, self.attention_head_size)
        query, key, value = (
            part(hidden_states).view(split).transpose(1, 2) for part in (self.q, self.k, self.v)
        )
        mask = None if mask is None else read_mask(mask, query.dtype)
        dropout_p = self.dropout.p if self.training else 0.0
        context = _attend(self, (query, key, value), mask, position_bias, dropout_p)
        return (self.o(context.flatten(2)),)


@torch.compiler.disable(  # type: ignore[no-untyped-call, untyped-decorator]
    reason="headwise chooses a backend from the pattern of each call"
)
def _attend(
    module: MPNetSelfAttention,
    heads: tuple[Tensor, Tensor, Tensor],
    mask: Tensor | None,
    bias: Any,
    dropout_p: float,
) -> Tensor:
    """Return (batch, length, heads, head_dim)."""
    scale = module.attention_head_size**-0.5
    if not isinstance(bias, _SharedBias) or not (mask is None or type(mask) is PatternMask):
        options = {"position_bias": _numbers(bias), "scaling": scale, "dropout": dropout_p}
        found: Tensor = attention(module, *heads, mask, **options)[0]
        return found
    pattern = Full() if mask is None else mask.pattern
    return attend(*heads, pattern, bias=bias, scale=scale, dropout_p=dropout_p).transpose(1, 2)


def _numbers(bias: Any) -> Tensor | None:
    return bias.spelled() if isinstance(bias, _SharedBias) else bias


SWAPS: dict[type, type] = {
    MPNetEncoder: FastMPNetEncoder,
    MPNetSelfAttention: FastMPNetSelfAttention,
}
