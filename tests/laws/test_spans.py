"""Laws of ranges for many runs at once, against one set of integers per run."""

from typing import TypeAlias

import torch
from hypothesis import given
from hypothesis import strategies as st

from headwise.patterns import intervals, spans
from headwise.patterns.intervals import FAR
from headwise.patterns.spans import COARSE, Runs, Spans

Sets: TypeAlias = list[set[int]]

SPAN = range(-20, 20)
RUNS = 3
edges = st.integers(-15, 15)
pieces = st.lists(st.tuples(edges, edges), max_size=5)
many = st.lists(pieces, min_size=RUNS, max_size=RUNS)


def made(drawn: list[list[tuple[int, int]]]) -> Spans:
    """Gather pieces in any order, empty ones and overlapping ones among them."""
    width = max(map(len, drawn))
    filled = [row + [(3, 1)] * (width - len(row)) for row in drawn]
    told = torch.tensor(filled, dtype=torch.int64).view(len(drawn), width, 2)
    return spans.gathered(told[..., 0], told[..., 1])


sets = st.one_of(
    many.map(made),
    pieces.map(intervals.normalise).map(spans.constant),
    st.just(spans.NOTHING),
    st.just(spans.EVERYTHING),
)


def members(found: Spans, runs: int = RUNS, span: range = SPAN) -> Sets:
    """Return the integers of each run, after looking at the form of the ranges."""
    assert len(found.low) in (1, runs)
    assert found.low.shape == found.high.shape
    assert_normal(found)
    low, high = (edge.expand(runs, -1).tolist() for edge in found)
    return [
        {n for n in span if any(a <= n < b for a, b in zip(*row, strict=True))}
        for row in zip(low, high, strict=True)
    ]


def assert_normal(found: Spans) -> None:
    """Ranges rise and do not touch; unused ones are empty and behind all others."""
    for low, high in zip(found.low.tolist(), found.high.tolist(), strict=True):
        used = [(a, b) for a, b in zip(low, high, strict=True) if a < b]
        assert all(a == b == FAR for a, b in list(zip(low, high, strict=True))[len(used) :])
        flat = [edge for piece in used for edge in piece]
        assert flat == sorted(set(flat))


def each(a: Sets, b: Sets, join: str) -> Sets:
    return [getattr(one, join)(other) for one, other in zip(a, b, strict=True)]


@given(many)
def test_gathering_keeps_the_members(drawn: list[list[tuple[int, int]]]) -> None:
    wanted = [{n for low, high in row for n in range(low, high)} for row in drawn]
    assert members(made(drawn)) == wanted


@given(sets, sets)
def test_union_and_intersection(a: Spans, b: Spans) -> None:
    assert members(spans.union(a, b)) == each(members(a), members(b), "union")
    assert members(spans.intersection(a, b)) == each(members(a), members(b), "intersection")


@given(sets)
def test_complement(a: Spans) -> None:
    assert members(spans.complement(a)) == each([set(SPAN)] * RUNS, members(a), "difference")
    assert members(spans.complement(spans.complement(a))) == members(a)


@given(sets, st.lists(st.booleans(), min_size=RUNS, max_size=RUNS))
def test_where(a: Spans, holds: list[bool]) -> None:
    found = members(spans.where(torch.tensor(holds), a))
    assert found == [kept if hold else set() for kept, hold in zip(members(a), holds, strict=True)]


@given(st.lists(st.tuples(edges, edges), min_size=RUNS, max_size=RUNS), edges)
def test_between(drawn: list[tuple[int, int]], low: int) -> None:
    ends = torch.tensor(drawn)
    assert members(spans.between(ends[:, 0], ends[:, 1])) == [set(range(a, b)) for a, b in drawn]
    assert members(spans.between(low, ends[:, 1])) == [set(range(low, b)) for _, b in drawn]


@given(
    st.lists(st.lists(st.booleans(), min_size=12, max_size=12), min_size=RUNS, max_size=RUNS),
    st.integers(1, 5),
)
def test_flagged(drawn: list[list[bool]], gap: int) -> None:
    flags = torch.tensor(drawn)
    set_places = [{n for n, flag in enumerate(row) if flag} for row in drawn]
    assert members(spans.flagged(flags)) == set_places
    for found, places in zip(members(spans.flagged(flags, gap)), set_places, strict=True):
        filled = {
            n
            for n in range(12)
            if any(
                low <= n <= high and high - low <= gap and places >= {low, high}
                for low in range(n + 1)
                for high in range(n, 12)
            )
        }
        assert found == places | filled


@given(sets, st.integers(1, 4), st.integers(-3, 3))
def test_scaled(a: Spans, by: int, offset: int) -> None:
    wide = range(-20 * by - 3, 20 * by)
    blocks = members(a)
    found = members(spans.scaled(spans.intersection(a, spans.between(-15, 15)), by, offset))
    inner = [block & set(range(-15, 15)) for block in blocks]
    wanted = [{n * by + offset + step for n in row for step in range(by)} for row in inner]
    assert found == [row & set(SPAN) for row in wanted]
    assert all(row <= set(wide) for row in found)


@given(
    st.lists(st.tuples(st.integers(-60, 900), st.integers(0, 60)), min_size=1, max_size=RUNS),
    st.sampled_from([2, 2 * COARSE - 1, 2 * COARSE, 2 * COARSE + 13, 700]),
    st.tuples(st.integers(-40, 40), st.integers(1, 1000)),
    st.booleans(),
)
def test_comb_holds_every_tooth(
    queries: list[tuple[int, int]], step: int, keys: tuple[int, int], bounded: bool
) -> None:
    first = torch.tensor([query for query, _ in queries])
    last = torch.tensor([query + more for query, more in queries])
    runs = Runs(first, last, keys[0], sum(keys))
    near = 300 if bounded else FAR
    within = spans.between(first - near, last + near)
    found = members(spans.comb(runs, step, within), len(queries), range(runs.low, runs.high))
    for seen, (query, more) in zip(found, queries, strict=True):
        teeth = {
            key
            for key in range(runs.low, runs.high)
            if any((key - row) % step == 0 for row in range(query, query + more + 1))
            and query - near <= key < query + more + near
        }
        assert teeth <= seen
        assert step < 2 * COARSE or seen == teeth


@given(sets, st.integers(-16, 16), st.integers(-16, 16))
def test_covers(a: Spans, low: int, high: int) -> None:
    wanted = all(set(range(low, high)) <= row for row in members(a))
    assert spans.covers(a, low, high) == wanted


@given(st.lists(st.tuples(st.integers(-9, 9), st.integers(0, 9)), min_size=1, max_size=4))
def test_every_query_of_a_run(drawn: list[tuple[int, int]]) -> None:
    first, more = torch.tensor(drawn).unbind(1)
    found = Runs(first, first + more, 0, 1).every().tolist()
    for row, (start, count) in zip(found, drawn, strict=True):
        assert set(row) == set(range(start, start + count + 1))


def test_no_runs_at_all() -> None:
    none = torch.zeros(0, dtype=torch.int64)
    assert Runs(none, none, 0, 1).every().shape == (0, 0)
    empty = spans.gathered(none.view(0, 2), none.view(0, 2))
    for found in (empty, spans.complement(empty), spans.union(empty, empty)):
        assert len(found.low) == 0
