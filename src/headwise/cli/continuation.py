"""Lets a model write, token by token, and takes the time."""

import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from headwise.cli.cache_kinds import CacheKind
from headwise.cli.models import Source
from headwise.cli.packages import require_transformers
from headwise.cli.streaming import Streamer
from headwise.ops import tally

# What a model's own settings say of single tokens; what they say of draws and searches is left.
_TOKEN_RULES = (
    "decoder_start_token_id",
    "forced_bos_token_id",
    "forced_eos_token_id",
    "bad_words_ids",
    "suppress_tokens",
    "begin_suppress_tokens",
)


@dataclass(frozen=True)
class Sampling:
    """How the next token is chosen: the likeliest, unless one of these is given.

    Attributes:
        temperature: Divides the scores before the draw; ``None`` means 1, and 0 the likeliest.
        top_k: Draw among that many likeliest tokens; ``None`` means all.
        top_p: Draw among the likeliest tokens that reach that share; ``None`` means all.
        seed: Of the draw; ``None`` leaves torch's generator as it is.
        beams: How many texts are kept at once, of which the likeliest is taken.
        first_token: The token that must come first; ``None`` = the one that the model's own
            settings force, if any.
    """

    temperature: float | None = None
    top_k: int | None = None
    top_p: float | None = None
    seed: int | None = None
    beams: int = 1
    first_token: int | None = None

    @property
    def draws(self) -> bool:
        """Whether tokens are drawn at all."""
        chosen = (self.temperature, self.top_k, self.top_p)
        return self.temperature != 0 and any(choice is not None for choice in chosen)


@dataclass(frozen=True)
class Continuation:
    """What a model wrote, and how long it took.

    Attributes:
        text: What it wrote, without the prompt and without special tokens.
        tokens: The same as token ids, with the one that ended it.
        ended: Whether the model ended the text itself; otherwise the room was used up.
        prompt_tokens: Tokens of the prompt or source.
        prefill_seconds: From the start to the first new token.
        decode_seconds: From the first new token to the last.
        cache_bytes: Size of the key/value cache at the end; ``None`` without a cache.
        cache_tokens: How many tokens it has taken; ``None`` without a cache.
        prefill_backends: How many attention calls each backend took up to the first new token.
        decode_backends: The same for the other tokens.
    """

    text: str
    tokens: list[int]
    ended: bool
    prompt_tokens: int
    prefill_seconds: float
    decode_seconds: float
    cache_bytes: int | None
    cache_tokens: int | None
    prefill_backends: Counter[str]
    decode_backends: Counter[str]


def continue_text(
    model: Any,
    opened: Source,
    prompt: Any,
    *,
    max_new_tokens: int,
    sampling: Sampling,
    cache_kind: CacheKind | None,
    emit: Callable[[str], None],
) -> Continuation:
    """Write on after ``prompt``, or from it as the source, and hand out the text as it comes.

    Args:
        model: A model of transformers that writes.
        opened: Where its tokenizer is.
        prompt: What the tokenizer returned for one text, as tensors.
        max_new_tokens: The most tokens to write.
        sampling: How the next token is chosen.
        cache_kind: How keys and values are kept between tokens; ``None`` = not at all, so that
            everything is computed anew for each.
        emit: Called with text that is complete; a character is never cut. With several beams it
            is called once, at the end.
    """
    prompt_tokens = int(prompt["input_ids"].shape[1])
    given = 1 if opened.is_pair else prompt_tokens
    cache = None
    if cache_kind is not None:
        cache = cache_kind.build(model.config, given + max_new_tokens)
        if opened.is_pair:
            cache = cache_kind.joined(cache, model.config, prompt_tokens)
    model.generation_config = _settings(model.generation_config, max_new_tokens, sampling)
    if sampling.seed is not None:
        torch.manual_seed(sampling.seed)
    with tally() as ran:
        clock = _Clock(ran)
        streamer = Streamer(opened.tokenizer, emit) if sampling.beams == 1 else None
        started = time.perf_counter()
        written = model.generate(
            **prompt,
            streamer=streamer,
            stopping_criteria=require_transformers().StoppingCriteriaList([clock]),
            use_cache=cache is not None,
            **({} if cache is None else {"cache": cache}),
        )
    tokens = written[0, given:].tolist()
    if streamer is None:
        streamer = Streamer(opened.tokenizer, emit)
        streamer.write(tokens)
    ends = model.generation_config.eos_token_id
    ends = ends if isinstance(ends, list) else [ends]
    return Continuation(
        text=streamer.text,
        tokens=tokens,
        ended=tokens[-1] in ends,
        prompt_tokens=prompt_tokens,
        prefill_seconds=clock.first - started,
        decode_seconds=clock.last - clock.first,
        cache_bytes=None if cache is None else _bytes(cache),
        cache_tokens=None if cache is None else cache.get_seq_length(),
        prefill_backends=clock.ran_first,
        decode_backends=ran - clock.ran_first,
    )


def _settings(own: Any, max_new_tokens: int, sampling: Sampling) -> Any:
    """Return generation settings that hold only what was asked for and the model's token ids."""
    chosen: dict[str, Any] = {"do_sample": sampling.draws, "num_beams": sampling.beams}
    if sampling.draws:
        chosen["temperature"] = 1.0 if sampling.temperature is None else sampling.temperature
        chosen["top_k"] = 0 if sampling.top_k is None else sampling.top_k
        chosen["top_p"] = 1.0 if sampling.top_p is None else sampling.top_p
    chosen |= {rule: getattr(own, rule, None) for rule in _TOKEN_RULES}
    if sampling.first_token is not None:
        chosen["forced_bos_token_id"] = sampling.first_token
    padding = own.eos_token_id if own.pad_token_id is None else own.pad_token_id
    return require_transformers().GenerationConfig(
        max_new_tokens=max_new_tokens,
        bos_token_id=own.bos_token_id,
        eos_token_id=own.eos_token_id,
        pad_token_id=padding[0] if isinstance(padding, list) else padding,
        **chosen,
    )


def _bytes(cache: Any) -> int:
    parts = [cache]
    if hasattr(cache, "cross_attention_cache"):
        parts = [cache.self_attention_cache, cache.cross_attention_cache]
    return sum(part.nbytes for part in parts)


class _Clock:
    """Is asked by ``generate`` after every token whether to stop, and looks at the time."""

    def __init__(self, ran: Counter[str]) -> None:
        self._ran = ran
        self._started = False
        self.first = self.last = 0.0
        self.ran_first: Counter[str] = Counter()

    def __call__(self, tokens: Tensor, scores: object, **_: object) -> Tensor:
        self.last = time.perf_counter()
        if not self._started:
            self._started, self.first = True, self.last
            self.ran_first = self._ran.copy()
        return tokens.new_zeros(tokens.shape[0], dtype=torch.bool)
