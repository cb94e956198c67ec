"""Keeps the layouts of recent calls, up to a number of bytes."""

from collections import OrderedDict
from threading import Lock
from typing import TypeAlias

from headwise.patterns.base import Pattern
from headwise.patterns.grid import Grid
from headwise.patterns.tiles import TileLayout

Key: TypeAlias = tuple[Pattern, tuple[Grid, ...]]

ROOM = 64 * 2**20  # bytes, the tensors inside the patterns included
_LARGEST = 8  # times the room: beyond it, lowering anew is cheaper than the memory
_ENTRY = 1024  # bytes that any entry is taken to cost


class LayoutCache:
    """Least recently used layouts go first; one that is larger than the room is kept alone."""

    def __init__(self, room: int = ROOM) -> None:
        self.nbytes = 0
        self._room = room
        self._kept: OrderedDict[Key, tuple[TileLayout | None, int]] = OrderedDict()
        self._lock = Lock()

    def __contains__(self, key: Key) -> bool:
        return key in self._kept

    def get(self, key: Key) -> TileLayout | None:
        """Return the layout of a call; raise ``KeyError`` where it is not kept."""
        with self._lock:
            self._kept.move_to_end(key)
            return self._kept[key][0]

    def put(self, key: Key, layout: TileLayout | None) -> None:
        """Keep a layout, and let go of old ones for it."""
        size = _ENTRY + key[0].nbytes + (0 if layout is None else layout.nbytes)
        with self._lock:
            if key in self._kept or size > _LARGEST * self._room:
                return
            self._kept[key] = (layout, size)
            self.nbytes += size
            while self.nbytes > self._room and len(self._kept) > 1:
                self.nbytes -= self._kept.popitem(last=False)[1][1]

    def clear(self) -> None:
        """Let go of everything."""
        with self._lock:
            self._kept.clear()
            self.nbytes = 0
