"""The text of small language models: Python's own help pages, byte by byte."""

from collections.abc import Iterator
from math import log2
from pathlib import Path
from pydoc_data.topics import topics

import torch
from torch import Tensor

# Byte 0 stands between documents, and one number beyond the bytes hides those to be told.
BETWEEN, HIDDEN, VOCABULARY = 0, 256, 257
_HIDDEN_SHARE = 0.15
# One document of so many is held out.
_HELD_OUT = 8
_IGNORED = -100


class Text:
    """Documents as bytes, some of which are held out.

    Args:
        documents: They are sorted by length, then every eighth one is held out, so that short and
            long ones are; of a single document the last eighth.
    """

    def __init__(self, documents: list[str]) -> None:
        ordered = sorted((document.encode() for document in documents), key=len)
        if len(ordered) < _HELD_OUT:
            joined = bytes([BETWEEN]).join(ordered)
            cut = len(joined) - len(joined) // _HELD_OUT
            self.training, self.held_out = (
                _numbers([part]) for part in (joined[:cut], joined[cut:])
            )
            return
        held = ordered[_HELD_OUT // 2 :: _HELD_OUT]
        kept = [each for place, each in enumerate(ordered) if place % _HELD_OUT != _HELD_OUT // 2]
        self.training, self.held_out = _numbers(kept), _numbers(held)

    def batch(self, samples: int, length: int, generator: torch.Generator) -> Tensor:
        """Draw pieces of the training text, (samples, length)."""
        starts = torch.randint(len(self.training) - length + 1, (samples, 1), generator=generator)
        return self.training[starts + torch.arange(length)]

    def pieces(self, samples: int, length: int, most: int) -> Iterator[Tensor]:
        """Cut the held-out text into pieces, ``samples`` at a time and ``most`` in all."""
        whole = self.held_out[: len(self.held_out) // length * length].view(-1, length)[:most]
        for first in range(0, len(whole), samples):
            yield whole[first : first + samples]

    def bits(self, context: int) -> float:
        """Return the bits a held-out byte takes for one who only counted the training text.

        Args:
            context: 0 = how often each byte came; 1 = how often it came after the one before.
        """
        before = torch.zeros_like if context == 0 else _moved
        counts = torch.ones(256, 256, dtype=torch.float64)
        ones = torch.ones(len(self.training), dtype=torch.float64)
        counts.index_put_((before(self.training), self.training), ones, accumulate=True)
        shares = counts / counts.sum(1, keepdim=True)
        found = shares[before(self.held_out), self.held_out].log2().mean()
        return -found.item()


def read(path: Path | None) -> Text:
    """Return the help pages, one document for each topic, or the text of a file."""
    return Text(list(topics.values()) if path is None else [path.read_text()])


def hidden(ids: Tensor, generator: torch.Generator) -> tuple[Tensor, Tensor]:
    """Hide some bytes: return what is to be read, and what is to be told where it is hidden."""
    places = torch.rand(ids.shape, generator=generator) < _HIDDEN_SHARE
    return ids.masked_fill(places, HIDDEN), ids.masked_fill(~places, _IGNORED)


def in_bits(loss: float) -> float:
    """Return a loss in bits a byte."""
    return loss * log2(torch.e)


def _numbers(documents: list[bytes]) -> Tensor:
    joined = bytes([BETWEEN]).join(documents)
    return torch.frombuffer(bytearray(joined), dtype=torch.uint8).long()


def _moved(ids: Tensor) -> Tensor:
    """Return what stands before each byte; the first one is its own."""
    return torch.cat([ids[:1], ids[:-1]])
