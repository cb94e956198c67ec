"""Lowers patterns on one thread."""

from headwise import _native
from headwise.patterns.base import Pattern
from headwise.patterns.grid import Grid
from headwise.patterns.lowering import lower
from headwise.patterns.tiles import TileLayout


def layout_of(pattern: Pattern, places: tuple[Grid, ...]) -> TileLayout | None:
    """Do what ``lower`` does, on one thread where the compiled core can see to that.

    Its many small operations gain nothing from threads, and on a busy machine wait for them.
    """
    kernels = _native.kernels
    if kernels is None:
        return lower(pattern, places)
    before = kernels.own_threads(1)
    try:
        return lower(pattern, places)
    finally:
        kernels.own_threads(before)
