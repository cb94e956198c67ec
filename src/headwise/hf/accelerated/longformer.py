"""Longformer: attention to a window and global tokens, without padding to whole windows."""

from typing import Any

from torch import Tensor
from transformers.models.longformer import modeling_longformer as theirs
from typing_extensions import override

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


class FastLongformerSelfAttention(theirs.LongformerSelfAttention):
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
class LongformerModel(theirs.LongformerModel):  # type: ignore[no-untyped-call]
    """A model without padding to whole windows and without a mask of length squared.

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
        token_type_ids: Tensor | None = None,
        position_ids: Tensor | None = None,
        inputs_embeds: Tensor | None = None,
        output_attentions: bool | None = None,
        output_hidden_states: bool | None = None,
        return_dict: bool | None = None,
        **kwargs: Any,
    ) -> Any:
        weights, states, named = wanted(
            self.config, output_attentions, output_hidden_states, return_dict
        )
        embedded: dict[str, Tensor | None] = {
            "input_ids": input_ids,
            "token_type_ids": token_type_ids,
            "position_ids": position_ids,
            "inputs_embeds": inputs_embeds,
        }
        kinds = None
        given = input_ids if inputs_embeds is None else inputs_embeds
        one = (input_ids is None) != (inputs_embeds is None)
        if one and given is not None and self._may_skip_padding(given, weights):
            kinds = kinds_of(attention_mask, global_attention_mask, given, self.dtype)
        if kinds is None:
            return super().forward(
                **embedded,
                attention_mask=attention_mask,
                global_attention_mask=global_attention_mask,
                output_attentions=weights,
                output_hidden_states=states,
                return_dict=named,
                **kwargs,
            )
        model: Any = self
        if input_ids is not None:
            model.warn_if_padding_and_no_attention_mask(input_ids, attention_mask)
        found = self.encoder(
            self.embeddings(**embedded),
            attention_mask=kinds.mask,
            output_hidden_states=states,
            return_dict=named,
        )
        pooled = None if self.pooler is None else self.pooler(found[0])
        if not named:
            return found[0], pooled, *found[1:]
        return theirs.LongformerBaseModelOutputWithPooling(
            last_hidden_state=found[0], pooler_output=pooled, hidden_states=found.hidden_states
        )

    def _may_skip_padding(self, given: Tensor, weights: bool) -> bool:
        layers: Any = self.encoder.layer
        fast = (type(layer.attention.self) is FastLongformerSelfAttention for layer in layers)
        return all(fast) and why_left(given.device, self.dtype, weights) is None


SWAPS: dict[type, type] = {
    theirs.LongformerSelfAttention: FastLongformerSelfAttention,
    theirs.LongformerModel: LongformerModel,
}
