"""Turns tokens into text as they come."""

from collections.abc import Callable
from typing import Any

from torch import Tensor


class Streamer:
    """Receives tokens from ``generate`` and hands out the text that they make.

    Args:
        tokenizer: A tokenizer of transformers.
        emit: Called with text that is complete; a character is never cut.

    Attributes:
        text: All of it so far.
    """

    def __init__(self, tokenizer: Any, emit: Callable[[str], None]) -> None:
        self._tokenizer = tokenizer
        self._emit = emit
        self._prompt_seen = False
        self._anchor = 0
        self._read = 0
        self._tokens: list[int] = []
        self.text = ""

    def put(self, tokens: Tensor) -> None:
        """Take what was given first, then one new token at a time."""
        if not self._prompt_seen:
            self._prompt_seen = True
            return
        self._tokens += tokens.flatten().tolist()
        self._write(last=False)

    def end(self) -> None:
        """Hand out what was held back."""
        self._write(last=True)

    def write(self, tokens: list[int]) -> None:
        """Hand out the text of tokens that are all there is."""
        self._tokens += tokens
        self._write(last=True)

    def _write(self, *, last: bool) -> None:
        # Spaces depend on the token before, so a piece is decoded together with the one before.
        before = self._decode(self._tokens[self._anchor : self._read])
        now = self._decode(self._tokens[self._anchor :])
        if now.endswith("\ufffd") and not last:
            return
        self._anchor, self._read = self._read, len(self._tokens)
        piece = now[len(before) :]
        if piece:
            self.text += piece
            self._emit(piece)

    def _decode(self, tokens: list[int]) -> str:
        text: str = self._tokenizer.decode(
            tokens, skip_special_tokens=True, clean_up_tokenization_spaces=False
        )
        return text
