"""Laws of every kind of pattern by itself, and of the algebra that joins them."""

import copy
import pickle
from dataclasses import replace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from headwise import patterns as named
from headwise.patterns import Causal, Fixed, Pattern, Strided, Window
from headwise.patterns.grid import Grid
from headwise.patterns.spans import Runs
from tests.support import rules
from tests.support.settings import Setting
from tests.support.strategies import (
    EVERY_KIND,
    kind_of,
    patterns,
    settings_for,
    settings_of_calls,
)

on_every_kind = pytest.mark.parametrize("kind", EVERY_KIND)
few = settings(max_examples=settings().max_examples // 2)
NAMES = {**vars(named), "torch": torch}


def dense(pattern: Pattern, setting: Setting) -> torch.Tensor:
    """Spell out over all samples and heads."""
    mask = pattern.dense(setting.q_len, setting.kv_len, **setting.offsets)
    return mask.expand(setting.batch, setting.heads, -1, -1)


@on_every_kind
@given(data=st.data())
def test_dense_says_what_the_rule_says_pair_by_pair(kind: str, data: st.DataObject) -> None:
    setting = data.draw(settings_for(kind))
    pattern = data.draw(kind_of(kind, setting))
    assert torch.equal(dense(pattern, setting), rules.spelled(pattern, setting))


@given(st.data())
def test_combinations_say_what_the_rule_says_pair_by_pair(data: st.DataObject) -> None:
    setting = data.draw(settings_of_calls())
    pattern = data.draw(patterns(setting))
    assert torch.equal(dense(pattern, setting), rules.spelled(pattern, setting))


@given(st.data())
def test_de_morgan(data: st.DataObject) -> None:
    setting = data.draw(settings_of_calls())
    a, b = data.draw(patterns(setting)), data.draw(patterns(setting))
    assert torch.equal(dense(~(a & b), setting), dense(~a | ~b, setting))
    assert torch.equal(dense(~(a | b), setting), dense(~a & ~b, setting))


@given(st.data())
def test_and_or_not_are_those_of_booleans(data: st.DataObject) -> None:
    setting = data.draw(settings_of_calls())
    a, b = data.draw(patterns(setting)), data.draw(patterns(setting))
    assert torch.equal(dense(a & b, setting), dense(a, setting) & dense(b, setting))
    assert torch.equal(dense(a | b, setting), dense(a, setting) | dense(b, setting))
    assert torch.equal(dense(~a, setting), ~dense(a, setting))


@given(st.data())
def test_simplification_changes_no_pair(data: st.DataObject) -> None:
    setting = data.draw(settings_of_calls())
    pattern = data.draw(patterns(setting))
    assert torch.equal(dense(pattern.simplified(), setting), dense(pattern, setting))


@given(st.data())
def test_repr_pickle_and_copy_give_the_same_combination(data: st.DataObject) -> None:
    setting = data.draw(settings_of_calls())
    assert_kept(data.draw(patterns(setting)), setting)


@on_every_kind
@few
@given(data=st.data())
def test_repr_pickle_copy_and_to_give_the_same_value(kind: str, data: st.DataObject) -> None:
    """B100, for every kind: no part is lost on the way."""
    setting = data.draw(settings_for(kind))
    pattern = data.draw(kind_of(kind, setting))
    assert_kept(pattern, setting)
    dense(pattern, setting)
    assert_kept(pattern, setting)


def assert_kept(pattern: Pattern, setting: Setting) -> None:
    hash(pattern)
    for again in (
        eval(repr(pattern), dict(NAMES)),
        pickle.loads(pickle.dumps(pattern)),
        copy.deepcopy(pattern),
        copy.copy(pattern),
        *(pattern.to(where) for where in ("cpu", "meta", torch.float16, torch.device("cuda"))),
        pattern.to("cpu", torch.bfloat16, non_blocking=True),
    ):
        assert type(again) is type(pattern)
        assert again == pattern
        assert hash(again) == hash(pattern)
        assert repr(again) == repr(pattern)
        assert again.batch_size == pattern.batch_size
        assert again.num_heads == pattern.num_heads
        assert torch.equal(dense(again, setting), dense(pattern, setting))


@on_every_kind
@few
@given(data=st.data())
def test_equal_is_what_is_built_alike(kind: str, data: st.DataObject) -> None:
    setting = data.draw(settings_for(kind))
    a, b = data.draw(kind_of(kind, setting)), data.draw(kind_of(kind, setting))
    assert (a == b) == (repr(a) == repr(b))
    if a == b:
        assert hash(a) == hash(b)
        assert torch.equal(dense(a, setting), dense(b, setting))


@on_every_kind
@few
@given(data=st.data())
def test_the_picture_is_the_mask(kind: str, data: st.DataObject) -> None:
    setting = Setting(2, 2, data.draw(st.integers(1, 19)), data.draw(st.integers(1, 19)), 0)
    setting = replace(setting, q_len=min(setting.q_len, setting.kv_len), q_offset=None)
    pattern = data.draw(kind_of(kind, setting))
    parts = [
        part.splitlines() for part in pattern.draw(setting.q_len, setting.kv_len).split("\n\n")
    ]
    seen = torch.tensor([[[mark == "■" for mark in row] for row in part] for part in parts])
    wanted = pattern.dense(setting.q_len, setting.kv_len)
    assert torch.equal(seen.view(wanted.shape), wanted)


@on_every_kind
@few
@given(data=st.data())
def test_samples_and_heads_are_told_apart_by_name_only(kind: str, data: st.DataObject) -> None:
    setting = data.draw(settings_for(kind))
    pattern = data.draw(kind_of(kind, setting))
    assert pattern.batch_size in (None, 1, setting.batch)
    assert pattern.num_heads in (None, 1, setting.heads)
    spelled = dense(pattern, setting)
    for b in range(setting.batch):
        query, key = setting.positions(b)
        for h in range(setting.heads):
            plain = pattern.sample(b, h)
            found = plain.dense(setting.q_len, setting.kv_len, query, key)
            assert torch.equal(found.view(found.shape[-2:]), spelled[b, h])


@on_every_kind
@given(data=st.data())
def test_reach_never_calls_a_pair_empty_or_full_wrongly(kind: str, data: st.DataObject) -> None:
    setting = data.draw(settings_for(kind, st.integers(1, 9) | st.just(17)))
    pattern = data.draw(kind_of(kind, setting))
    assert_reach(pattern, setting, data)


@given(st.data())
def test_reach_of_combinations(data: st.DataObject) -> None:
    setting = data.draw(settings_of_calls())
    assert_reach(data.draw(patterns(setting)), setting, data)


def assert_reach(pattern: Pattern, setting: Setting, data: st.DataObject) -> None:
    mask = rules.spelled(pattern, setting)
    first = data.draw(st.lists(st.integers(0, setting.q_len - 1), min_size=1, max_size=3))
    last = [data.draw(st.integers(row, setting.q_len - 1)) for row in first]
    for sample in range(setting.batch):
        query, key = setting.positions(sample)
        grid = Grid(setting.q_len, setting.kv_len, query, key)
        plain = pattern.sample(sample, setting.heads - 1).placed(grid)
        ends = torch.tensor([first, last]) + query
        reach = plain.reach(Runs(ends[0], ends[1], key, key + setting.kv_len))
        places = torch.arange(key, key + setting.kv_len).view(-1, 1, 1)
        maybe, sure = (
            ((found.low <= places) & (places < found.high)).any(-1).expand(-1, len(first)).T
            for found in reach
        )
        for run, ends_of in enumerate(zip(first, last, strict=True)):
            rows = mask[sample, -1, ends_of[0] : ends_of[1] + 1]
            assert not (rows.any(0) & ~maybe[run]).any(), f"{plain} hides a key"
            assert not (sure[run] & ~rows.all(0)).any(), f"{plain} promises a key"


@on_every_kind
@few
@given(data=st.data())
def test_row_is_exact(kind: str, data: st.DataObject) -> None:
    setting = data.draw(settings_for(kind))
    pattern = data.draw(kind_of(kind, setting))
    mask = rules.spelled(pattern, setting)
    for sample in range(setting.batch):
        query, key = setting.positions(sample)
        grid = Grid(setting.q_len, setting.kv_len, query, key)
        plain = pattern.sample(sample, 0).placed(grid)
        for row in range(setting.q_len):
            keys = plain.row(query + row)
            if keys is None:
                continue
            edges = [edge for piece in keys for edge in piece]
            assert edges == sorted(set(edges)), "sorted, apart and not empty"
            found = [
                any(low <= key + column < high for low, high in keys)
                for column in range(setting.kv_len)
            ]
            assert found == mask[sample, 0, row].tolist()


SHIFTED = [
    st.just(Causal()),
    st.builds(
        Window, st.none() | st.integers(0, 5), st.none() | st.integers(0, 5), st.integers(1, 3)
    ),
    st.builds(Strided, st.integers(1, 6)),
    st.builds(lambda a, b: named.PerHead([Strided(a), Window(b, 0)]), *[st.integers(1, 6)] * 2),
]


@given(st.one_of(SHIFTED), st.integers(-50, 50))
def test_a_shift_of_all_positions_changes_nothing(pattern: Pattern, shift: int) -> None:
    assert pattern.shift_invariant
    here, there = pattern.dense(7, 11, 3, 0), pattern.dense(7, 11, 3 + shift, shift)
    assert torch.equal(here, there)


@on_every_kind
@few
@given(data=st.data())
def test_who_promises_to_be_shifted_can_be(kind: str, data: st.DataObject) -> None:
    setting = data.draw(settings_for(kind))
    pattern = data.draw(kind_of(kind, setting))
    if pattern.shift_invariant:
        q_len, kv_len = setting.q_len, setting.kv_len
        assert torch.equal(pattern.dense(q_len, kv_len, 3), pattern.dense(q_len, kv_len, 40, 37))
    assert not Fixed(3).shift_invariant


@on_every_kind
@few
@given(data=st.data())
def test_allows_on_any_grid_equals_dense(kind: str, data: st.DataObject) -> None:
    q_len = data.draw(st.integers(1, 9))
    setting = Setting(2, 2, q_len, q_len + data.draw(st.integers(0, 4)), 0)
    pattern = data.draw(kind_of(kind, setting))
    wanted = dense(pattern, setting)
    queries, keys = (
        torch.tensor(data.draw(st.permutations(range(length))))
        for length in (setting.q_len, setting.kv_len)
    )
    for q_pos, kv_pos in (
        (queries.view(-1, 1), keys.view(1, -1)),
        (queries.view(1, -1), keys.view(-1, 1)),
        (queries.view(-1, 1, 1), keys),
        (queries[0], keys),
        (queries[torch.arange(setting.kv_len) % q_len], keys),
    ):
        found = pattern.allows(q_pos, kv_pos)
        rows, columns = q_pos + 0 * kv_pos, kv_pos + 0 * q_pos
        assert torch.equal(found.expand(2, 2, *rows.shape), wanted[:, :, rows, columns])
