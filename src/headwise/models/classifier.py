"""A model that scores classes of whole texts."""

import torch
from torch import Tensor, nn
from torch.nn import functional
from transformers.modeling_outputs import SequenceClassifierOutput

from headwise.models.arguments import check_kind
from headwise.models.configuration import HeadwiseConfig
from headwise.models.losses import classification_loss
from headwise.models.outputs import tuple_if_asked
from headwise.models.places import real_tokens
from headwise.models.transformer import HeadwiseModel, HeadwisePreTrainedModel
from headwise.nn.arguments import check_counts


class HeadwiseForSequenceClassification(HeadwisePreTrainedModel):  # type: ignore[no-untyped-call]
    """An encoder or decoder that scores classes, for ``AutoModelForSequenceClassification``.

    Args:
        config: A configuration of the kind ``"encoder"`` or ``"decoder"``; ``num_labels`` says how
            many classes there are, ``pooling`` which token they are read from.

    Raises:
        ValueError: A configuration of another kind; otherwise as ``HeadwiseModel``.

    Example:
        >>> import torch, headwise as hw
        >>> config = hw.models.performer(vocab_size=50, d_model=16, num_heads=2, num_labels=3)
        >>> model = hw.models.HeadwiseForSequenceClassification(config)
        >>> model(torch.randint(50, (2, 9)), labels=torch.tensor([0, 2])).logits.shape
        torch.Size([2, 3])
    """

    accepts_loss_kwargs = False

    def __init__(self, config: HeadwiseConfig) -> None:
        super().__init__(config)
        check_kind(type(self).__name__, config, "encoder", "decoder")
        classes = config.num_labels or 0
        check_counts(type(self).__name__, num_labels=classes)
        self.model = HeadwiseModel(config)
        self.pooling = config.pooling or ("first" if config.kind == "encoder" else "last")
        self.pooler = nn.Linear(config.d_model, config.d_model) if config.pooler else None
        self.classifier = nn.Linear(config.d_model, classes)
        self.post_init()

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
    ) -> SequenceClassifierOutput:
        """Return logits, and the loss where there are labels; see ``HeadwiseModel.forward``.

        Args:
            input_ids: As in ``HeadwiseModel``.
            attention_mask: Likewise; without it all tokens are real.
            token_type_ids: Likewise.
            position_ids: Likewise.
            inputs_embeds: Likewise.
            labels: (batch,) classes; (batch,) or (batch, num_labels) numbers for a regression;
                (batch, num_labels) for several classes at once. ``config.problem_type`` says
                which; ``None`` = by their dtype and ``num_labels``.
            output_hidden_states: As in ``HeadwiseModel``.
            output_attentions: Likewise.
        """
        out = self.model(
            input_ids,
            attention_mask,
            token_type_ids=token_type_ids,
            position_ids=position_ids,
            inputs_embeds=inputs_embeds,
            use_cache=False,
            output_hidden_states=output_hidden_states,
            output_attentions=output_attentions,
            return_dict=True,
        )
        x = self._pooled(out.last_hidden_state, attention_mask)
        if self.pooler is not None:
            x = self.pooler(x).tanh()
        logits = self.classifier(functional.dropout(x, self.config.dropout, self.training))
        return SequenceClassifierOutput(
            loss=None if labels is None else classification_loss(logits, labels, self.config),
            logits=logits,
            hidden_states=out.hidden_states,
            attentions=out.attentions,
        )

    def _pooled(self, hidden: Tensor, attention_mask: Tensor | None) -> Tensor:
        """Return the vector of each sample, (batch, d_model)."""
        batch, length = hidden.shape[:2]
        real = real_tokens("attention_mask", attention_mask, batch, length)
        if real is None:
            if self.pooling == "mean":
                return hidden.mean(1)
            return hidden[:, 0 if self.pooling == "first" else -1]
        if self.pooling == "mean":
            share = real.to(hidden) / real.sum(-1, keepdim=True).clamp(min=1)
            return torch.einsum("bl,bld->bd", share, hidden.masked_fill(~real[..., None], 0.0))
        places = torch.arange(length, device=hidden.device)
        shown = torch.where(real, places, length if self.pooling == "first" else -1)
        at = shown.amin(-1) if self.pooling == "first" else shown.amax(-1)
        return hidden[torch.arange(batch, device=hidden.device), at.clamp(0, length - 1)]
