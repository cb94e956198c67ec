"""What every pattern is: a rule over absolute positions, and what follows from it."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, ClassVar

import torch
from torch import Tensor

from headwise._dims import Allowed, Positions
from headwise.errors import PatternError
from headwise.patterns.grid import Grid, Offset, check_lengths, grids
from headwise.patterns.intervals import Intervals
from headwise.patterns.spans import EVERYTHING, NOTHING, Reach, Runs

if TYPE_CHECKING:
    from torch.nn.attention.flex_attention import BlockMask

# Pairs that ``draw`` spells out at most.
_DRAWN = 10_000_000


class Pattern(ABC):
    """A rule that says which key positions a query position may attend to.

    Positions are absolute token indices, so the same pattern serves training, prefill and cached
    decoding. ``True`` always means "may attend". Patterns are frozen values: they compare by what
    they mean to hold, can be dictionary keys, join with ``&``, ``|`` and ``~``, and their ``repr``
    builds them again.

    A leaf must say ``_allows``, which defines it. ``reach``, ``row`` and ``kinds`` make it fast:
    what they answer by default is right and slow.

    A pattern that differs by sample or by head says so through ``batch_size`` and ``num_heads``;
    ``sample`` then gives the plain pattern of one of them.
    """

    @property
    def batch_size(self) -> int | None:
        """How many samples this pattern tells apart; ``None`` where all are alike."""
        return None

    @property
    def num_heads(self) -> int | None:
        """How many heads this pattern tells apart; ``None`` where all are alike."""
        return None

    @property
    def nbytes(self) -> int:
        """Memory held by tensors inside the pattern, in bytes."""
        return 0

    # For every field that may hold a tensor: the dimensions of one that holds for all samples.
    _alike: ClassVar[tuple[int, ...]] = ()

    @property
    def shift_invariant(self) -> bool:
        """Whether the rule depends on the distance between two positions only."""
        return False

    @property
    def step(self) -> int:
        """A number that the distance of every allowed pair is a multiple of; 1 fits always."""
        return 1

    @abstractmethod
    def _allows(self, q_pos: Positions, kv_pos: Positions) -> Allowed:
        """Answer ``allows`` for a pattern that is the same in every sample and head."""

    def reach(self, runs: Runs) -> Reach:
        """Say what runs of neighbouring queries of one sample can see, as ranges of keys."""
        return Reach(EVERYTHING, NOTHING)

    def row(self, position: int) -> Intervals | None:
        """Return exactly the keys that one query sees; ``None`` where ranges do not suit.

        Keys outside the call may be among them.
        """
        return None

    def kinds(self, query: Tensor, key: Tensor) -> Tensor:
        """Number the tiles of a call so that tiles with equal numbers allow the same pairs.

        Args:
            query: Position of the first query of each tile, (tiles,) int64.
            key: Position of the first key of each tile, likewise.

        Returns:
            (tiles, any) int64.
        """
        return torch.arange(len(query), device="cpu").unsqueeze(1)

    def sample(self, batch: int, head: int) -> "Pattern":
        """Return the plain pattern of one sample and query head."""
        return self

    def thinned(self, step: int, residue: int, grid: Grid) -> "Pattern":
        """Return this placed, plain pattern over every ``step``-th token of a call.

        The first token is ``residue`` past the call's first key; it and those after it count
        0, 1, 2, … in the pattern returned.
        """
        from headwise.patterns.every_nth import EveryNth

        return EveryNth(self, step, residue, grid)

    def placed(self, grid: Grid) -> "Pattern":
        """Return this plain pattern tied to the positions of one call, or refuse them.

        Patterns that spell out a tensor for one call learn here where its rows and columns stand.
        """
        return self

    def simplified(self) -> "Pattern":
        """Return an equal pattern with fewer parts where one is easily seen."""
        return self

    def allows(self, q_pos: Positions, kv_pos: Positions) -> Allowed:
        """Answer for every pair of the broadcast grid of ``q_pos`` and ``kv_pos``.

        Args:
            q_pos: Absolute positions of queries, typically of shape (q_len, 1).
            kv_pos: Absolute positions of keys, typically of shape (1, kv_len).

        Returns:
            ``True`` where the query may attend to the key, in the broadcast shape of the
            arguments; (batch, heads, …) before it where samples or heads differ.
        """
        shape: torch.Size = torch.broadcast_shapes(q_pos.shape, kv_pos.shape)  # type: ignore[no-untyped-call]
        return self._over_samples(lambda plain, _: plain._allows(q_pos, kv_pos), shape)

    def dense(
        self, q_len: int, kv_len: int, q_offset: Offset | None = None, kv_offset: Offset = 0
    ) -> Allowed:
        """Spell the pattern out as a boolean mask.

        Args:
            q_len: Number of queries.
            kv_len: Number of keys.
            q_offset: Absolute position of the first query; an int, or one per sample. ``None``
                puts the last query beside the last key: ``kv_offset + kv_len - q_len``.
            kv_offset: Absolute position of the first key; an int, or one per sample.

        Returns:
            A boolean tensor (q_len, kv_len) on the CPU; (batch, heads or 1, q_len, kv_len) where
            samples or heads differ.
        """
        check_lengths(q_len, kv_len)
        return self.spelled(grids(q_len, kv_len, q_offset, kv_offset))

    def spelled(
        self,
        places: Sequence[Grid],
        rows: Tensor | None = None,
        heads: Sequence[int] | None = None,
    ) -> Allowed:
        """Spell out chosen queries and heads of a call whose offsets are settled.

        Args:
            places: One grid for all samples, or one per sample.
            rows: Indices of the queries wanted, (rows,) int64; ``None`` = all.
            heads: Indices of the heads wanted; ``None`` = all that differ.
        """
        q_index = torch.arange(places[0].q_len, device="cpu") if rows is None else rows
        shape = torch.Size((q_index.shape[0], places[0].kv_len))

        def spell(plain: Pattern, batch: int) -> Allowed:
            grid = places[batch if len(places) > 1 else 0]
            kv_pos = torch.arange(grid.kv_len, device="cpu").unsqueeze(0) + grid.kv_offset
            q_pos = q_index.unsqueeze(1) + grid.q_offset
            return plain.placed(grid)._allows(q_pos, kv_pos).expand(shape)

        return self._over_samples(spell, shape, len(places), heads)

    def mask_mod(
        self,
        q_len: int | None = None,
        kv_len: int | None = None,
        q_offset: Offset | None = None,
        kv_offset: Offset = 0,
        device: torch.device | str = "cpu",
    ) -> Callable[[Tensor, Tensor, Tensor, Tensor], Tensor]:
        """Return the pattern as a mask function for torch's FlexAttention.

        Args:
            q_len: Number of queries of the call. Patterns that hold a tensor for one call, or count
                from its end, need both lengths; others can do without both.
            kv_len: Number of keys.
            q_offset: As in ``dense``; without lengths ``None`` means ``kv_offset``.
            kv_offset: As in ``dense``.
            device: Where the function is to be used.

        Returns:
            A function of (sample, head, query index, key index), the indices counted from the first
            query and key of the call; ``True`` = may attend.
        """
        from headwise.patterns.to_flex import mask_mod

        return mask_mod(self, (q_len, kv_len), q_offset, kv_offset, device)

    def block_mask(
        self,
        q_len: int,
        kv_len: int,
        batch: int | None = None,
        heads: int | None = None,
        q_offset: Offset | None = None,
        kv_offset: Offset = 0,
        device: torch.device | str = "cpu",
        block_size: int = 128,
    ) -> "BlockMask":
        """Return the pattern as a ``BlockMask`` for torch's FlexAttention.

        It equals what torch's ``create_block_mask`` makes of ``mask_mod``, without spelling the
        pattern out.

        Args:
            q_len: Number of queries.
            kv_len: Number of keys.
            batch: Samples of the call; ``None`` = as many as the pattern tells apart, or 1.
            heads: Query heads of the call, likewise.
            q_offset: As in ``dense``.
            kv_offset: As in ``dense``.
            device: Where the mask is to be used.
            block_size: Queries, and keys, of a block.
        """
        from headwise.patterns.to_flex import block_mask

        check_lengths(q_len, kv_len)
        places = grids(q_len, kv_len, q_offset, kv_offset, batch)
        return block_mask(self, places, (batch, heads), device, block_size)

    def draw(
        self, q_len: int, kv_len: int, q_offset: Offset | None = None, kv_offset: Offset = 0
    ) -> str:
        """Draw the pattern as text: a line per query, ``■`` where it may attend, ``·`` where not.

        Samples and heads that differ stand under each other, with an empty line between.

        Args:
            q_len: Number of queries.
            kv_len: Number of keys; there must not be more than 10,000,000 pairs in all.
            q_offset: As in ``dense``.
            kv_offset: As in ``dense``.
        """
        check_lengths(q_len, kv_len)
        samples = max(self.batch_size or 1, len(grids(q_len, kv_len, q_offset, kv_offset)))
        parts = samples * (self.num_heads or 1)
        if parts * q_len * kv_len > _DRAWN:
            raise PatternError(
                f"{type(self).__name__}.draw: at most {_DRAWN:,} pairs are drawn, got {q_len:,} "
                f"queries × {kv_len:,} keys" + (f", {parts:,} times" if parts > 1 else "") + "\n"
                "  hint: inspection.plots.pattern and headwise explain --draw draw at a scale"
            )
        grid = self.dense(q_len, kv_len, q_offset, kv_offset)
        grid = grid.unsqueeze(0) if grid.ndim == 2 else grid.flatten(0, 1)
        return "\n\n".join(
            "\n".join("".join("■" if seen else "·" for seen in row) for row in part)
            for part in grid.tolist()
        )

    def _over_samples(
        self,
        spell: Callable[["Pattern", int], Allowed],
        shape: torch.Size,
        places: int = 1,
        heads: Sequence[int] | None = None,
    ) -> Allowed:
        """Stack what ``spell`` says, in ``shape``, of the plain pattern of each sample and head."""
        samples, num_heads = self.batch_size, self.num_heads
        if samples is None and num_heads is None and places == 1:
            return spell(self, 0)
        if samples is not None and places > 1 and samples not in (1, places):
            raise PatternError(
                f"{type(self).__name__}: offsets are given for {places} samples, "
                f"but the pattern holds {samples}\n"
                "  hint: give one offset per sample of the pattern, or one int for all"
            )
        count = places if samples in (None, 1) else samples
        spread = num_heads not in (None, 1)
        wanted = heads if heads is not None and spread else range(num_heads or 1)
        parts = [spell(self.sample(b, h), b) for b in range(count) for h in wanted]
        if not parts:
            return torch.zeros(count, len(wanted), *shape, dtype=torch.bool, device="cpu")
        return torch.stack(parts).view(count, len(wanted), *shape)

    def to(self, *args: Any, **kwargs: Any) -> "Pattern":  # noqa: ANN401
        """Return this pattern: it stays on the CPU, and serves calls on every device and dtype."""
        return self

    def __and__(self, other: "Pattern") -> "Pattern":
        from headwise.patterns.combine import Both

        return Both(self, other) if isinstance(other, Pattern) else NotImplemented

    def __or__(self, other: "Pattern") -> "Pattern":
        from headwise.patterns.combine import Either

        return Either(self, other) if isinstance(other, Pattern) else NotImplemented

    def __invert__(self) -> "Pattern":
        from headwise.patterns.combine import Not

        return Not(self)

    def __bool__(self) -> bool:
        raise PatternError(
            "a pattern has no truth value: use & | ~ to join patterns, not and, or, not"
        )
