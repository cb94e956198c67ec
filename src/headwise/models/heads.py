"""Models that score tokens: the next one, masked ones, those of a target of a source."""

from typing import Any, ClassVar

import torch
from torch import Tensor, nn
from transformers import GenerationMixin
from transformers.modeling_outputs import (
    CausalLMOutputWithCrossAttentions,
    MaskedLMOutput,
    Seq2SeqLMOutput,
)
from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES
from typing_extensions import override

from headwise.models.arguments import check_cache, check_kind, refuse_implementation, refuse_kept
from headwise.models.cache import Cache
from headwise.models.configuration import HeadwiseConfig
from headwise.models.losses import token_loss
from headwise.models.outputs import tuple_if_asked
from headwise.models.places import in_front
from headwise.models.transformer import HeadwiseModel, HeadwisePreTrainedModel
from headwise.nn.projection import project

_TIED_IN_DECODER = {"lm_head.weight": "model.decoder.tokens.weight"}
_TIED_IN_ENCODER = {"lm_head.weight": "model.encoder.tokens.weight"}


class _ForTokens(HeadwisePreTrainedModel):  # type: ignore[no-untyped-call]
    """A model that scores every token of the vocabulary at every place."""

    kind: ClassVar[str]
    accepts_loss_kwargs = True

    def __init__(self, config: HeadwiseConfig) -> None:
        super().__init__(config)
        check_kind(type(self).__name__, config, self.kind)
        self.model = HeadwiseModel(config)
        self.transform = Transform(config) if config.lm_transform else None
        self.lm_head = nn.Linear(config.d_model, config.vocab_size, config.lm_bias)
        self.post_init()

    @override
    def get_output_embeddings(self) -> Any:
        return self.lm_head

    @override
    def set_output_embeddings(self, new_embeddings: Any) -> None:
        self.lm_head = new_embeddings

    def scores(self, hidden: Tensor) -> Tensor:
        """Return the logits of hidden states, (batch, length, vocab_size)."""
        found: Tensor = self.lm_head(hidden if self.transform is None else self.transform(hidden))
        return found


class _Generates(_ForTokens, GenerationMixin):  # type: ignore[no-untyped-call]
    """A model that continues texts, with a cache of headwise."""

    @override
    def _prepare_cache_for_generation(
        self, generation_config: Any, model_kwargs: dict[str, Any], *rest: Any, **named: Any
    ) -> Any:
        if generation_config.cache_implementation is not None:
            refuse_implementation(generation_config.cache_implementation)
        check_cache(model_kwargs.get("cache"))
        if model_kwargs.get("cache") is None and generation_config.use_cache is not False:
            model_kwargs["cache"] = Cache()
            return None
        prepare: Any = super()._prepare_cache_for_generation  # type: ignore[misc]
        return prepare(generation_config, model_kwargs, *rest, **named)

    @override
    def _prepare_position_ids_for_generation(
        self, inputs_tensor: Tensor, model_kwargs: dict[str, Any]
    ) -> Tensor:
        """Count every place from the first real token, holes too, as a pass without them does."""
        mask = model_kwargs.get("attention_mask")
        if mask is None:
            count: Any = super()._prepare_position_ids_for_generation
            found: Tensor = count(inputs_tensor, model_kwargs)
            return found
        places = torch.arange(mask.shape[1], device=mask.device)
        return (places - in_front(mask.bool())[:, None]).clamp(min=0)


class HeadwiseForCausalLM(_Generates):  # type: ignore[no-untyped-call]
    """A decoder that scores the next token, for ``AutoModelForCausalLM`` and ``generate``.

    Args:
        config: A configuration of the kind ``"decoder"``.

    Raises:
        ValueError: A configuration of another kind; otherwise as ``HeadwiseModel``.

    Example:
        >>> import torch, headwise as hw
        >>> config = hw.models.llama(vocab_size=50, d_model=16, num_heads=2, num_layers=1)
        >>> model = hw.models.HeadwiseForCausalLM(config).eval()
        >>> model.generate(torch.tensor([[3, 4]]), max_new_tokens=5, do_sample=False).shape
        torch.Size([1, 7])
    """

    kind = "decoder"
    _tied_weights_keys = _TIED_IN_DECODER

    def __init__(self, config: HeadwiseConfig) -> None:
        super().__init__(config)
        # Trainer moves labels by one place for classes of this table, where it smooths them.
        name = type(self).__name__
        MODEL_FOR_CAUSAL_LM_MAPPING_NAMES.setdefault(name, name)

    @tuple_if_asked
    def forward(
        self,
        input_ids: Tensor | None = None,
        attention_mask: Tensor | None = None,
        token_type_ids: Tensor | None = None,
        position_ids: Tensor | None = None,
        inputs_embeds: Tensor | None = None,
        labels: Tensor | None = None,
        cache: Cache | None = None,
        use_cache: bool | None = None,
        output_hidden_states: bool | None = None,
        output_attentions: bool | None = None,
        logits_to_keep: int | Tensor = 0,
        num_items_in_batch: Tensor | int | None = None,
    ) -> CausalLMOutputWithCrossAttentions:
        """Return logits, and the loss where there are labels; see ``HeadwiseModel.forward``.

        Args:
            input_ids: As in ``HeadwiseModel``.
            attention_mask: Likewise.
            token_type_ids: Likewise.
            position_ids: Likewise.
            inputs_embeds: Likewise.
            labels: (batch, length), usually ``input_ids``: the label of a place is what the place
                before it must tell. -100 is left out.
            cache: As in ``HeadwiseModel``.
            use_cache: Likewise.
            output_hidden_states: Likewise.
            output_attentions: Likewise.
            logits_to_keep: How many of the last places are scored, or which ones; 0 = all.
            num_items_in_batch: What the sum of losses is divided by; ``None`` = their number.
        """
        out = self.model(
            input_ids,
            attention_mask,
            token_type_ids=token_type_ids,
            position_ids=position_ids,
            inputs_embeds=inputs_embeds,
            cache=cache,
            use_cache=use_cache,
            output_hidden_states=output_hidden_states,
            output_attentions=output_attentions,
            return_dict=True,
        )
        hidden = out.last_hidden_state
        if isinstance(logits_to_keep, Tensor) or logits_to_keep:
            refuse_kept(labels)
            last = isinstance(logits_to_keep, int)
            hidden = hidden[:, -logits_to_keep:] if last else hidden[:, logits_to_keep]
        logits = self.scores(hidden)
        loss = None
        if labels is not None:
            loss = token_loss(logits, labels, num_items_in_batch, of_next=True)
        return CausalLMOutputWithCrossAttentions(
            loss=loss,
            logits=logits,
            cache=out.cache,
            hidden_states=out.hidden_states,
            attentions=out.attentions,
        )


class HeadwiseForMaskedLM(_ForTokens):  # type: ignore[no-untyped-call]
    """An encoder that scores the token at every place, for ``AutoModelForMaskedLM``.

    Args:
        config: A configuration of the kind ``"encoder"``.

    Raises:
        ValueError: A configuration of another kind; otherwise as ``HeadwiseModel``.

    Example:
        >>> import torch, headwise as hw
        >>> config = hw.models.bert(vocab_size=50, d_model=16, num_heads=2, num_layers=1)
        >>> model = hw.models.HeadwiseForMaskedLM(config)
        >>> ids = torch.randint(50, (2, 9))
        >>> model(ids, labels=ids).logits.shape
        torch.Size([2, 9, 50])
    """

    kind = "encoder"
    _tied_weights_keys = _TIED_IN_ENCODER

    @tuple_if_asked
    def forward(
        self,
        input_ids: Tensor | None = None,
        attention_mask: Tensor | None = None,
        token_type_ids: Tensor | None = None,
        position_ids: Tensor | None = None,
        inputs_embeds: Tensor | None = None,
        labels: Tensor | None = None,
        output_hidden_states: bool | None = None,
        output_attentions: bool | None = None,
        num_items_in_batch: Tensor | int | None = None,
    ) -> MaskedLMOutput:
        """Return logits, and the loss where there are labels; see ``HeadwiseModel.forward``.

        Args:
            input_ids: As in ``HeadwiseModel``.
            attention_mask: Likewise.
            token_type_ids: Likewise.
            position_ids: Likewise.
            inputs_embeds: Likewise.
            labels: (batch, length), what stood at masked places; -100 is left out.
            output_hidden_states: As in ``HeadwiseModel``.
            output_attentions: Likewise.
            num_items_in_batch: What the sum of losses is divided by; ``None`` = their number.
        """
        out = self.model(
            input_ids,
            attention_mask,
            token_type_ids=token_type_ids,
            position_ids=position_ids,
            inputs_embeds=inputs_embeds,
            output_hidden_states=output_hidden_states,
            output_attentions=output_attentions,
            return_dict=True,
        )
        logits = self.scores(out.last_hidden_state)
        loss = None if labels is None else token_loss(logits, labels, num_items_in_batch)
        return MaskedLMOutput(
            loss=loss, logits=logits, hidden_states=out.hidden_states, attentions=out.attentions
        )


class HeadwiseForSeq2SeqLM(_Generates):  # type: ignore[no-untyped-call]
    """An encoder and a decoder that scores the next token, for ``AutoModelForSeq2SeqLM``.

    Args:
        config: A configuration of the kind ``"encoder_decoder"``.

    Raises:
        ValueError: A configuration of another kind; otherwise as ``HeadwiseModel``.

    Example:
        >>> import torch, headwise as hw
        >>> config = hw.models.encoder_decoder(
        ...     vocab_size=50, d_model=16, num_heads=2, num_layers=1, decoder_start_token_id=1
        ... )
        >>> model = hw.models.HeadwiseForSeq2SeqLM(config).eval()
        >>> model.generate(torch.tensor([[3, 4, 5]]), max_new_tokens=4, do_sample=False).shape
        torch.Size([1, 5])
    """

    kind = "encoder_decoder"
    _tied_weights_keys = _TIED_IN_ENCODER

    @tuple_if_asked
    def forward(
        self,
        input_ids: Tensor | None = None,
        attention_mask: Tensor | None = None,
        decoder_input_ids: Tensor | None = None,
        decoder_attention_mask: Tensor | None = None,
        token_type_ids: Tensor | None = None,
        position_ids: Tensor | None = None,
        decoder_position_ids: Tensor | None = None,
        inputs_embeds: Tensor | None = None,
        decoder_inputs_embeds: Tensor | None = None,
        encoder_outputs: Any = None,
        labels: Tensor | None = None,
        cache: Cache | None = None,
        use_cache: bool | None = None,
        output_hidden_states: bool | None = None,
        output_attentions: bool | None = None,
        num_items_in_batch: Tensor | int | None = None,
    ) -> Seq2SeqLMOutput:
        """Return logits, and the loss where there are labels; see ``HeadwiseModel.forward``.

        Args:
            input_ids: As in ``HeadwiseModel``.
            attention_mask: Likewise.
            decoder_input_ids: Likewise; ``None`` = the labels, moved by one place.
            decoder_attention_mask: As in ``HeadwiseModel``.
            token_type_ids: Likewise.
            position_ids: Likewise.
            decoder_position_ids: Likewise.
            inputs_embeds: Likewise.
            decoder_inputs_embeds: Likewise.
            encoder_outputs: Likewise.
            labels: (batch, length), the target; -100 is left out.
            cache: As in ``HeadwiseModel``.
            use_cache: Likewise.
            output_hidden_states: Likewise.
            output_attentions: Likewise.
            num_items_in_batch: What the sum of losses is divided by; ``None`` = their number.
        """
        if labels is not None and decoder_input_ids is None and decoder_inputs_embeds is None:
            decoder_input_ids = self.prepare_decoder_input_ids_from_labels(labels)
        out = self.model(
            input_ids,
            attention_mask,
            decoder_input_ids,
            decoder_attention_mask,
            token_type_ids,
            position_ids,
            decoder_position_ids,
            inputs_embeds,
            decoder_inputs_embeds,
            encoder_outputs,
            cache,
            use_cache,
            output_hidden_states,
            output_attentions,
            return_dict=True,
        )
        logits = self.scores(out.last_hidden_state)
        loss = None if labels is None else token_loss(logits, labels, num_items_in_batch)
        return Seq2SeqLMOutput(loss=loss, logits=logits, **_without(out, "last_hidden_state"))

    def prepare_decoder_input_ids_from_labels(self, labels: Tensor) -> Tensor:
        """Return what a decoder reads to tell ``labels``: the start, then all but the last."""
        start, padding = self.config.decoder_start_token_id, self.config.pad_token_id
        if start is None:
            raise ValueError(
                "HeadwiseForSeq2SeqLM: labels need a token to start with, and "
                "config.decoder_start_token_id is None\n"
                "  hint: give it in the configuration, or pass decoder_input_ids"
            )
        moved = labels.new_full(labels.shape, start)
        moved[:, 1:] = labels[:, :-1]
        return moved.masked_fill(moved == -100, start if padding is None else padding)


class Transform(nn.Module):
    """The linear layer, activation and norm that stand before the scores of BERT's tokens."""

    def __init__(self, config: HeadwiseConfig) -> None:
        super().__init__()
        self.activation = config.activation
        self.dense = nn.Linear(config.d_model, config.d_model)
        self.norm = nn.LayerNorm(config.d_model, config.eps)

    def forward(self, x: Tensor) -> Tensor:
        """Map (…, d_model) to the same."""
        found: Tensor = self.norm(project(self.dense, x, self.activation))
        return found


def _without(out: Any, name: str) -> dict[str, Any]:
    return {key: value for key, value in out.items() if key != name}
