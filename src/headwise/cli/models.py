"""Opens transformers models by folder or hub id, as the kind of model that a command needs."""

from dataclasses import dataclass
from typing import Any

from headwise.cli.failures import WrongInput
from headwise.cli.loading import load, place_of, refusing
from headwise.cli.output import waiting
from headwise.cli.packages import require_transformers

# Their first positions, up to that of padding, are never a token's.
_RESERVING = (
    "camembert",
    "data2vec-text",
    "longformer",
    "mpnet",
    "roberta",
    "roberta-prelayernorm",
    "xlm-roberta",
    "xlm-roberta-xl",
    "xmod",
)
_NEVER = 1 << 40


@dataclass(frozen=True)
class Source:
    """A model whose configuration and tokenizer are open, its weights not yet.

    Attributes:
        name: The folder or hub id.
        config: Its transformers configuration.
        tokenizer: Its transformers tokenizer.
    """

    name: str
    config: Any
    tokenizer: Any

    @property
    def is_pair(self) -> bool:
        """Whether an encoder reads a source, and a decoder writes from what it made of it."""
        return bool(self.config.is_encoder_decoder)

    @property
    def context(self) -> int | None:
        """The most tokens that the model takes at once; ``None`` where it names no limit."""
        # Of pairs that are made of two models it is the encoder's.
        part = getattr(self.config, "encoder", None) or self.config.get_text_config()
        positions = positions_of(part)
        known = [
            limit
            for limit in (positions, self.tokenizer.model_max_length)
            if limit is not None and limit < _NEVER
        ]
        return min(known) if known else None

    @property
    def target_context(self) -> int | None:
        """The most tokens that the decoder of a pair writes; ``None`` where it names no limit."""
        decoder = self.config.get_text_config(decoder=True)
        return positions_of(decoder, "max_decoder_position_embeddings")


def positions_of(config: Any, named: str = "max_encoder_position_embeddings") -> int | None:
    """Return how many tokens a model has positions for; ``None`` where it names no limit.

    Args:
        config: Configuration of the model, or of its part.
        named: What holds the number where encoder and decoder differ.
    """
    whole = getattr(config, "max_position_embeddings", None)
    positions: int | None = getattr(config, named, whole)
    if positions is None or positions < 1:
        return None
    if config.model_type in _RESERVING:
        positions -= (config.pad_token_id or 0) + 1
    return positions


def source(model: str) -> Source:
    """Open configuration and tokenizer of a folder or hub id.

    Raises:
        WrongInput: There is no such model, or transformers cannot read it.
        Unable: transformers is not installed.
    """
    place = place_of(model)
    transformers = require_transformers()
    with refusing(model), waiting(f"Opening {model}"):
        config = transformers.AutoConfig.from_pretrained(place, trust_remote_code=False)
        try:
            tokenizer = transformers.AutoTokenizer.from_pretrained(place, trust_remote_code=False)
        except ValueError as error:
            # It announces its reasons on the first line, and gives them on the others.
            raise WrongInput(
                f"cannot open the tokenizer of {model}: {' '.join(str(error).split())}"
            ) from error
    return Source(model, config, tokenizer)


def text_model(opened: Source, attention: str = "headwise", *, accelerated: bool = False) -> Any:
    """Load a model that writes, in float32: on after a text, or from a source.

    Args:
        opened: The model.
        attention: The attention it is loaded with.
        accelerated: Whether the caller accelerates it, so that its attention is chosen then.

    Raises:
        WrongInput: It is of another kind, or headwise does not serve it.
    """
    transformers = require_transformers()
    if opened.is_pair:
        known = transformers.MODEL_FOR_SEQ_TO_SEQ_CAUSAL_LM_MAPPING
        auto = transformers.AutoModelForSeq2SeqLM
    else:
        known = transformers.MODEL_FOR_CAUSAL_LM_MAPPING
        auto = transformers.AutoModelForCausalLM
    kind = opened.config.model_type
    writers = [known[type(opened.config)].__name__] if type(opened.config) in known else []
    held = opened.config.architectures or writers
    if not set(held) & set(writers):
        raise WrongInput(
            f"{opened.name} holds {', '.join(held) or kind}, which does not continue text; name a "
            "decoder such as a Llama or GPT-2, or a model that writes from a source such as a T5 "
            "or Marian"
        )
    return load(opened.name, opened.config, auto, attention, accelerated=accelerated)


def encoder(opened: Source, attention: str = "headwise", *, accelerated: bool = False) -> Any:
    """Load a model that turns tokens into vectors, in float32; of a pair its encoder.

    Args:
        opened: The model.
        attention: The attention it is loaded with.
        accelerated: Whether the caller accelerates it, so that its attention is chosen then.

    Raises:
        WrongInput: It is of another kind, or headwise does not serve it.
    """
    transformers = require_transformers()
    config = opened.config
    reason = _why_no_vectors(transformers, config)
    if reason is not None:
        article = "an" if config.model_type[0] in "aeiou" else "a"
        raise WrongInput(
            f"{opened.name} is {article} {config.model_type} model, which {reason}; name an "
            "encoder, such as a BERT"
        )
    auto = transformers.AutoModel
    known = transformers.MODEL_FOR_TEXT_ENCODING_MAPPING
    if type(config) in known:
        alone = known[type(config)].__name__ in (config.architectures or ())
        auto = transformers.AutoModelForTextEncoding if alone or opened.is_pair else auto
    model = load(opened.name, config, auto, attention, accelerated=accelerated)
    return model.get_encoder() if opened.is_pair else model


def _why_no_vectors(transformers: Any, config: Any) -> str | None:
    """Say why a model has no vectors for sentences; ``None`` where it has some."""
    kind = type(config)
    if kind not in transformers.MODEL_MAPPING or hasattr(config, "vision_config"):
        return "gives no sentence vectors"
    taken = getattr(transformers.MODEL_MAPPING[kind], "main_input_name", "input_ids")
    if taken != "input_ids":
        return f"takes {taken} and no text"
    writes = kind in transformers.MODEL_FOR_CAUSAL_LM_MAPPING and not config.is_encoder_decoder
    both_ways = kind in transformers.MODEL_FOR_MASKED_LM_MAPPING or getattr(
        config, "use_bidirectional_attention", False
    )
    if writes and not both_ways:
        return "reads from left to right only: the mean of its token vectors says little"
    return None
