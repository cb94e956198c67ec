"""Laws of interval sets, against sets of integers."""

from hypothesis import given
from hypothesis import strategies as st

from headwise.patterns import intervals

SPAN = range(-20, 20)
pieces = st.lists(st.tuples(st.integers(-15, 15), st.integers(-15, 15)), max_size=6)
sets = pieces.map(intervals.normalise)


def members(found: intervals.Intervals) -> set[int]:
    return {n for n in SPAN if any(low <= n < high for low, high in found)}


def is_normal(found: intervals.Intervals) -> bool:
    edges = [edge for piece in found for edge in piece]
    return edges == sorted(set(edges))


@given(pieces)
def test_normalise_keeps_the_members(drawn: list[tuple[int, int]]) -> None:
    found = intervals.normalise(drawn)
    assert members(found) == {n for n in SPAN for low, high in drawn if low <= n < high}
    assert is_normal(found)


@given(sets, sets)
def test_union_and_intersection(a: intervals.Intervals, b: intervals.Intervals) -> None:
    assert members(intervals.union(a, b)) == members(a) | members(b)
    assert members(intervals.intersection(a, b)) == members(a) & members(b)
    assert is_normal(intervals.union(a, b))
    assert is_normal(intervals.intersection(a, b))


@given(sets)
def test_complement(a: intervals.Intervals) -> None:
    assert members(intervals.complement(a)) == set(SPAN) - members(a)
    assert intervals.complement(intervals.complement(a)) == a


@given(sets, st.integers(-16, 16), st.integers(-16, 16))
def test_covers(a: intervals.Intervals, low: int, high: int) -> None:
    assert intervals.covers(a, low, high) == (set(range(low, high)) <= members(a))


@given(st.lists(st.booleans(), max_size=12))
def test_runs(flags: list[bool]) -> None:
    found = intervals.runs(flags)
    assert members(found) == {n for n, flag in enumerate(flags) if flag}
    assert is_normal(found)


@given(st.integers(-15, 15), st.integers(-15, 15))
def test_between(low: int, high: int) -> None:
    assert members(intervals.between(low, high)) == set(range(low, high))
