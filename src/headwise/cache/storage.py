"""What every storage of one layer's keys and values promises, and what a call sees of it."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from copy import copy
from typing import Any, NamedTuple, TypeVar

import torch
from torch import Tensor
from typing_extensions import override

from headwise.cache.row_counts import RowCounts, longest
from headwise.cache.row_formats import RowFormat, Tensors
from headwise.errors import CacheError
from headwise.ops import StoredKeys
from headwise.patterns import Pattern

# The first of what a storage is made of: lengths, and whatever else it has.
State = tuple[Any, ...]

S = TypeVar("S", bound="Storage")


class Given(NamedTuple):
    """What the first tokens were; those that follow are held to it."""

    batch: int
    kv_heads: int
    widths: tuple[int, int]
    dtypes: tuple[torch.dtype, torch.dtype]
    device: torch.device


class Part(NamedTuple):
    """Neighbouring tokens of every row that one call of the kernels attends to.

    Attributes:
        stored: The keys and values.
        first: Which token of its row the first one is.
        rule: Who may attend to whom by the kind of storage; ``None`` = all.
    """

    stored: StoredKeys
    first: RowCounts = 0
    rule: Pattern | None = None


class Stored:
    """Keys and values that a layer holds, as plain tensors (batch, kv_heads, tokens, dim).

    Views where they are stored so. What is stored in 8 bits or in pages is copied when it is first
    asked for. Rows that are shorter than the longest one end in numbers without a meaning.
    """

    def __init__(self, read: Callable[[], tuple[Tensor, Tensor]]) -> None:
        self._read = read
        self._found: tuple[Tensor, Tensor] | None = None

    @property
    def key(self) -> Tensor:
        """The keys."""
        return self._pair[0]

    @property
    def value(self) -> Tensor:
        """The values."""
        return self._pair[1]

    def __iter__(self) -> Iterator[Tensor]:
        return iter(self._pair)

    @property
    def _pair(self) -> tuple[Tensor, Tensor]:
        if self._found is None:
            self._found = self._read()
        return self._found


class Held(ABC):
    """What one call sees of a layer: how many tokens each row has, and where they are."""

    def __init__(self, given: Given, lengths: RowCounts) -> None:
        self.given = given
        self.lengths = lengths

    @property
    def batch(self) -> int:
        """How many rows there are."""
        return self.given.batch

    @abstractmethod
    def parts(self, first_query: RowCounts, kv_offset: RowCounts) -> list[Part]:
        """Return what queries attend to.

        Args:
            first_query: Beside which token of its row the first query stands.
            kv_offset: Position of the first token of all.
        """

    @abstractmethod
    def _tokens(self) -> StoredKeys:
        """Return all tokens that a user may ask for."""

    def stored(self) -> Stored:
        """Return the tokens as plain tensors."""
        return Stored(self._plain)

    def _plain(self) -> tuple[Tensor, Tensor]:
        found = self._tokens()
        if found.is_plain:
            return found.key, found.value
        return found.dense(*(self.given.dtypes if found.key_scale is not None else _own(found)))


def _own(stored: StoredKeys) -> tuple[torch.dtype, torch.dtype]:
    return stored.key.dtype, stored.value.dtype


class HeldWhole(Held):
    """All tokens of a layer, in one part."""

    def __init__(self, given: Given, lengths: RowCounts, whole: StoredKeys) -> None:
        super().__init__(given, lengths)
        self.whole = whole

    @override
    def parts(self, first_query: RowCounts, kv_offset: RowCounts) -> list[Part]:
        return [Part(self.whole)]

    @override
    def _tokens(self) -> StoredKeys:
        return self.whole


class Storage(ABC):
    """Keys and values of one layer.

    How many tokens each row has is counted, never guessed from the contents; room that is not
    filled is never read.
    """

    def __init__(self, form: RowFormat) -> None:
        self.form = form
        self.lengths: RowCounts = 0
        self.given: Given | None = None

    @property
    def length(self) -> int:
        """Tokens of the longest row."""
        return longest(self.lengths)

    @property
    @abstractmethod
    def nbytes(self) -> int:
        """Memory held, the room not yet filled included, in bytes."""

    @abstractmethod
    def append(
        self, key: Tensor, value: Tensor, given: Given, counts: RowCounts, *, tracked: bool
    ) -> Held:
        """Store further tokens and return what their queries may see; or refuse, unchanged.

        Args:
            key: New keys.
            value: New values.
            given: What ``fitting`` says of them.
            counts: How many of the first of them each row takes.
            tracked: Autograd will keep what is stored for a backward pass, so that it may not be
                written to afterwards. Tokens that carry a gradient are tracked in any case.
        """

    @abstractmethod
    def held(self) -> Held:
        """Return what is stored; there must be something."""

    @property
    @abstractmethod
    def state(self) -> State:
        """What ``restore`` brings back."""

    @abstractmethod
    def restore(self, state: State) -> None:
        """Go back to the state before tokens were appended."""

    def kept(self) -> Callable[[], None]:
        """Return what brings back all there is now, as long as no token is written over."""
        twin = self.fork()
        return lambda: self.restore(twin.state)

    def kept_whole(self) -> Callable[[], None]:
        """Return what brings back all there is now after a ``reorder``."""
        return self.kept()

    def check_crop(self, length: int) -> None:  # noqa: B027 (most can go back to any)
        """Refuse a length that this storage cannot go back to."""

    def check_rows(self, rows: int) -> None:  # noqa: B027 (most take any)
        """Refuse another number of rows where room never moves."""

    @abstractmethod
    def crop(self, length: int) -> None:
        """Keep the first ``length`` tokens of every row; a shorter row keeps all."""

    @abstractmethod
    def reorder(self, index: Tensor) -> None:
        """Let row ``i`` become what row ``index[i]`` was."""

    @abstractmethod
    def forget(self) -> None:
        """Hold nothing, and give back the room unless it never moves."""

    @abstractmethod
    def dump(self) -> tuple[Tensors, dict[str, RowCounts]]:
        """Return tensors that hold the tokens, and the counts that say which they are."""

    @abstractmethod
    def fill(self, given: Given, tensors: Tensors, counts: dict[str, RowCounts]) -> None:
        """Take in what ``dump`` returned."""

    def fork(self: S) -> S:
        """Return a storage of its own with the same tokens."""
        return copy(self)

    def fitting(self, key: Tensor, value: Tensor) -> Given:
        """Return what all tokens are alike in, or refuse new ones that do not continue them."""
        check_tensors("KVCache", key=key, value=value)
        if key.ndim != 4 or value.ndim != 4 or key.shape[:3] != value.shape[:3]:
            raise CacheError(
                "KVCache: key and value must be (batch, kv_heads, length, dim) and agree in the "
                f"first three, got {tuple(key.shape)} and {tuple(value.shape)}\n"
                "  hint: give each sample a leading dimension, even a single one"
            )
        if not key.is_floating_point() or not value.is_floating_point():
            raise CacheError(
                "KVCache: key and value must be floating-point tensors, "
                f"got {key.dtype} and {value.dtype}\n"
                "  hint: KVCache(dtype=torch.int8) rounds them to 8 bits itself"
            )
        if self.given is None:
            return Given(
                key.shape[0],
                key.shape[1],
                (key.shape[3], value.shape[3]),
                (key.dtype, value.dtype),
                key.device,
            )
        batch, kv_heads, widths, dtypes, device = self.given
        for name, new, width, dtype in zip(
            ("key", "value"), (key, value), widths, dtypes, strict=True
        ):
            fits = (*new.shape[:2], new.shape[3]) == (batch, kv_heads, width)
            if not fits or new.dtype != dtype or new.device != device:
                kept = (batch, kv_heads, self.length, width)
                raise CacheError(
                    f"KVCache: {name} must continue what is stored, {kept} {dtype} "
                    f"{device}, got {tuple(new.shape)} {new.dtype} {new.device}\n"
                    "  hint: one cache serves one batch of one model; reset() starts anew"
                )
        return self.given


def check_tensors(caller: str, **given: object) -> None:
    """Refuse anything but tensors for query, key or value."""
    others = {name: each for name, each in given.items() if not isinstance(each, Tensor)}
    if others:
        listed = ", ".join(f"{name} {type(each).__name__}" for name, each in others.items())
        raise CacheError(
            f"{caller}: {' and '.join(given)} must be tensors, got {listed}\n"
            "  hint: give (batch, heads, length, dim)"
        )


def refuse_gradients(what: str, leave_out: str) -> CacheError:
    """Word the refusal of tokens that carry gradients."""
    return CacheError(
        f"KVCache: {what} cannot carry gradients, and query, key or value has one\n"
        "  hint: decode under torch.no_grad() or torch.inference_mode(), or leave out "
        f"{leave_out}"
    )


def is_tracked(tracked: bool, *tensors: Tensor) -> bool:
    """Say whether autograd will keep tokens for a backward pass."""
    return torch.is_grad_enabled() and (tracked or any(t.requires_grad for t in tensors))
