"""The ways in which rotary frequencies are changed for longer texts than a model was trained on."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from math import ceil, floor, log, pi, sqrt
from typing import Any, TypeAlias, TypeVar

import torch
from torch import Tensor

Settings: TypeAlias = tuple[tuple[str, Any], ...]
T = TypeVar("T", float, Tensor)

_ORIGINAL = "original_max_position_embeddings"
BY_LENGTH = ("dynamic", "longrope")


@dataclass(frozen=True)
class Spectrum:
    """The frequencies of a rotary embedding: how far a token turns each pair of columns.

    They are computed in float32 in the order of operations that models were trained with, so that
    the numbers are theirs. ``settings`` has been checked by ``rotary_settings``.
    """

    head_dim: int
    width: int
    base: float
    settings: Settings

    @property
    def kind(self) -> str:
        """The name of the scaling; ``default`` is none."""
        return str(dict(self.settings)["rope_type"])

    @property
    def factor(self) -> float:
        """What cosine and sine are multiplied by."""
        given = dict(self.settings)
        if given.get("attention_factor") is not None:
            return float(given["attention_factor"])
        if self.kind == "yarn":
            return _yarn_factor(given)
        if self.kind == "longrope" and given["factor"] > 1:
            return sqrt(1 + log(given["factor"]) / log(given[_ORIGINAL]))
        return 1.0

    def settled(self, length: int) -> int:
        """Return the least length that has the same frequencies as ``length``."""
        original: int = dict(self.settings).get(_ORIGINAL, 0)
        if self.kind == "longrope":
            return original + 1 if length > original else original
        return max(length, original) if self.kind == "dynamic" else 0

    def frequencies(self, length: int = 0) -> tuple[float, ...]:
        """Return the radians a token for each pair of columns, for a text of so many tokens."""
        return _frequencies(self, self.settled(length))

    def beyond(self) -> tuple[float, ...]:
        """Return the frequencies right after the longest text of the training."""
        return self.frequencies(dict(self.settings).get(_ORIGINAL, 0) + 1)

    def by_length(
        self, lengths: Tensor, usual: tuple[float, ...], beyond: tuple[float, ...]
    ) -> Tensor:
        """Return the frequencies for each of some lengths, (*lengths, pairs) in float64.

        A compiler can follow it, given ``frequencies()`` and ``beyond()``.
        """
        original = dict(self.settings)[_ORIGINAL]
        near, far = (
            torch.tensor(found, dtype=torch.float64, device=lengths.device)
            for found in (usual, beyond)
        )
        lengths = lengths.unsqueeze(-1)
        if self.kind == "dynamic":
            stretched = _stretched(self, lengths.double().clamp(min=original))
            exponents = _exponents(self.width, self.width).to(lengths.device)
            far = (stretched**exponents).reciprocal().float().double()
        return torch.where(lengths > original, far, near)


@lru_cache(maxsize=256)
def _frequencies(spectrum: Spectrum, length: int) -> tuple[float, ...]:
    with torch.inference_mode(False), torch.no_grad():
        found: list[float] = _KINDS[spectrum.kind](spectrum, length).tolist()
    return tuple(found)


def _exponents(width: int, whole: int) -> Tensor:
    return torch.arange(0, width, 2, dtype=torch.float32, device="cpu") / whole


def _powers(base: float, exponents: Tensor) -> Tensor:
    found: Tensor = base**exponents
    return found


def _default(spectrum: Spectrum, length: int) -> Tensor:
    return _powers(spectrum.base, _exponents(spectrum.width, spectrum.width)).reciprocal()


def _linear(spectrum: Spectrum, length: int) -> Tensor:
    factor: float = dict(spectrum.settings)["factor"]
    return _default(spectrum, length) / factor


def _proportional(spectrum: Spectrum, length: int) -> Tensor:
    given = dict(spectrum.settings)
    turning = int(given.get("partial_rotary_factor", 1.0) * spectrum.head_dim // 2)
    found = torch.zeros(spectrum.head_dim // 2, dtype=torch.float32, device="cpu")
    found[:turning] = 1.0 / _powers(spectrum.base, _exponents(2 * turning, spectrum.head_dim))
    factor: float = given.get("factor", 1.0)
    return found / factor


def _stretched(spectrum: Spectrum, length: T) -> T:
    """Return the base of a text of ``length`` tokens, a number or a tensor of them."""
    given, width = dict(spectrum.settings), spectrum.width
    original, factor = given[_ORIGINAL], given["factor"]
    longer: T = factor * length / original - (factor - 1)
    stretched: T = spectrum.base * longer ** (width / (width - 2))
    return stretched


def _dynamic(spectrum: Spectrum, length: int) -> Tensor:
    exponents, base = (
        _exponents(spectrum.width, spectrum.width),
        _stretched(spectrum, float(length)),
    )
    if length > dict(spectrum.settings)[_ORIGINAL]:
        return _powers(base, exponents.double()).reciprocal().float()
    return _powers(base, exponents).reciprocal()


def _longrope(spectrum: Spectrum, length: int) -> Tensor:
    given = dict(spectrum.settings)
    far = length > given[_ORIGINAL]
    stretch = torch.tensor(
        given["long_factor" if far else "short_factor"], dtype=torch.float32, device="cpu"
    )
    powers = _powers(spectrum.base, _exponents(spectrum.width, spectrum.width))
    return (stretch * powers).reciprocal()


def _llama3(spectrum: Spectrum, length: int) -> Tensor:
    given = dict(spectrum.settings)
    original, factor = given[_ORIGINAL], given["factor"]
    low, high = given["low_freq_factor"], given["high_freq_factor"]
    plain = _default(spectrum, length)
    waves = 2 * pi / plain
    share = (original / waves - low) / (high - low)
    blended = (1 - share) * plain / factor + share * plain
    near = torch.where(waves < original / high, plain, blended)
    return torch.where(waves > original / low, plain / factor, near)


def _yarn(spectrum: Spectrum, length: int) -> Tensor:
    given, width = dict(spectrum.settings), spectrum.width
    original = given[_ORIGINAL]

    def column(turns: float) -> float:
        """Return the column whose pair turns so often within the original length."""
        return width * log(original / (turns * 2 * pi)) / (2 * log(spectrum.base))

    fast, slow = float(given.get("beta_fast", 32)), float(given.get("beta_slow", 1))
    low, high = column(fast), column(slow)
    if given.get("truncate", True):
        low, high = floor(low), ceil(high)
    low, high = max(low, 0), min(high, width - 1)
    if low == high:
        high += 0.001
    pairs = torch.arange(width // 2, dtype=torch.float32, device="cpu")
    kept = 1 - ((pairs - low) / (high - low)).clamp(0, 1)
    powers = _powers(spectrum.base, _exponents(width, width))
    factor: float = given["factor"]
    return (factor * powers).reciprocal() * (1 - kept) + powers.reciprocal() * kept


def _yarn_factor(given: dict[str, Any]) -> float:
    def size(weight: float) -> float:
        return 0.1 * weight * log(given["factor"]) + 1.0 if given["factor"] > 1 else 1.0

    above, below = float(given.get("mscale", 0)), float(given.get("mscale_all_dim", 0))
    return size(above) / size(below) if above and below else size(1.0)


_KINDS: dict[str, Callable[[Spectrum, int], Tensor]] = {
    "default": _default,
    "linear": _linear,
    "dynamic": _dynamic,
    "yarn": _yarn,
    "longrope": _longrope,
    "llama3": _llama3,
    "proportional": _proportional,
}
