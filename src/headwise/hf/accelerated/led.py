"""LED: Longformer's attention in the encoder, full attention in the decoder."""

from typing import Any

import torch
from torch import Tensor
from torch.nn import functional
from transformers import Cache, EncoderDecoderCache
from transformers.models.led import modeling_led as theirs
from typing_extensions import override

from headwise.hf.accelerated.given_mask import read_mask
from headwise.hf.accelerated.long_documents import (
    HANDED_OVER,
    WHOLE_HANDED_OVER,
    Kinds,
    forward,
    kinds_of,
    wanted,
    why_left,
)
from headwise.hf.accelerated.refusals import without_core
from headwise.hf.attention import attention


class FastLEDEncoderSelfAttention(theirs.LEDEncoderSelfAttention):
    """Attention through ``attend``, in memory linear in length, for any length."""

    refusal = staticmethod(without_core)
    hands_over = HANDED_OVER

    @override
    def forward(
        self,
        hidden_states: Tensor,
        attention_mask: Tensor | None = None,
        is_index_masked: Tensor | None = None,
        is_index_global_attn: Tensor | None = None,
        is_global_attn: bool | None = None,
        output_attentions: bool = False,
    ) -> tuple[Tensor, ...]:
        kinds = Kinds(attention_mask, is_index_masked, is_index_global_attn, is_global_attn)
        found: tuple[Tensor, ...] = forward(
            self, super().forward, hidden_states, kinds, output_attentions
        )
        return found


# Not named after what it is: transformers writes the name of a model's class into its files.
class LEDEncoder(theirs.LEDEncoder):  # type: ignore[no-untyped-call]
    """An encoder without padding to whole windows and without a mask of length squared.

    A call that asks for weights, or gives masks of other numbers than 0 and 1, runs its own code.
    """

    hands_over = WHOLE_HANDED_OVER
    refusal = staticmethod(without_core)

    @override
    def forward(
        self,
        input_ids: Tensor | None = None,
        attention_mask: Tensor | None = None,
        global_attention_mask: Tensor | None = None,
        inputs_embeds: Tensor | None = None,
        output_attentions: bool | None = None,
        output_hidden_states: bool | None = None,
        return_dict: bool | None = None,
        **kwargs: Any,
    ) -> Any:
        weights, states, named = wanted(
            self.config, output_attentions, output_hidden_states, return_dict
        )
        kinds = None
        given = input_ids if inputs_embeds is None else inputs_embeds
        one = (input_ids is None) != (inputs_embeds is None)
        if one and given is not None and self._may_skip_padding(given, weights):
            kinds = kinds_of(attention_mask, global_attention_mask, given, self.dtype)
        if kinds is None:
            return super().forward(  # type: ignore[no-untyped-call]
                input_ids=input_ids,
                attention_mask=attention_mask,
                global_attention_mask=global_attention_mask,
                inputs_embeds=inputs_embeds,
                output_attentions=weights,
                output_hidden_states=states,
                return_dict=named,
                **kwargs,
            )
        embedded = self.embed_tokens(input_ids) if inputs_embeds is None else inputs_embeds
        hidden, passed = self._through_layers(embedded, kinds, states)
        if not named:
            return (hidden,) if passed is None else (hidden, passed)
        return theirs.LEDEncoderBaseModelOutput(last_hidden_state=hidden, hidden_states=passed)

    def _may_skip_padding(self, given: Tensor, weights: bool) -> bool:
        layers: Any = self.layers
        attentions = (layer.self_attn.longformer_self_attn for layer in layers)
        fast = (type(module) is FastLEDEncoderSelfAttention for module in attentions)
        return all(fast) and why_left(given.device, self.dtype, weights) is None

    def _through_layers(
        self, embedded: Tensor, kinds: Kinds, states: bool
    ) -> tuple[Tensor, tuple[Tensor, ...] | None]:
        """Return the last hidden states, and where wanted those before every layer and these."""
        hidden = self.layernorm_embedding(embedded + self.embed_positions(embedded.shape[:-1]))
        hidden = functional.dropout(hidden, self.dropout, self.training)
        passed: tuple[Tensor, ...] | None = (hidden,) if states else None
        for layer in self.layers:
            left_out = self.training and self.layerdrop and float(torch.rand([])) < self.layerdrop
            if not left_out:
                hidden = layer(
                    hidden,
                    attention_mask=kinds.mask,
                    is_index_masked=kinds.padding,
                    is_index_global_attn=kinds.chosen,
                    is_global_attn=kinds.any_chosen,
                    output_attentions=False,
                )[0]
            if passed is not None:
                passed = (*passed, hidden)
        return hidden, passed


class FastLEDDecoderAttention(theirs.LEDDecoderAttention):
    """Attention to the tokens before, or to those of the encoder, with a cache or without."""

    hands_over = "calls in float64, off the CPU, or followed by a transform or torch.jit"
    refusal = staticmethod(without_core)

    @override
    def forward(
        self,
        hidden_states: Tensor,
        key_value_states: Tensor | None = None,
        cache: Cache | None = None,
        attention_mask: Tensor | None = None,
        output_attentions: bool = False,
    ) -> tuple[Tensor, Tensor | None, Cache | None]:
        if why_left(hidden_states.device, hidden_states.dtype, weights=False) is not None:
            given = (hidden_states, key_value_states, cache, attention_mask, output_attentions)
            theirs_found: tuple[Tensor, Tensor | None, Cache | None] = super().forward(*given)
            return theirs_found
        query = self._heads(self.q_proj(hidden_states))
        key, value = self._keys_and_values(hidden_states, key_value_states, cache)
        output, weights = attention(
            self,
            query,
            key,
            value,
            None if attention_mask is None else read_mask(attention_mask, query.dtype),
            dropout=self.dropout if self.training else 0.0,
            scaling=self.scaling,
            is_causal=False,
            output_attentions=output_attentions,
        )
        return self.out_proj(output.flatten(2)), weights, cache

    def _keys_and_values(
        self, hidden: Tensor, outer: Tensor | None, cache: Cache | None
    ) -> tuple[Tensor, Tensor]:
        """Project the tokens of this call and join those before; those of the encoder once."""
        layer: Any = self.layer_idx
        pair = cache if isinstance(cache, EncoderDecoderCache) else None
        held: Any = cache
        if pair is not None:
            held = pair.self_attention_cache if outer is None else pair.cross_attention_cache
            if outer is not None and pair.is_updated.get(layer):
                return held.layers[layer].keys, held.layers[layer].values
        source = hidden if outer is None else outer
        key, value = (self._heads(made(source)) for made in (self.k_proj, self.v_proj))
        if held is not None:
            key, value = held.update(key, value, layer)
            if pair is not None and outer is not None:
                pair.is_updated[layer] = True
        return key, value

    def _heads(self, x: Tensor) -> Tensor:
        return x.view(*x.shape[:2], self.num_heads, self.head_dim).transpose(1, 2)


SWAPS: dict[type, type] = {
    theirs.LEDEncoderSelfAttention: FastLEDEncoderSelfAttention,
    theirs.LEDEncoder: LEDEncoder,
    theirs.LEDDecoderAttention: FastLEDDecoderAttention,
}
