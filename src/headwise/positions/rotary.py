"""Rotary positions: queries and keys are turned by an angle that grows with the position."""

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

import torch
from torch import Tensor, nn
from typing_extensions import override

from headwise._checks import is_int, refuse_dtypes, refuse_shapes
from headwise._dims import Split
from headwise._forks import alone_after_fork
from headwise.errors import ShapeError
from headwise.positions.bases import check_base
from headwise.positions.offsets import positions, settle
from headwise.positions.rotary_scaling import BY_LENGTH, Spectrum
from headwise.positions.rotary_settings import read
from headwise.positions.rotary_turns import Turns, cos_and_sin
from headwise.positions.rotation import spelled, turn_halves, turn_pairs
from headwise.positions.tables import Table, keeps_nothing, table_of

_BASE = "it is 10000.0 in the paper, and rope_theta in transformers"


class Rotary(nn.Module):
    """Turn pairs of columns by the position times a frequency, so that only distances count.

    The pair ``(a, b)`` of a token at position ``p`` becomes ``(a * cos(p * w) - b * sin(p * w),
    b * cos(p * w) + a * sin(p * w))``, with ``w = base ** (-2 * pair / rotary_dim)`` ("RoFormer",
    Su et al., 2021). Turn queries and keys alike, and leave values as they are: the product of a
    query at ``i`` and a key at ``j`` then depends on ``i - j`` alone.

    Frequencies are constants and no state: nothing stands in the state dict, and no dtype or device
    that the model around them is moved to changes them. The angle is computed in float64, and
    float16 and bfloat16 are turned in float32 and rounded once. Cosine and sine are kept per
    device, shared by equal objects, and bounded at 128 MiB a device and dtype; past that, and
    inside compiled graphs and transforms, they are computed in the call.

    Args:
        head_dim: Columns of a head.
        base: The ``rope_theta`` of transformers; a larger one turns slower.
        scaling: A change of the frequencies for long texts, as transformers writes it:
            ``{"rope_type": "linear", "factor": 2.0}``. Kinds are ``default``, ``linear``,
            ``dynamic``, ``yarn``, ``longrope``, ``llama3`` and ``proportional``, each with its
            usual keys. A whole ``rope_parameters`` is taken if it agrees with ``base`` and
            ``rotary_dim``. The kind ``dynamic`` needs ``original_max_position_embeddings``, which
            transformers reads elsewhere: from ``config.max_position_embeddings``.
        interleaved: Pairs are neighbouring columns (GPT-J, Cohere) and not columns half of
            ``rotary_dim`` apart (Llama, GPT-NeoX).
        rotary_dim: How many columns turn, the first ones; ``None`` = all. The others stay.

    Raises:
        ShapeError: Widths that are no even ints, or ``rotary_dim`` above ``head_dim``.
        ValueError: A base or a scaling that makes no sense; the message says which key.

    Example:
        >>> import torch, headwise as hw
        >>> rotary = hw.positions.Rotary(4)
        >>> query = torch.ones(1, 1, 2, 4)
        >>> rotary(query)[0, 0]
        tensor([[ 1.0000,  1.0000,  1.0000,  1.0000],
                [-0.3012,  0.9900,  1.3818,  1.0099]])
        >>> torch.equal(rotary(query[:, :, 1:], offset=1), rotary(query)[:, :, 1:])
        True
    """

    def __init__(
        self,
        head_dim: int,
        base: float = 10000.0,
        scaling: Mapping[str, Any] | None = None,
        interleaved: bool = False,
        *,
        rotary_dim: int | None = None,
    ) -> None:
        super().__init__()
        width = head_dim if rotary_dim is None else rotary_dim
        _check_widths(head_dim, rotary_dim)
        if not isinstance(interleaved, bool):
            raise TypeError(
                f"Rotary: interleaved must be True or False, got {interleaved!r}\n"
                "  hint: True for pairs of neighbouring columns"
            )
        self.head_dim, self.rotary_dim = head_dim, width
        self.base, self.interleaved = check_base("Rotary", base, _BASE), interleaved
        self._spectrum = Spectrum(
            head_dim, width, self.base, read(scaling, head_dim, width, self.base)
        )
        self._settle(None)

    @property
    def scaling(self) -> Mapping[str, Any] | None:
        """The scaling as it was given, without what repeats ``base`` and ``rotary_dim``."""
        given = dict(self._spectrum.settings)
        return None if given == {"rope_type": "default"} else MappingProxyType(given)

    @property
    def depends_on_length(self) -> bool:
        """Whether frequencies follow the length of the text (``dynamic`` and ``longrope``)."""
        return self._fixed is None and self._spectrum.kind in BY_LENGTH

    @property
    def inv_freq(self) -> Tensor:
        """The frequency of each pair, (rotary_dim // 2,) in float32 on the CPU."""
        return torch.tensor(self._frequencies, dtype=torch.float32, device="cpu")

    @property
    def attention_factor(self) -> float:
        """What cosine and sine are multiplied by; not 1 with ``yarn`` and ``longrope``."""
        return self._factor

    def at_length(self, length: int) -> "Rotary":
        """Return a copy that has the frequencies of a text of so many tokens, for good.

        Where frequencies depend on no length, that is the object itself.
        """
        if not is_int(length) or length < 0:
            raise ShapeError(
                f"Rotary.at_length: length must be an int of at least 0, got {length!r}\n"
                "  hint: give the number of tokens of the whole text"
            )
        if not self.depends_on_length:
            return self
        settled = Rotary(
            self.head_dim, self.base, self.scaling, self.interleaved, rotary_dim=self.rotary_dim
        )
        settled._settle(length)
        return settled

    def turns_alike(self, one: int, other: int) -> bool:
        """Say whether texts of these two lengths, in tokens, are turned by the same frequencies."""
        spectrum = self._spectrum
        return not self.depends_on_length or spectrum.settled(one) == spectrum.settled(other)

    @override
    @alone_after_fork
    def forward(
        self, x: Split, offset: int | Tensor = 0, *, length: int | Tensor | None = None
    ) -> Split:
        """Turn every token by its position.

        Args:
            x: Queries or keys, (…, heads, length, head_dim), in any strides.
            offset: Position of the first token: an int, or one integer per sample, (batch,). It may
                be negative, as for padding on the left.
            length: Tokens of the whole text, an int or one per sample; ``None`` = up to the last
                token of ``x``. Read only where ``depends_on_length``.

        Returns:
            The same shape and dtype.

        Raises:
            ShapeError: Another ``head_dim``, fewer than three dimensions, or another number of
                offsets than samples.
            DtypeError: Anything but floating-point numbers, or offsets that are no integers.
        """
        self._check(x)
        offset = settle("Rotary", "offset", offset, x, inner=3)
        if length is not None:
            length = settle("Rotary", "length", length, x, inner=3)
        if self.depends_on_length:
            return self._by_length(x, offset, offset + x.shape[-2] if length is None else length)
        if x.is_meta or keeps_nothing(offset):
            steps = torch.tensor(self._frequencies, dtype=torch.float64, device=x.device)
            return self._spelled(x, offset, steps)
        return self._kept(x, offset, self._table)

    def _by_length(self, x: Tensor, offset: int | Tensor, length: int | Tensor) -> Tensor:
        if x.is_meta or keeps_nothing(offset, length):
            given = length if isinstance(length, Tensor) else torch.full((1,), length)
            steps = self._spectrum.by_length(given.to(x.device), self._frequencies, self._beyond)
            return self._spelled(x, offset, steps)
        lengths = length.tolist() if isinstance(length, Tensor) else [length]
        settled = [self._spectrum.settled(one) for one in lengths] or [0]
        if len(set(settled)) == 1:
            table = self._table_for(self._spectrum.frequencies(settled[0]))
            return self._kept(x, offset, table)
        every = [self._spectrum.frequencies(one) for one in settled]
        steps = torch.tensor(every, dtype=torch.float64, device=x.device)
        return self._spelled(x, offset, steps.view(-1, len(every[0])))

    def _kept(self, x: Tensor, offset: int | Tensor, table: Table) -> Tensor:
        """Turn by what a table holds."""
        work = torch.promote_types(x.dtype, torch.float32)
        parts = table.parts(offset, x.shape[-2], x.device, work)
        if not isinstance(offset, int):
            parts = tuple(part.view(*x.shape[:-3], 1, *part.shape[1:]) for part in parts)
        return turn_pairs(x, *parts) if self.interleaved else turn_halves(x, *parts)

    def _spelled(self, x: Tensor, offset: int | Tensor, steps: Tensor) -> Tensor:
        """Turn by frequencies ``steps``, (pairs,) or (samples or 1, pairs)."""
        places = positions(offset, x.shape[-2], x.device)
        if steps.ndim == 2:
            steps = steps[:, None]
            places = places if places.ndim == 2 else places.expand(len(steps), -1)
        work = torch.promote_types(x.dtype, torch.float32)
        cos, sin = cos_and_sin(places, steps, self.attention_factor, work)
        if cos.ndim == 3 and len(cos) != 1:
            shape = (*x.shape[:-3], 1, *cos.shape[1:])
            cos, sin = cos.view(shape), sin.view(shape)
        elif cos.ndim == 3:
            cos, sin = cos[0], sin[0]
        return spelled(x, cos, sin, self.interleaved)

    def _settle(self, length: int | None) -> None:
        """Find the frequencies: those of a length for good, or those that texts begin with."""
        self._fixed = length
        self._factor = self._spectrum.factor
        self._frequencies = self._spectrum.frequencies(length or 0)
        self._beyond = self._spectrum.beyond()
        self._table = self._table_for(self._frequencies)

    def _table_for(self, frequencies: tuple[float, ...]) -> Table:
        left = self.head_dim - self.rotary_dim
        return table_of(Turns(frequencies, self._factor, left, self.interleaved))

    def _check(self, x: Tensor) -> None:
        if not x.is_floating_point():
            raise refuse_dtypes(
                "Rotary", "x must be floating-point", "convert it with .to(dtype)", x=x
            )
        if x.ndim < 3 or x.shape[-1] != self.head_dim:
            raise refuse_shapes(
                "Rotary",
                f"x must be (…, heads, length, head_dim) with a head_dim of {self.head_dim}",
                "split the heads before turning; one head has an axis of 1",
                x=x,
            )

    @override
    def extra_repr(self) -> str:
        shown = [f"{self.head_dim}"]
        if self.base != 10000.0:
            shown.append(f"base={self.base!r}")
        if self.scaling is not None:
            shown.append(f"scaling={dict(self.scaling)!r}")
        if self.interleaved:
            shown.append("interleaved=True")
        if self.rotary_dim != self.head_dim:
            shown.append(f"rotary_dim={self.rotary_dim}")
        return ", ".join(shown)

    @override
    def __repr__(self) -> str:
        made = f"Rotary({self.extra_repr()})"
        return made if self._fixed is None else f"{made}.at_length({self._fixed})"


def _check_widths(head_dim: int, rotary_dim: int | None) -> None:
    if not is_int(head_dim) or head_dim < 2:
        raise ShapeError(
            f"Rotary: head_dim must be an int of at least 2, got {head_dim!r}\n"
            "  hint: give the number of columns of a head"
        )
    width = head_dim if rotary_dim is None else rotary_dim
    if not is_int(width) or width < 2 or width % 2 or width > head_dim:
        raise ShapeError(
            f"Rotary: rotary_dim must be an even int from 2 to head_dim={head_dim}, got {width!r}\n"
            "  hint: columns turn in pairs; those past rotary_dim stay as they are"
        )
