"""The configuration of a model: its sizes, and which attention it has, layer by layer."""

from dataclasses import fields
from difflib import get_close_matches
from typing import Any, ClassVar, no_type_check

from transformers import GenerationConfig, PreTrainedConfig

from headwise._checks import is_int
from headwise.errors import PatternError, ShapeError
from headwise.models.settings import (
    follows_length,
    mechanism_settings,
    pattern_text,
    positions_settings,
)
from headwise.nn.arguments import check_counts, check_dropout
from headwise.patterns import Pattern, parse
from headwise.positions.bases import is_number

KINDS = ("encoder", "decoder", "encoder_decoder")
_CALLER = "HeadwiseConfig"
_CHOICES = {
    "kind": KINDS,
    "norm": ("layer", "rms"),
    "activation": ("relu", "gelu", "gelu_tanh", "silu"),
    "pooling": (None, "first", "last", "mean"),
    "problem_type": (
        *(None, "regression"),
        *("single_label_classification", "multi_label_classification"),
    ),
}
_FLAGS = (
    *("gated", "bias", "norm_first", "embedding_norm", "scale_embeddings", "qk_norm", "sinks"),
    *("lm_bias", "lm_transform", "pooler", "tie_word_embeddings", "use_cache"),
)
_SIZES = ("vocab_size", "d_model", "num_layers", "num_heads", "max_positions")
_TOKENS = ("pad_token_id", "bos_token_id", "eos_token_id", "decoder_start_token_id")
_SIZES_OR_NONE = ("encoder_layers", "num_kv_heads", "head_dim", "hidden_dim")
# What transformers itself hands to a configuration beside its fields.
_OF_TRANSFORMERS = (
    *("torch_dtype", "name_or_path", "output_attentions", "attn_implementation", "num_labels"),
    *("experts_implementation", "per_layer_config", "quantization_config", "auto_map"),
    *("model_type", "base_model_prefix"),
)


# Fields are checked by settle, in the words of headwise.
@no_type_check
class HeadwiseConfig(PreTrainedConfig):  # type: ignore[no-untyped-call]
    """Sizes of a Transformer, and which attention it has; all of it goes through JSON and back.

    Patterns are given as objects or as text (``headwise.patterns.parse``) and kept as text.
    Mechanisms and positions are dictionaries: a ``kind``, and the arguments of its class that are
    numbers or names. A list for ``pattern`` or ``mechanism`` has one entry for each layer.

    Args:
        kind: ``"encoder"``, ``"decoder"`` (causal) or ``"encoder_decoder"``.
        vocab_size: Tokens of the vocabulary.
        d_model: Width of the model.
        num_layers: Blocks; of the decoder where there are two stacks.
        encoder_layers: Blocks of the encoder of two; ``None`` = ``num_layers``.
        num_heads: Query heads.
        num_kv_heads: Key/value heads of self-attention; ``None`` = ``num_heads``.
        head_dim: Width of a head; ``None`` = ``d_model // num_heads``.
        hidden_dim: Inner width of the feed-forward parts; ``None`` = ``4 * d_model``.
        activation: ``"relu"``, ``"gelu"``, ``"gelu_tanh"`` or ``"silu"``.
        gated: Whether they are gated, see ``headwise.nn.FeedForward``.
        bias: Whether their linear layers have a bias.
        attention_bias: Whether the projections have one; ``None`` = ``bias``.
        norm: ``"layer"`` or ``"rms"``.
        eps: What norms add to the variance.
        norm_first: Whether norms stand before the parts, with one more behind the last block.
        embedding_norm: Whether embedded tokens are normalised.
        scale_embeddings: Whether embeddings are multiplied by ``d_model ** 0.5``.
        num_segments: Kinds of ``token_type_ids``; 0 = none.
        positions: Where tokens stand: ``learned``, ``sinusoidal``, ``rotary``, ``alibi``,
            ``relative`` (the kind alone, or a dictionary with it); ``None`` = the model does not
            know. Padding in front of a sample is not counted.
        max_positions: The longest text for learned positions and low-rank attention.
        pattern: Who may attend to whom; a decoder joins it with ``Causal()``.
        mechanism: How tokens are mixed: ``{"kind": "linear", "feature_map": "elu"}``,
            ``{"kind": "random_features", "count": 256}``, ``{"kind": "low_rank", "rank": 64}``;
            ``None`` = softmax attention.
        encoder_pattern: As ``pattern``, of the encoder of two stacks.
        encoder_mechanism: As ``mechanism``, likewise.
        cross_mechanism: As ``mechanism``, of all cross attention.
        qk_norm: Whether queries and keys are normalised per head.
        softcap: Cap of the scores.
        sinks: Whether each head learns a sink.
        dropout: Share of embeddings and of what each part adds that is dropped in training.
        attention_dropout: Share of weights, likewise.
        activation_dropout: Share of inner numbers of feed-forward parts, likewise.
        lm_bias: Whether the language-model head has a bias.
        lm_transform: Whether it has a linear layer with activation and norm in front.
        pooling: Which token a classifier reads: ``"first"``, ``"last"`` (real ones), or their
            ``"mean"``; ``None`` = the first of an encoder, the last of a decoder.
        pooler: Whether a linear layer and a tanh stand before the classifier.
        initializer_range: Spread of new weights.
        tie_word_embeddings: Whether the language-model head has the weights of the embedding.
        use_cache: Whether a decoder in evaluation keeps keys and values unless told otherwise.
        pad_token_id: The token of padding.
        bos_token_id: That of the beginning.
        eos_token_id: That of the end; may be several.
        decoder_start_token_id: What the decoder of two stacks starts with.

    Raises:
        ShapeError: Sizes that are no ints of at least 1, lists of another length than layers.
        ValueError: Names that there are not, numbers out of range, settings of no use.
        TypeError: Flags that are neither ``True`` nor ``False``, arguments that there are not.
        PatternError: Text that is no pattern, or a pattern that text cannot hold.

    Example:
        >>> import headwise as hw
        >>> config = hw.models.HeadwiseConfig(
        ...     num_layers=2, pattern=[hw.Window(63, 0), None], mechanism=[None, "linear"]
        ... )
        >>> config.pattern
        ['Window(left=63, right=0, dilation=1)', None]
        >>> config.mechanism
        [None, {'kind': 'linear', 'feature_map': 'elu'}]
    """

    model_type = "headwise"
    attribute_map: ClassVar[dict[str, str]] = {
        "hidden_size": "d_model",
        "intermediate_size": "hidden_dim",
        "num_attention_heads": "num_heads",
        "num_key_value_heads": "num_kv_heads",
        "num_hidden_layers": "num_layers",
        "max_position_embeddings": "max_positions",
        "type_vocab_size": "num_segments",
    }
    keys_to_ignore_at_inference: ClassVar[list[str]] = ["cache"]

    kind: str = "decoder"
    vocab_size: int = 32000
    d_model: int = 512
    num_layers: int = 6
    encoder_layers: int | None = None
    num_heads: int = 8
    num_kv_heads: int | None = None
    head_dim: int | None = None
    hidden_dim: int | None = None
    activation: str = "gelu"
    gated: bool = False
    bias: bool = True
    attention_bias: bool | None = None
    norm: str = "layer"
    eps: float = 1e-5
    norm_first: bool = True
    embedding_norm: bool = False
    scale_embeddings: bool = False
    num_segments: int = 0
    positions: str | dict[str, Any] | None = "rotary"
    max_positions: int = 2048
    pattern: Any = None
    mechanism: Any = None
    encoder_pattern: Any = None
    encoder_mechanism: Any = None
    cross_mechanism: str | dict[str, Any] | None = None
    qk_norm: bool = False
    softcap: float | None = None
    sinks: bool = False
    dropout: float = 0.0
    attention_dropout: float = 0.0
    activation_dropout: float = 0.0
    lm_bias: bool = False
    lm_transform: bool = False
    pooling: str | None = None
    pooler: bool = False
    initializer_range: float = 0.02
    tie_word_embeddings: bool = True
    use_cache: bool = True
    pad_token_id: int | None = None
    bos_token_id: int | None = None
    eos_token_id: int | list[int] | None = None
    decoder_start_token_id: int | None = None

    def __post_init__(self, **kwargs: Any) -> None:
        """Take further arguments of transformers, then settle all."""
        _refuse_unknown(kwargs)
        super().__post_init__(**kwargs)  # type: ignore[no-untyped-call]
        self.settle()

    def settle(self) -> None:
        """Bring settings into the form that is saved, and refuse those of no use.

        Models call it again when they are made, for settings may be changed after construction.
        """
        _check_numbers(self)
        _check_tokens(self)
        self.is_encoder_decoder = self.kind == "encoder_decoder"
        self.positions = positions_settings(self.positions)
        self.cross_mechanism = mechanism_settings("cross_mechanism", self.cross_mechanism)
        if not self.is_encoder_decoder:
            _refuse_of_two(self)
        for name, count in (("", self.num_layers), ("encoder_", self.layers_of("encoder"))):
            for what, read in (("pattern", pattern_text), ("mechanism", mechanism_settings)):
                given = getattr(self, name + what)
                setattr(self, name + what, _each(name + what, given, count, read))
        if self.kind != "encoder":
            _check_causal(self)

    def layers_of(self, stack: str) -> int:
        """Return the number of blocks of ``"encoder"`` or ``"decoder"``."""
        own = self.encoder_layers if stack == "encoder" else None
        return self.num_layers if own is None else own

    def attention_of(self, stack: str, layer: int) -> tuple[Pattern | None, dict[str, Any] | None]:
        """Return the pattern and the mechanism of a layer of a stack."""
        name = "encoder_" if self.is_encoder_decoder and stack == "encoder" else ""
        pattern, mechanism = (getattr(self, name + what) for what in ("pattern", "mechanism"))
        text = pattern[layer] if isinstance(pattern, list) else pattern
        settings = mechanism[layer] if isinstance(mechanism, list) else mechanism
        return None if text is None else parse(text), settings


def _each(name: str, given: Any, layers: int, read: Any) -> Any:
    """Settle a setting of all layers, or a list of one for each."""
    if not isinstance(given, list | tuple):
        return read(name, given)
    if len(given) != layers:
        raise ShapeError(
            f"{_CALLER}: {name} must have one entry for each layer, got {len(given)} for {layers}\n"
            "  hint: one value that is no list goes for all layers; None in a list leaves one out"
        )
    return [read(f"{name}[{layer}]", each) for layer, each in enumerate(given)]


def _check_numbers(config: HeadwiseConfig) -> None:
    for name, known in _CHOICES.items():
        if getattr(config, name) not in known:
            raise ValueError(
                f"{_CALLER}: {name} must be one of {', '.join(map(repr, known))}, "
                f"got {getattr(config, name)!r}\n"
                "  hint: help(headwise.models.HeadwiseConfig) says what each means"
            )
    for name in _FLAGS if config.attention_bias is None else (*_FLAGS, "attention_bias"):
        _check_flag(name, getattr(config, name))
    optional = {name: getattr(config, name) for name in _SIZES_OR_NONE}
    optional["num_segments"] = config.num_segments or None
    required = {name: 0 if (size := getattr(config, name)) is None else size for name in _SIZES}
    check_counts(_CALLER, **required, **optional)
    if config.head_dim is None and config.d_model % config.num_heads:
        raise ShapeError(
            f"{_CALLER}: num_heads must divide d_model, got {config.num_heads} and "
            f"{config.d_model}\n  hint: choose another number of heads, or give head_dim"
        )
    for name in ("dropout", "attention_dropout", "activation_dropout"):
        try:
            check_dropout(_CALLER, getattr(config, name))
        except ValueError as wrong:
            raise ValueError(str(wrong).replace(" dropout must", f" {name} must")) from None
    spread = config.initializer_range
    if not is_number(spread) or spread < 0:
        raise ValueError(
            f"{_CALLER}: initializer_range must be a finite number of at least 0, got {spread!r}\n"
            "  hint: 0.02 is usual"
        )


def _check_flag(name: str, flag: object) -> None:
    if not isinstance(flag, bool):
        raise TypeError(
            f"{_CALLER}: {name} must be True or False, got {flag!r}\n"
            "  hint: in JSON they are written true and false"
        )


def _check_tokens(config: HeadwiseConfig) -> None:
    for name in _TOKENS:
        given = getattr(config, name)
        listed = given if isinstance(given, list) and name == "eos_token_id" else [given]
        if not all(token is None or is_int(token) for token in listed):
            raise TypeError(
                f"{_CALLER}: {name} must be the number of a token, got {given!r}\n"
                "  hint: tokenizer.convert_tokens_to_ids(token) tells it; None = there is none"
            )


def _check_causal(config: HeadwiseConfig) -> None:
    """Refuse a decoder whose tokens would see what comes after them, or not what a cache holds."""
    several = isinstance(config.pattern, list) or isinstance(config.mechanism, list)
    for layer in range(config.num_layers if several else 1):
        pattern, mechanism = config.attention_of("decoder", layer)
        if mechanism is not None and mechanism["kind"] == "low_rank":
            raise ValueError(
                f"{_CALLER}: low-rank attention is not causal, and layer {layer} is one of a "
                "decoder\n"
                '  hint: for decoders {"kind": "linear"} or a window; low rank is for encoders, '
                "encoder_mechanism= and cross_mechanism="
            )
        if pattern is not None and follows_length(pattern):
            raise PatternError(
                f"{_CALLER}: the pattern of layer {layer} changes as the text grows, so that a "
                f"step would not see what a whole pass sees, got {pattern}\n"
                f"  hint: fix its end with length={config.max_positions}"
            )


def _refuse_of_two(config: HeadwiseConfig) -> None:
    names = ("encoder_layers", "encoder_pattern", "encoder_mechanism", "cross_mechanism")
    given = [name for name in names if getattr(config, name) is not None]
    if given:
        raise ValueError(
            f"{_CALLER}: {', '.join(given)} is for kind='encoder_decoder', got {config.kind!r}\n"
            "  hint: pattern= and mechanism= are those of the only stack"
        )


def _refuse_unknown(given: dict[str, Any]) -> None:
    if not given:
        return
    known = {*(field.name for field in fields(HeadwiseConfig)), *HeadwiseConfig.attribute_map}
    generation = vars(GenerationConfig())  # type: ignore[no-untyped-call]
    for name in given:
        if name in known or name in generation or name in _OF_TRANSFORMERS or name.startswith("_"):
            continue
        near = get_close_matches(name, known, 1)
        meant = f"is it {near[0]}? " if near else ""
        raise TypeError(
            f"{_CALLER}: there is no argument {name}\n"
            f"  hint: {meant}help(headwise.models.HeadwiseConfig) lists those there are"
        )
