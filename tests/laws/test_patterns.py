"""Laws of the pattern algebra, over drawn patterns."""

import copy
import pickle

import torch
from hypothesis import given
from hypothesis import strategies as st

from headwise import patterns as named
from headwise.patterns import Causal, Pattern, Window
from headwise.patterns.grid import Grid
from headwise.patterns.spans import Runs
from tests.support import rules
from tests.support.strategies import Setting, patterns, settings_of_calls


def dense(pattern: Pattern, setting: Setting) -> torch.Tensor:
    """Spell out over all samples and heads."""
    mask = pattern.dense(setting.q_len, setting.kv_len, **setting.offsets)
    return mask.expand(setting.batch, setting.heads, -1, -1)


@given(st.data())
def test_dense_says_what_the_rule_says_pair_by_pair(data: st.DataObject) -> None:
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
def test_repr_pickle_and_copy_give_the_same_value(data: st.DataObject) -> None:
    setting = data.draw(settings_of_calls())
    pattern = data.draw(patterns(setting))
    hash(pattern)
    for again in (
        eval(repr(pattern), dict(vars(named))),
        pickle.loads(pickle.dumps(pattern)),
        copy.deepcopy(pattern),
        copy.copy(pattern),
    ):
        assert type(again) is type(pattern)
        assert again == pattern
        assert hash(again) == hash(pattern)
        assert torch.equal(dense(again, setting), dense(pattern, setting))


@given(st.data())
def test_equal_patterns_allow_equal_pairs(data: st.DataObject) -> None:
    setting = data.draw(settings_of_calls())
    a, b = data.draw(patterns(setting)), data.draw(patterns(setting))
    if a == b:
        assert torch.equal(dense(a, setting), dense(b, setting))


@given(st.data())
def test_reach_never_calls_a_pair_empty_or_full_wrongly(data: st.DataObject) -> None:
    setting = data.draw(settings_of_calls())
    pattern = data.draw(patterns(setting))
    mask = rules.spelled(pattern, setting)
    for sample in range(setting.batch):
        query, key = setting.positions(sample)
        grid = Grid(setting.q_len, setting.kv_len, query, key)
        plain = pattern.sample(sample, 0).placed(grid)
        first = data.draw(st.integers(0, setting.q_len - 1))
        last = data.draw(st.integers(first, setting.q_len - 1))
        ends = torch.tensor([[query + first], [query + last]])
        reach = plain.reach(Runs(ends[0], ends[1], key, key + setting.kv_len))
        rows = mask[sample, 0, first : last + 1]
        for column in range(setting.kv_len):
            place = key + column
            maybe, sure = (
                bool(((found.low <= place) & (place < found.high)).any()) for found in reach
            )
            assert maybe or not rows[:, column].any(), f"{plain} hides key {place}"
            assert not sure or rows[:, column].all(), f"{plain} promises key {place}"


@given(
    st.builds(
        Window, st.none() | st.integers(0, 5), st.none() | st.integers(0, 5), st.integers(1, 3)
    )
    | st.just(Causal()),
    st.integers(-50, 50),
)
def test_a_shift_of_all_positions_changes_nothing(pattern: Pattern, shift: int) -> None:
    assert pattern.shift_invariant
    here, there = pattern.dense(7, 11, 3, 0), pattern.dense(7, 11, 3 + shift, shift)
    assert torch.equal(here, there)


@given(st.data())
def test_allows_on_any_grid_equals_dense(data: st.DataObject) -> None:
    setting = data.draw(settings_of_calls())
    shared = Setting(setting.batch, setting.heads, setting.q_len, setting.kv_len, 2, 0)
    leaf = st.sampled_from([Causal(), Window(2, 1), Window(1, None, 2), ~Causal()])
    pattern = data.draw(leaf)
    q_pos = torch.arange(shared.q_len).unsqueeze(1) + 2
    kv_pos = torch.arange(shared.kv_len)
    assert torch.equal(pattern.allows(q_pos, kv_pos), pattern.dense(shared.q_len, shared.kv_len, 2))
    backwards = pattern.allows(q_pos.flip(0), kv_pos.flip(0))
    assert torch.equal(backwards.flip(0, 1), pattern.allows(q_pos, kv_pos))
