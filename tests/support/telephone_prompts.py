"""Recorded telephone prompts with what is said in them, and how wrong a transcript is.

Chosen are the longest that fit into the 30 seconds of Whisper and whose text is plain words: no
digits, which can be written as words, no symbols, and nothing in brackets, which is not spoken.
"""

import gzip
import re
import wave
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from tests.support.debian_packages import PROMPT_SOUNDS, PROMPT_TEXTS, unpacked

RATE = 16_000
_SOUNDS = "usr/share/asterisk/sounds/en_US_f_Allison"
_TEXTS = "usr/share/doc/asterisk-core-sounds-en/core-sounds-en.txt.gz"
_LINE = re.compile(r"([\w/-]+): ([A-Za-z ,.'?!-]+)")


@dataclass(frozen=True)
class Prompt:
    """One recording, at 8 kHz.

    Attributes:
        file: The recording.
        seconds: How long it is.
        words: What is said, as ``words_of`` gives it.
    """

    file: Path
    seconds: float
    words: list[str]

    @property
    def sound(self) -> Tensor:
        """The samples at 16 kHz, between -1 and 1; no frequencies are added."""
        with wave.open(str(self.file)) as opened:
            raw = bytearray(opened.readframes(opened.getnframes()))
        samples = torch.frombuffer(raw, dtype=torch.int16) / 2**15
        spectrum = torch.fft.rfft(samples.double(), norm="forward")
        twice: Tensor = torch.fft.irfft(spectrum, n=2 * len(samples), norm="forward")
        return twice.float()


def longest_prompts(count: int) -> list[Prompt]:
    """Return the longest prompts, the longest first."""
    folder = unpacked(PROMPT_SOUNDS) / _SOUNDS
    found = []
    with gzip.open(unpacked(PROMPT_TEXTS) / _TEXTS, "rt") as texts:
        for line in texts:
            said = _LINE.fullmatch(line.strip())
            file = folder / f"{said[1]}.wav" if said else folder
            if said is None or not file.is_file():
                continue
            with wave.open(str(file)) as opened:
                assert (opened.getframerate(), opened.getnchannels()) == (RATE // 2, 1)
                seconds = opened.getnframes() * 2 / RATE
            if seconds < 30:
                found.append(Prompt(file, seconds, words_of(said[2])))
    found.sort(key=lambda prompt: (-prompt.seconds, prompt.file.name))
    return found[:count]


def words_of(text: str) -> list[str]:
    """Return the words of a text in small letters, without what stands between them."""
    return re.findall(r"[a-z0-9']+", text.lower())


def word_errors(found: list[str], wanted: list[str]) -> int:
    """Return the fewest insertions, deletions and replacements from one text to the other."""
    row = list(range(len(wanted) + 1))
    for place, word in enumerate(found, 1):
        above, row[0] = row[0], place
        for at, right in enumerate(wanted, 1):
            changed = above + (word != right)
            above, row[at] = row[at], min(changed, row[at] + 1, row[at - 1] + 1)
    return row[-1]
