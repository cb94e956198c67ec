"""What a model is asked to do while it is measured, and what it answers."""

from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Any

from torch import Tensor
from typing_extensions import override

import headwise.hf
from headwise.cli.bench.models.given import Given, given, targets
from headwise.cli.failures import WrongInput, first_line
from headwise.cli.models import positions_of
from headwise.cli.packages import require_transformers

NEW_TOKENS = 32


class Work(ABC):
    """One kind of work.

    Attributes:
        given: What the model is given.
        tensors: The same, and what a decoder has written where that is given, too.
        described: What it is, for people.
        amount: How much one call makes, in ``unit``.
        unit: Of ``amount``.
        is_forward: Whether it is a forward pass.
    """

    is_forward: bool
    given: Given
    tensors: dict[str, Tensor]
    described: str
    amount: int
    unit: str

    @abstractmethod
    def call(self, model: Any, *, ours: bool) -> Callable[[], Any]:
        """Return what is timed; ``ours`` with what headwise has in place of the model's cache."""

    @abstractmethod
    def answer(self, model: Any) -> Tensor:
        """Return what is compared."""


class Forward(Work):
    """One forward pass."""

    is_forward = True

    def __init__(self, name: str, model: Any, tokens: int, batch: int) -> None:
        self.given = given(name, model, tokens=tokens, batch=batch)
        self.tensors = dict(self.given.tensors)
        self.described = f"a forward pass of {self.given.described}"
        self.amount, self.unit = self.given.parts, self.given.unit
        if model.config.is_encoder_decoder:
            written = max(tokens // 4, 1)
            self.tensors["decoder_input_ids"] = targets(model.config, written, batch)
            self.described += f", {batch} x {written} written"
        for drawn, tensor in self.tensors.items():
            if tensor.is_floating_point():
                self.tensors[drawn] = tensor.to(model.dtype)

    @override
    def call(self, model: Any, *, ours: bool) -> Callable[[], Any]:
        return lambda: model(**self.tensors)

    @override
    def answer(self, model: Any) -> Tensor:
        cast = {
            name: tensor.to(model.dtype) if tensor.is_floating_point() else tensor
            for name, tensor in self.tensors.items()
        }
        return numbers(model(**cast))


class Writing(Work):
    """So many new tokens after a prompt, or from a source: the likeliest each time."""

    is_forward = False

    def __init__(self, name: str, model: Any, tokens: int, batch: int) -> None:
        if model.main_input_name != "input_ids" or not model.can_generate():
            raise WrongInput(
                f"{name} is a {type(model).__name__}, which writes no text from a text"
            )
        self.given = given(name, model, tokens=tokens, batch=batch)
        self.tensors = self.given.tensors
        self._pair = model.config.is_encoder_decoder
        room = positions_of(model.config.get_text_config())
        if not self._pair and room is not None and tokens + NEW_TOKENS > room:
            raise WrongInput(
                f"{name} has a context of {room}, and {NEW_TOKENS} tokens are written; use "
                f"--tokens {room - NEW_TOKENS}"
            )
        self.described = f"{NEW_TOKENS} new tokens for each of {self.given.described}"
        self.amount, self.unit = batch * NEW_TOKENS, "new tokens"
        own = model.generation_config
        start = getattr(own, "decoder_start_token_id", None)
        self._settings = require_transformers().GenerationConfig(
            max_new_tokens=NEW_TOKENS,
            min_new_tokens=NEW_TOKENS,
            do_sample=False,
            pad_token_id=0 if own.pad_token_id is None else own.pad_token_id,
            bos_token_id=own.bos_token_id,
            decoder_start_token_id=own.bos_token_id if start is None else start,
        )
        self._forced = self.call(model, ours=False)()

    @override
    def call(self, model: Any, *, ours: bool) -> Callable[[], Any]:
        def write() -> Any:
            cache = self._cache(model) if ours else None
            return model.generate(
                **self.tensors, generation_config=self._settings, use_cache=True, cache=cache
            )

        return write

    @override
    def answer(self, model: Any) -> Tensor:
        """Return the scores of every token, reading what the model wrote before."""
        if self._pair:
            return numbers(model(**self.tensors, decoder_input_ids=self._forced))
        return numbers(model(input_ids=self._forced))

    def _cache(self, model: Any) -> Any:
        if not self._pair:
            return headwise.hf.Cache(model.config)
        pair = require_transformers().EncoderDecoderCache
        return pair(headwise.hf.Cache(model.config), headwise.hf.Cache(model.config))


def work(name: str, model: Any, *, tokens: int, batch: int, generate: bool) -> Work:
    """Return the work for a model, which has done it once.

    Raises:
        WrongInput: The model takes something else, fewer tokens, or writes nothing.
    """
    try:
        if generate:
            return Writing(name, model, tokens, batch)
        made = Forward(name, model, tokens, batch)
        made.call(model, ours=False)()
    except WrongInput:
        raise
    except (TypeError, ValueError, RuntimeError, IndexError, AttributeError) as failure:
        raise WrongInput(
            f"{name} does not run on made-up inputs: {first_line(failure)}"
        ) from failure
    return made


def numbers(found: Any) -> Tensor:
    """Return the scores in what a model returned, or else its token vectors or what is first."""
    for name in ("logits", "last_hidden_state"):
        tensor = getattr(found, name, None)
        if isinstance(tensor, Tensor):
            return tensor
    first: Tensor = next(
        value for value in found.values() if isinstance(value, Tensor) and value.is_floating_point()
    )
    return first
