"""The state of linear attention: a sequence in parts is the sequence as a whole."""

from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor, nn

import headwise as hw
from headwise.ops.linear.state import unscaled
from tests.support.budget import assert_same_bits, assert_within_budget
from tests.support.linear import (
    EVERY_FORM,
    FORMS,
    LinearCase,
    WithGain,
    assert_near,
    chunks_of,
    gradients,
    linear_cases,
    parts,
)


def in_parts(case: LinearCase, cuts: list[int], forms: list[str]) -> hw.LinearAttended:
    """Run a causal call part by part, each with the state of the one before."""
    given_ = dict(case.keywords)
    state, mask = given_.pop("state", None), given_.pop("kv_mask", None)
    outputs: list[Tensor] = []
    for (start, stop), form in zip(zip([0, *cuts], [*cuts, None], strict=True), forms, strict=True):
        rows = slice(start, stop)
        with chunks_of(case.chunk):
            found = hw.linear_attend(
                *(x[:, :, rows] for x in (case.query, case.key, case.value)),
                **given_,
                kv_mask=None if mask is None else mask[:, rows],
                state=state,
                backend=form,
            )
        outputs.append(found.output)
        state = found.state
    return hw.LinearAttended(torch.cat(outputs, 2), state)


@given(case=linear_cases(causal=True, equal=True), data=st.data())
def test_parts_are_the_whole_with_gradients(case: LinearCase, data: st.DataObject) -> None:
    length = case.query.shape[2]
    cuts = sorted(data.draw(st.lists(st.integers(0, length), min_size=1, max_size=3)))
    forms = data.draw(st.lists(st.sampled_from(FORMS), min_size=4, max_size=4))[: len(cuts) + 1]
    whole, cut = case.attended("reference"), in_parts(case, cuts, forms)
    for number, (a, b) in enumerate(zip(parts(cut), parts(whole), strict=True)):
        assert_near(a, b, f"part {number}")
    for number, (a, b) in enumerate(zip(gradients(case, cut), gradients(case, whole), strict=True)):
        assert_near(a, b, f"gradient {number}")


@given(case=linear_cases(causal=False), form=st.sampled_from(FORMS))
def test_without_causality_all_earlier_keys_are_seen(case: LinearCase, form: str) -> None:
    given_ = dict(case.keywords)
    state, mask = given_.pop("state", None), given_.pop("kv_mask", None)
    half = case.key.shape[2] // 2
    for rows in (slice(0, half), slice(half, None)):
        found = hw.linear_attend(
            case.query,
            case.key[:, :, rows],
            case.value[:, :, rows],
            **given_,
            kv_mask=None if mask is None else mask[:, rows],
            state=state,
            backend=form,
        )
        state = found.state
    whole = case.attended(form)
    for a, b in zip(parts(found), parts(whole), strict=True):
        assert_near(a, b)


@pytest.mark.parametrize("form", FORMS)
def test_a_state_before_anything_is_none(form: str) -> None:
    query, key, value = (torch.randn(1, 2, 3, 4, dtype=torch.float64) for _ in range(3))
    for feature_map in ("elu", WithGain()):
        kept: dict[str, Any] = {"feature_map": feature_map, "causal": True, "backend": form}
        empty = hw.linear_attend(*(x[:, :, :0] for x in (query, key, value)), **kept).state
        with_it = hw.linear_attend(query, key, value, state=empty, **kept)
        without = hw.linear_attend(query, key, value, **kept)
        for a, b in zip((with_it.output, *with_it.state), (without.output, *without.state)):  # noqa: B905
            assert_near(a, b)


def test_a_state_holds_no_more_than_itself() -> None:
    query = torch.randn(1, 2, 700, 4)
    for form in EVERY_FORM:
        state = hw.linear_attend(
            query, query, query, feature_map="elu", causal=True, backend=form
        ).state
        held = sum(part.untyped_storage().nbytes() for part in state)
        assert held == sum(part.nbytes for part in state), form


def test_gains_far_beyond_what_numbers_hold() -> None:
    key = torch.full((1, 1, 300, 3), -2.0)
    key[:, :, 200:] = 2.0
    value = torch.arange(300.0).view(1, 1, 300, 1)
    for form in EVERY_FORM:
        found = hw.linear_attend(
            key, key, value, feature_map=WithGain(1e4), causal=True, decay=0.5, backend=form
        )
        assert found.output.isfinite().all()
        assert found.state.sums.isfinite().all()
        # Before the first large key all count, halved with every step; from there on it alone does.
        for place, wanted in ((0, 0.0), (199, 198.0), (200, 200.0), (299, 298.0)):
            exact = torch.tensor([wanted], dtype=torch.float64)
            assert_within_budget(
                found.output[0, 0, place], exact=exact, plain=exact.float(), label=f"{form} {place}"
            )


def layer_with(mechanism: Any, **given_: Any) -> hw.MultiHeadAttention:
    return hw.MultiHeadAttention(12, 4, num_kv_heads=2, mechanism=mechanism, **given_).double()


MECHANISMS: dict[str, Any] = {
    "elu": lambda: hw.nn.LinearAttention("elu"),
    "decay": lambda: hw.nn.LinearAttention("elu", decay=torch.tensor([0.5, 0.9])),
    "plain": lambda: hw.nn.LinearAttention("identity", normalize=False, decay=0.8),
    "gain": lambda: hw.nn.LinearAttention(WithGain()),
    "module": lambda: hw.nn.LinearAttention(nn.Sequential(nn.Linear(3, 5), nn.Softplus())),
    "random": lambda: hw.nn.RandomFeatures(8),
}


@pytest.mark.parametrize("make", MECHANISMS.values(), ids=MECHANISMS)
@pytest.mark.parametrize("side", ["left", "right"])
def test_a_layer_with_a_cache_and_padding(make: Any, side: str) -> None:
    layer = layer_with(make(), pattern=hw.Causal())
    x = torch.randn(2, 9, 12, dtype=torch.float64)
    real = torch.ones(2, 9, dtype=torch.bool)
    real[1, : 3 if side == "left" else 0] = False
    real[1, 9 if side == "left" else 6 :] = False
    with torch.no_grad():
        whole, cache = layer(x, kv_mask=real), hw.KVCache()
        steps = [
            layer(x[:, a:b], kv_mask=real[:, :b], cache=cache) for a, b in ((0, 4), (4, 5), (5, 9))
        ]
        alone = layer(x[1:, real[1]])
    assert_near(torch.cat(steps, 1), whole)
    assert_near(whole[1, real[1]], alone[0])
    assert cache.length() == 9
    assert isinstance(cache.state(), hw.LinearState)


@pytest.mark.parametrize("make", MECHANISMS.values(), ids=MECHANISMS)
def test_a_cache_keeps_it_through_everything(make: Any, tmp_path: Any) -> None:
    layer = layer_with(make(), pattern=hw.Causal())
    x = torch.randn(2, 6, 12, dtype=torch.float64)
    with torch.no_grad():
        cache, whole = hw.KVCache(), layer(x)
        layer(x[:, :4], cache=cache)
        twin = cache.fork()
        cache.save(tmp_path / "cache")
        assert_near(layer(x[:, 4:], cache=cache), whole[:, 4:], "itself")
        assert_near(layer(x[:, 4:], cache=twin), whole[:, 4:], "fork")
        loaded = hw.KVCache.load(tmp_path / "cache")
        assert isinstance(loaded.state(), hw.LinearState)
        assert_near(layer(x[:, 4:], cache=loaded), whole[:, 4:], "file")
        again = hw.KVCache.load(tmp_path / "cache")
        again.reorder(torch.tensor([1, 0, 1]))
        found = layer(x[[1, 0, 1], 4:], cache=again)
        assert_near(found, whole[[1, 0, 1], 4:], "reordered")


@pytest.mark.parametrize("make", MECHANISMS.values(), ids=MECHANISMS)
def test_a_layer_computes_the_definition(make: Any) -> None:
    mechanism = make()
    layer = layer_with(mechanism, pattern=hw.Causal())
    x = torch.randn(2, 7, 12, dtype=torch.float64)
    real = torch.rand(2, 7) > 0.3
    call = hw.nn.AttentionCall(*layer.project(x), pattern=hw.Causal(), kv_mask=real)
    wanted = layer.W_o(layer.combine_heads(mechanism.reference(call)))
    assert_near(layer(x, kv_mask=real), wanted)
    one = layer(x[1], kv_mask=real[1])
    assert_near(one, wanted[1])


def test_gradients_flow_through_a_cache() -> None:
    layer = layer_with(hw.nn.LinearAttention("elu"), pattern=hw.Causal())
    x = torch.randn(1, 5, 12, dtype=torch.float64, requires_grad=True)
    cache = hw.KVCache()
    steps = torch.cat([layer(x[:, a:b], cache=cache) for a, b in ((0, 2), (2, 5))], 1)
    (carried,) = torch.autograd.grad(steps.square().sum(), x)
    (whole,) = torch.autograd.grad(layer(x).square().sum(), x)
    assert_near(carried, whole)


def test_more_queries_than_keys_see_the_state_first() -> None:
    query, key, value = (torch.randn(1, 2, 5, 3, dtype=torch.float64) for _ in range(3))
    kept: dict[str, Any] = {"feature_map": "elu", "causal": True, "decay": 0.7}
    first = hw.linear_attend(query, key, value, **kept)
    for form in FORMS:
        found = hw.linear_attend(
            query, key[:, :, 3:], value[:, :, 3:], state=first.state, backend=form, **kept
        )
        nothing = hw.linear_attend(
            query[:, :, :3],
            key[:, :, :3] * 0 - 1e9,
            value[:, :, :3],
            state=first.state,
            backend=form,
            **kept,
        )
        assert_near(found.output[:, :, :3], nothing.output)
    assert_same_bits(first.output, hw.linear_attend(query, key, value, **kept).output)


@pytest.mark.parametrize("form", EVERY_FORM)
@pytest.mark.parametrize("causal", [True, False])
@pytest.mark.parametrize(("name", "normalize"), [("plain", False), ("other map", True)])
def test_a_factor_of_a_state_counts_where_keys_have_none(
    form: str, causal: bool, name: str, normalize: bool
) -> None:
    made = hw.nn.RandomFeatures(8, 8)
    query, key, value = (torch.randn(1, 2, 40, 8) for _ in range(3))
    carried = hw.linear_attend(query, 3 * key, value, feature_map=made).state
    assert (carried.log_scale != 0).all()
    found, wanted = (
        hw.linear_attend(
            query,
            key,
            value,
            feature_map=made if name == "plain" else "elu",
            normalize=normalize,
            causal=causal,
            state=state,
            backend=form,
        )
        for state in (carried, unscaled(carried))
    )
    assert_same_bits(found.output, wanted.output)
    assert not found.state.log_scale.any()
