"""Continues a text with a model, token by token, and takes the time."""

import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch

from headwise.cli.cache_kinds import CacheKind
from headwise.cli.models import Source
from headwise.cli.packages import require_transformers
from headwise.ops import tally


@dataclass(frozen=True)
class Sampling:
    """How the next token is chosen: the likeliest, unless one of these is given.

    Attributes:
        temperature: Divides the scores before the draw; ``None`` means 1, and 0 the likeliest.
        top_k: Draw among that many likeliest tokens; ``None`` means all.
        top_p: Draw among the likeliest tokens that reach that share; ``None`` means all.
        seed: Of the draw; ``None`` leaves torch's generator as it is.
    """

    temperature: float | None = None
    top_k: int | None = None
    top_p: float | None = None
    seed: int | None = None

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
        prompt_tokens: Tokens of the prompt.
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
    """Write on after ``prompt`` and hand each piece of text to ``emit`` as it is produced.

    Args:
        model: A causal language model of transformers.
        opened: Where its tokenizer is.
        prompt: What the tokenizer returned for one text, as tensors.
        max_new_tokens: The most tokens to write.
        sampling: How the next token is chosen.
        cache_kind: How keys and values are kept between tokens; ``None`` = not at all, so that
            everything is computed anew for each.
        emit: Called with text that is complete; a character is never cut.
    """
    prompt_tokens = int(prompt["input_ids"].shape[1])
    room = prompt_tokens + max_new_tokens
    cache = None if cache_kind is None else cache_kind.build(model.config, room)
    model.generation_config = _settings(model.generation_config, max_new_tokens, sampling)
    if sampling.seed is not None:
        torch.manual_seed(sampling.seed)
    with tally() as ran:
        writer = _Writer(opened.tokenizer, emit, ran)
        writer.started = time.perf_counter()
        model.generate(**prompt, streamer=writer, use_cache=cache is not None, cache=cache)
    ends = model.generation_config.eos_token_id
    ends = ends if isinstance(ends, list) else [ends]
    return Continuation(
        text=writer.text,
        tokens=writer.tokens,
        ended=writer.tokens[-1] in ends,
        prompt_tokens=prompt_tokens,
        prefill_seconds=writer.times[0] - writer.started,
        decode_seconds=writer.times[-1] - writer.times[0],
        cache_bytes=None if cache is None else cache.nbytes,
        cache_tokens=None if cache is None else cache.get_seq_length(),
        prefill_backends=writer.prefill_backends,
        decode_backends=ran - writer.prefill_backends,
    )


def _settings(own: Any, max_new_tokens: int, sampling: Sampling) -> Any:
    """Return generation settings that hold only what was asked for and the model's token ids."""
    draw: dict[str, Any] = {"do_sample": sampling.draws}
    if sampling.draws:
        draw["temperature"] = 1.0 if sampling.temperature is None else sampling.temperature
        draw["top_k"] = 0 if sampling.top_k is None else sampling.top_k
        draw["top_p"] = 1.0 if sampling.top_p is None else sampling.top_p
    padding = own.eos_token_id if own.pad_token_id is None else own.pad_token_id
    return require_transformers().GenerationConfig(
        max_new_tokens=max_new_tokens,
        bos_token_id=own.bos_token_id,
        eos_token_id=own.eos_token_id,
        pad_token_id=padding[0] if isinstance(padding, list) else padding,
        **draw,
    )


class _Writer:
    """Receives tokens from ``generate``: keeps them, their times, and the text they make."""

    def __init__(self, tokenizer: Any, emit: Callable[[str], None], ran: Counter[str]) -> None:
        self._tokenizer = tokenizer
        self._ran = ran
        self._emit = emit
        self._prompt_seen = False
        self._anchor = 0
        self._read = 0
        self.started = 0.0
        self.tokens: list[int] = []
        self.times: list[float] = []
        self.text = ""
        self.prefill_backends: Counter[str] = Counter()

    def put(self, tokens: Any) -> None:
        """Take the prompt first, then one new token at a time."""
        if not self._prompt_seen:
            self._prompt_seen = True
            return
        self.times.append(time.perf_counter())
        if not self.tokens:
            self.prefill_backends = self._ran.copy()
        self.tokens += tokens.flatten().tolist()
        self._write(last=False)

    def end(self) -> None:
        """Hand out what was held back."""
        self._write(last=True)

    def _write(self, *, last: bool) -> None:
        # Spaces depend on the token before, so a piece is decoded together with the one before.
        before = self._decode(self.tokens[self._anchor : self._read])
        now = self._decode(self.tokens[self._anchor :])
        if now.endswith("\ufffd") and not last:
            return
        self._anchor, self._read = self._read, len(self.tokens)
        piece = now[len(before) :]
        if piece:
            self.text += piece
            self._emit(piece)

    def _decode(self, tokens: list[int]) -> str:
        text: str = self._tokenizer.decode(
            tokens, skip_special_tokens=True, clean_up_tokenization_spaces=False
        )
        return text
