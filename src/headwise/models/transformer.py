"""The Transformer: embedding, blocks, and the encoder and decoder made of them.

Read from top to bottom: a block is built from the configuration, a stack runs its blocks, and the
model holds one stack or two.
"""

from collections.abc import Callable
from contextlib import nullcontext
from functools import partial
from typing import Any, cast

import torch
from torch import Tensor, nn
from torch.nn import functional
from transformers import PreTrainedModel
from transformers import initialization as init
from transformers.modeling_outputs import (
    BaseModelOutputWithPastAndCrossAttentions,
    Seq2SeqModelOutput,
)
from typing_extensions import override

from headwise.errors import CacheError
from headwise.models.arguments import (
    check_cache,
    check_config,
    check_ids,
    check_one_input,
    refuse_unread,
)
from headwise.models.cache import Cache
from headwise.models.configuration import HeadwiseConfig
from headwise.models.outputs import tuple_if_asked
from headwise.models.places import first_place, needs_places, real_tokens
from headwise.models.seen import Seen, run_block
from headwise.models.settings import make_added_positions, make_layer_positions, make_mechanism
from headwise.nn import FeedForward, MultiHeadAttention, TransformerBlock
from headwise.nn.cross_attention import CrossAttention
from headwise.nn.length_projections import LengthProjection
from headwise.patterns import Causal
from headwise.positions import Learned, RelativeBias

_NORMS: dict[str, Callable[..., nn.Module]] = {"layer": nn.LayerNorm, "rms": nn.RMSNorm}
# What is never split between devices.
_WHOLE = ["TransformerBlock"]


def make_block(config: HeadwiseConfig, stack: str, layer: int) -> TransformerBlock:
    """Build a block of the ``"encoder"`` or the ``"decoder"``."""
    bias = config.bias if config.attention_bias is None else config.attention_bias
    head_dim = config.d_model // config.num_heads if config.head_dim is None else config.head_dim
    heads: dict[str, Any] = {
        "head_dim": head_dim,
        "bias": bias,
        "qk_norm": config.qk_norm,
        "softcap": config.softcap,
        "sinks": config.sinks,
    }
    causal = stack == "decoder"
    pattern, mechanism = config.attention_of(stack, layer)
    if causal:
        pattern = Causal() if pattern is None else Causal() & pattern
    attention = MultiHeadAttention(
        config.d_model,
        config.num_heads,
        num_kv_heads=config.num_kv_heads,
        dropout=config.attention_dropout,
        pattern=pattern,
        positions=make_layer_positions(config.positions, config.num_heads, head_dim, causal=causal),
        mechanism=make_mechanism(mechanism, layer, config.max_positions),
        **heads,
    )
    cross = None
    if causal and config.is_encoder_decoder:
        cross = CrossAttention(
            config.d_model,
            config.num_heads,
            dropout=config.attention_dropout,
            mechanism=make_mechanism(config.cross_mechanism, layer, config.max_positions),
            **heads,
        )
    feed_forward = FeedForward(
        config.d_model,
        config.hidden_dim,
        activation=config.activation,
        gated=config.gated,
        bias=config.bias,
        dropout=config.activation_dropout,
    )
    return TransformerBlock(
        attention,
        feed_forward,
        cross,
        norm=config.norm,
        eps=config.eps,
        norm_first=config.norm_first,
        dropout=config.dropout,
    )


class Stack(nn.Module):
    """An encoder or a decoder: tokens are embedded, placed, and run through blocks.

    Args:
        config: The configuration of the model.
        stack: ``"encoder"`` or ``"decoder"``.
        embeds: Whether it has an embedding; the decoder of two is given embedded tokens.
    """

    gradient_checkpointing = False
    _gradient_checkpointing_func: Any

    def __init__(self, config: HeadwiseConfig, stack: str, *, embeds: bool = True) -> None:
        super().__init__()
        width, count = config.d_model, config.layers_of(stack)
        norm = _NORMS[config.norm]
        self.stack = stack if embeds else "decoder of two"
        self.width = width
        self.dropout = config.dropout
        self.scale = width**0.5 if config.scale_embeddings else None
        self.tokens = nn.Embedding(config.vocab_size, width) if embeds else None
        has_segments = embeds and config.num_segments > 0
        self.segments = nn.Embedding(config.num_segments, width) if has_segments else None
        self.positions = make_added_positions(config.positions, config.max_positions, width)
        self.embedding_norm = norm(width, config.eps) if config.embedding_norm else None
        self.blocks = nn.ModuleList(make_block(config, stack, layer) for layer in range(count))
        self.final_norm = norm(width, config.eps) if config.norm_first else None

    def embed(self, input_ids: Tensor) -> Tensor:
        """Return the embedding of tokens, (batch, length, d_model)."""
        assert self.tokens is not None
        check_ids(input_ids)
        found: Tensor = self.tokens(input_ids)
        return found if self.scale is None else found * self.scale

    @tuple_if_asked
    def forward(
        self,
        input_ids: Tensor | None = None,
        attention_mask: Tensor | None = None,
        token_type_ids: Tensor | None = None,
        position_ids: Tensor | None = None,
        inputs_embeds: Tensor | None = None,
        *,
        memory: Tensor | None = None,
        memory_mask: Tensor | None = None,
        cache: Cache | None = None,
        output_hidden_states: bool = False,
        output_attentions: bool = False,
    ) -> BaseModelOutputWithPastAndCrossAttentions:
        """Return the hidden states of (batch, length) tokens; arguments as in ``HeadwiseModel``."""
        check_one_input(input_ids, inputs_embeds, self.stack, self.width)
        x: Any = inputs_embeds if input_ids is None else self.embed(input_ids)
        seen = Seen(output_hidden_states, output_attentions)
        with nullcontext(0) if cache is None else cache.one_pass(len(self.blocks)) as held:
            real = real_tokens("attention_mask", attention_mask, x.shape[0], held + x.shape[1])
            start = first_place(real, position_ids, x.shape[0], x.shape[1], cache)
            x = self._embedded(x, token_type_ids, start)
            given: dict[str, Any] = {"kv_mask": real, "memory_mask": memory_mask}
            if cache is not None:
                given["cache"] = cache.store
                given["memory_cache"] = None if memory is None else cache.memory
            moved = isinstance(start, Tensor) or start != held
            for layer, block in enumerate(cast(list[TransformerBlock], self.blocks)):
                seen.state(x)
                at = start if moved and needs_places(block.attention) else None
                run: Callable[..., Any] = partial(
                    run_block, block, shows=output_attentions, q_offset=at, layer=layer, **given
                )
                if self.gradient_checkpointing and self.training and torch.is_grad_enabled():
                    x, *weights = self._gradient_checkpointing_func(run, x, memory)
                else:
                    x, *weights = run(x, memory)
                seen.weights(weights)
        if self.final_norm is not None:
            x = self.final_norm(x)
        seen.state(x)
        return BaseModelOutputWithPastAndCrossAttentions(
            last_hidden_state=x, cache=cache, **seen.outputs()
        )

    def _embedded(self, x: Tensor, token_type_ids: Tensor | None, start: int | Tensor) -> Tensor:
        """Add segments and positions, then norm and dropout."""
        if self.segments is None:
            refuse_unread("the configuration has num_segments=0", token_type_ids=token_type_ids)
        elif token_type_ids is None:
            x = x + self.segments.weight[0]
        else:
            x = x + self.segments(token_type_ids)
        if self.positions is not None:
            x = self.positions(x, start)
        if self.embedding_norm is not None:
            x = self.embedding_norm(x)
        return functional.dropout(x, self.dropout, self.training)


class HeadwisePreTrainedModel(PreTrainedModel):  # type: ignore[no-untyped-call]
    """What all models have in common: loading, saving, and how new weights are drawn."""

    config: HeadwiseConfig
    config_class = HeadwiseConfig
    base_model_prefix = "model"
    main_input_name = "input_ids"
    supports_gradient_checkpointing = True
    _no_split_modules = _WHOLE

    def __init__(self, config: HeadwiseConfig) -> None:
        check_config(type(self).__name__, config)
        super().__init__(config)

    @property
    def headless(self) -> "HeadwiseModel":
        """The model without its head."""
        return cast(HeadwiseModel, self.base_model)

    @override
    def post_init(self) -> None:
        super().post_init()  # type: ignore[no-untyped-call]

    @override
    def get_input_embeddings(self) -> Any:
        return self.headless.first.tokens

    @override
    def set_input_embeddings(self, value: Any) -> None:
        self.headless.first.tokens = value

    @override
    def get_encoder(self, *args: Any, **kwargs: Any) -> Any:
        return self.headless.encoder

    @override
    def get_decoder(self, *args: Any, **kwargs: Any) -> Any:
        return self.headless.decoder

    @torch.no_grad()
    @override
    def _init_weights(self, module: nn.Module) -> None:
        super()._init_weights(module)  # type: ignore[no-untyped-call]
        if isinstance(module, Learned | RelativeBias):
            init.normal_(module.weight, std=self.config.initializer_range)
        elif isinstance(module, LengthProjection):
            module.reset_parameters()
        elif isinstance(module, MultiHeadAttention) and module.sinks is not None:
            init.zeros_(module.sinks)


class HeadwiseModel(HeadwisePreTrainedModel):  # type: ignore[no-untyped-call]
    """An encoder, a decoder, or both, without a head; what they are is in the configuration.

    Args:
        config: Sizes and attention.

    Raises:
        TypeError: Another configuration; otherwise as ``HeadwiseConfig`` and the layers.

    Example:
        >>> import torch, headwise as hw
        >>> config = hw.models.longformer(window=8, vocab_size=50, d_model=16, num_heads=2)
        >>> model = hw.models.HeadwiseModel(config)
        >>> model(torch.randint(50, (2, 30))).last_hidden_state.shape
        torch.Size([2, 30, 16])
    """

    def __init__(self, config: HeadwiseConfig) -> None:
        super().__init__(config)
        two = config.is_encoder_decoder
        self.encoder = None if config.kind == "decoder" else Stack(config, "encoder")
        self.decoder = (
            None if config.kind == "encoder" else Stack(config, "decoder", embeds=not two)
        )
        self.post_init()

    @property
    def first(self) -> Stack:
        """The stack that has the embedding."""
        found = self.decoder if self.encoder is None else self.encoder
        assert found is not None
        return found

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
        cache: Cache | None = None,
        use_cache: bool | None = None,
        output_hidden_states: bool | None = None,
        output_attentions: bool | None = None,
    ) -> Any:
        """Return the last hidden states, and what else is asked for.

        Args:
            input_ids: (batch, length) token numbers, of the source where there are two stacks.
            attention_mask: (batch, tokens in the cache + length), 1 or ``True`` = real token.
            decoder_input_ids: (batch, length) token numbers of the target.
            decoder_attention_mask: As ``attention_mask``, of the target.
            token_type_ids: (batch, length) segments; ``None`` = all in segment 0.
            position_ids: (batch, length), counting up by one; ``None`` = from the first real token
                of each sample.
            decoder_position_ids: As ``position_ids``, of the target.
            inputs_embeds: (batch, length, d_model) in place of ``input_ids``, used as they are.
            decoder_inputs_embeds: In place of ``decoder_input_ids``.
            encoder_outputs: What the encoder returned before, in place of running it.
            cache: Where the decoder keeps keys and values.
            use_cache: Whether it makes a cache where none is given; ``None`` = as the
                configuration says, and never in training or in a compiled graph.
            output_hidden_states: Whether to return the embedded tokens and what each block made.
            output_attentions: Whether to return the exact weights, computed beside the fast path.

        Returns:
            A ``BaseModelOutputWithPastAndCrossAttentions``, or a ``Seq2SeqModelOutput`` of two
            stacks; a tuple with ``return_dict=False``.

        Raises:
            TypeError: Arguments that nothing would read, or no tokens.
            PatternError: Masks or positions that do not fit the call.
            CacheError: A cache of other models, or one that refuses.
            NotImplementedError: Weights that cannot be had.
        """
        check_cache(cache)
        shown: dict[str, Any] = {
            "output_hidden_states": self._asked("output_hidden_states", output_hidden_states),
            "output_attentions": self._asked("output_attentions", output_attentions),
        }
        if self.decoder is not None:
            cache = self._cache(cache, use_cache)
        source = (input_ids, attention_mask, token_type_ids, position_ids, inputs_embeds)
        if self.encoder is None or self.decoder is None:
            refuse_unread(
                f"the configuration has kind={self.config.kind!r}",
                decoder_input_ids=decoder_input_ids,
                decoder_attention_mask=decoder_attention_mask,
                decoder_position_ids=decoder_position_ids,
                decoder_inputs_embeds=decoder_inputs_embeds,
                encoder_outputs=encoder_outputs,
                cache=None if self.encoder is None else cache,
            )
            return self.first(*source, cache=cache, **shown)
        if encoder_outputs is None:
            encoder_outputs = self.encoder(*source, **shown)
        else:
            refuse_unread(
                "encoder_outputs are given, and are what the decoder reads",
                input_ids=input_ids,
                inputs_embeds=inputs_embeds,
            )
        memory = encoder_outputs[0]
        if decoder_input_ids is not None and decoder_inputs_embeds is None:
            decoder_inputs_embeds = self.encoder.embed(decoder_input_ids)
        target = self.decoder(
            None,
            decoder_attention_mask,
            None,
            decoder_position_ids,
            decoder_inputs_embeds,
            memory=memory,
            memory_mask=real_tokens("attention_mask", attention_mask, *memory.shape[:2]),
            cache=cache,
            **shown,
        )
        return Seq2SeqModelOutput(
            last_hidden_state=target.last_hidden_state,
            cache=target.cache,
            decoder_hidden_states=target.hidden_states,
            decoder_attentions=target.attentions,
            cross_attentions=target.cross_attentions,
            encoder_last_hidden_state=memory,
            encoder_hidden_states=getattr(encoder_outputs, "hidden_states", None),
            encoder_attentions=getattr(encoder_outputs, "attentions", None),
        )

    def _asked(self, name: str, given: bool | None) -> bool:
        return bool(getattr(self.config, name) if given is None else given)

    def _cache(self, given: Cache | None, wanted: bool | None) -> Cache | None:
        if wanted is None:
            wanted = self.config.use_cache and not self.training
            wanted = wanted and not torch.compiler.is_compiling()
        if given is None:
            given = Cache() if wanted else None
        if given is not None and self.training and self.first.gradient_checkpointing:
            raise CacheError(
                "HeadwiseModel: a block that is run twice would append its tokens twice, and "
                "gradient checkpointing is on with a cache\n"
                "  hint: use_cache=False in training, or model.eval()"
            )
        return given
