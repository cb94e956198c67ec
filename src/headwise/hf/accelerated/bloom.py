"""Bloom's attention on ``attend``: the linear biases are read by key, never spelled out to n²."""

from collections.abc import Callable
from typing import Any

from torch import Tensor, nn
from torch.nn.functional import dropout
from transformers.models.bloom.modeling_bloom import BloomAttention
from typing_extensions import override

from headwise.hf.accelerated.given_mask import read_mask
from headwise.hf.attention import attention


class FastBloomAttention(BloomAttention):
    """Attend as Bloom does, with the biases that the model has rounded and moved past padding.

    A query that may attend nowhere, as padding on the left, gets zeros.
    """

    hands_over = "calls that ask for weights, and those with a mask of other than numbers,"

    @staticmethod
    def refusal(module: nn.Module) -> str | None:
        """Leave what repeats the rounding of several machines."""
        theirs: Any = module
        if theirs.pretraining_tp > 1 and theirs.slow_but_exact:
            return "slow_but_exact adds its output in the slices of pretraining_tp machines"
        return None

    @override
    def forward(
        self,
        hidden_states: Tensor,
        residual: Tensor,
        alibi: Tensor,
        attention_mask: Tensor | None,
        layer_past: Any = None,
        use_cache: bool = False,
        output_attentions: bool = False,
        **kwargs: Any,
    ) -> tuple[Tensor, Tensor | None]:
        adds = attention_mask is None or attention_mask.is_floating_point()
        if output_attentions or not adds:
            given = (hidden_states, residual, alibi, attention_mask, layer_past)
            theirs: Callable[..., tuple[Tensor, Tensor | None]] = super().forward
            return theirs(*given, use_cache, output_attentions, **kwargs)
        query, key, value = self._reshape(self.query_key_value(hidden_states))
        if layer_past is not None:
            key, value = layer_past.update(key, value, self.layer_idx)
        mask = None if attention_mask is None else read_mask(attention_mask, query.dtype)
        context, _ = attention(
            *(self, query, key, value, mask),
            dropout=self.attention_dropout.p if self.training else 0.0,
            scaling=self.inv_norm_factor,
            position_bias=alibi.view(query.shape[0], self.num_heads, 1, -1),
        )
        output = self.dense(context.flatten(2))
        return residual + dropout(output, self.hidden_dropout, self.training), None


SWAPS: dict[type, type] = {BloomAttention: FastBloomAttention}
