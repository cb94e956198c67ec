"""``attention_weights`` against the oracle, the output, and itself in part."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import headwise as hw
from headwise.ops.softmax import weights as few_passes
from tests.support.budget import assert_same_bits, assert_within_budget, largest_error
from tests.support.calls import Call, calls
from tests.support.shapes import Sizes, inputs


@given(call=calls(q_lens=(1, 5, 49), kv_lens=(1, 31, 129)))
def test_weights_and_the_output_they_give(call: Call) -> None:
    query, key, value = call.given
    weights = hw.attention_weights(query, key, call.pattern, **call.keywords)
    exact = call.answer()
    plain = call.plain(exact)
    assert_within_budget(weights, exact=exact.weights, plain=plain.weights, label="weights")
    repeated = value.repeat_interleave(query.shape[1] // value.shape[1], 1)
    assert_within_budget(weights @ repeated, exact=exact.output, plain=plain.output, label="p @ v")
    sums = weights.double().sum(-1)
    closed = exact.lse == float("-inf")
    torch.testing.assert_close(sums, (~closed).double(), rtol=0, atol=1e-4)


@given(data=st.data(), call=calls(q_lens=(1, 5, 17), kv_lens=(1, 3, 31)))
def test_rows_and_heads_are_cut_from_the_whole(data: st.DataObject, call: Call) -> None:
    query, key, _ = call.given
    q_len, heads = query.shape[2], query.shape[1]
    some_rows = st.lists(st.integers(-q_len, q_len - 1), max_size=4)
    some_heads = st.lists(st.integers(-heads, heads - 1), max_size=4)
    rows, chosen = data.draw(st.none() | some_rows), data.draw(st.none() | some_heads)
    whole = hw.attention_weights(query, key, call.pattern, **call.keywords)
    part = hw.attention_weights(query, key, call.pattern, rows=rows, heads=chosen, **call.keywords)
    wanted = whole if chosen is None else whole[:, chosen]
    wanted = wanted if rows is None else wanted[:, :, rows]
    assert part.shape == wanted.shape
    torch.testing.assert_close(part, wanted, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize(
    ("asked", "meant"),
    [
        (2, [2]),
        (-1, [4]),
        (slice(1, 5, 2), [1, 3]),
        (torch.tensor([3, 0]), [3, 0]),
        ([], []),
        (range(2), [0, 1]),
        (torch.tensor(3), [3]),
        (torch.tensor([True, False, False, True, False]), [0, 3]),
    ],
    ids=str,
)
def test_ways_to_name_rows(asked: object, meant: list[int]) -> None:
    query, key, _ = inputs()
    whole = hw.attention_weights(query, key)
    found = hw.attention_weights(query, key, rows=asked)  # type: ignore[arg-type]
    torch.testing.assert_close(found, whole[:, :, meant])


def test_three_and_five_dimensions() -> None:
    query, key, _ = inputs()
    whole = hw.attention_weights(query, key, hw.Causal())
    torch.testing.assert_close(hw.attention_weights(query[0], key[0], hw.Causal()), whole[0])
    more = hw.attention_weights(query[None], key[None], hw.Causal(), rows=[1])
    torch.testing.assert_close(more, whole[None, :, :, 1:2])


def test_heads_of_a_group_read_their_key_head() -> None:
    query, key, _ = inputs(Sizes(group=2))
    whole = hw.attention_weights(query, key)
    for head in range(6):
        part = hw.attention_weights(query, key, heads=head)
        alone = hw.attention_weights(query[:, head : head + 1], key[:, head // 2 : head // 2 + 1])
        assert_same_bits(part, alone)
        torch.testing.assert_close(part[:, 0], whole[:, head])


def test_asking_for_weights_changes_no_output() -> None:
    given_ = inputs()
    before = hw.attend(*given_, hw.Causal())
    hw.attention_weights(given_.query, given_.key, hw.Causal())
    assert_same_bits(hw.attend(*given_, hw.Causal()), before)


def test_masked_nan_stays_out_of_the_weights() -> None:
    query, key, _ = inputs(Sizes(q_len=7))
    wanted = hw.attention_weights(query, key, hw.Lengths(5))
    key[:, :, 5:] = float("nan")
    assert_same_bits(hw.attention_weights(query, key, hw.Lengths(5)), wanted)


@given(call=calls(q_lens=(1, 5, 17), kv_lens=(1, 3, 31)))
def test_gradients_in_few_passes_are_those_of_the_definition(call: Call) -> None:
    query, key, _ = (each.double().requires_grad_() for each in call.given)
    wanted_of = [query, key]
    keywords = dict(call.keywords)
    for name in ("bias", "sinks"):
        given_tensor = keywords.get(name)
        if isinstance(given_tensor, torch.Tensor):
            keywords[name] = given_tensor.detach().double().requires_grad_()
            wanted_of.append(keywords[name])
    answers = []
    for quick in (True, False):
        with pytest.MonkeyPatch.context() as patch:
            if not quick:
                patch.setattr(few_passes, "suits", lambda call: False)
            weights = hw.attention_weights(query, key, call.pattern, **keywords)
        torch.manual_seed(0)
        along = torch.randn_like(weights)
        grads = torch.autograd.grad((weights * along).sum(), wanted_of, allow_unused=True)
        answers.append([weights, *(grad for grad in grads if grad is not None)])
    for found, wanted in zip(*answers, strict=True):
        assert largest_error(found, wanted) < 1e-12
