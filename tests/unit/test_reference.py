"""The reference against numbers worked out by hand."""

import math

import pytest
import torch

import headwise as hw
from tests.support.shapes import Inputs

LN3 = math.log(3.0)


def one(query: list[float], keys: list[list[float]], values: list[list[float]]) -> Inputs:
    """One sample, one head, one query."""
    shaped = (torch.tensor(rows)[None, None] for rows in ([query], keys, values))
    return Inputs(*shaped)


def run(*given: torch.Tensor, **keywords: object) -> tuple[list[float], float]:
    output, lse = hw.attend_with_lse(*given, backend="reference", **keywords)  # type: ignore[arg-type]
    assert output.shape[:3] == (1, 1, 1)
    return output.flatten().tolist(), lse.item()


def test_two_keys_weighed_three_to_one() -> None:
    """Scores ln 3 and 0: weights 3/4 and 1/4; the denominator is 3 + 1."""
    given = one([LN3], [[1.0], [0.0]], [[8.0, 0.0], [0.0, 4.0]])
    output, lse = run(*given)
    assert output == pytest.approx([6.0, 1.0])
    assert lse == pytest.approx(math.log(4.0))


def test_the_default_scale_is_one_over_the_root_of_head_dim() -> None:
    """Four dimensions halve the score: 2 ln 3 becomes ln 3."""
    given = one([2 * LN3, 0, 0, 0], [[1.0, 0, 0, 0], [0.0, 0, 0, 0]], [[4.0], [0.0]])
    assert run(*given)[0] == pytest.approx([3.0])
    assert run(*given, scale=0.0)[0] == pytest.approx([2.0])
    assert run(*given, scale=-0.5)[0] == pytest.approx([1.0])


def test_a_bias_is_added_after_the_scale() -> None:
    given = one([0.0], [[1.0], [1.0]], [[4.0], [0.0]])
    assert run(*given, scale=7.0, bias=torch.tensor([LN3, 0.0]))[0] == pytest.approx([3.0])


def test_minus_infinity_in_a_bias_closes_a_pair() -> None:
    given = one([0.0], [[1.0], [1.0], [1.0]], [[4.0], [2.0], [9.0]])
    output, lse = run(*given, bias=torch.tensor([0.0, 0.0, float("-inf")]))
    assert output == pytest.approx([3.0])
    assert lse == pytest.approx(math.log(2.0))


def test_a_pattern_leaves_pairs_out_of_the_denominator() -> None:
    given = one([0.0], [[1.0], [1.0], [1.0]], [[4.0], [2.0], [9.0]])
    output, lse = run(*given, pattern=hw.Dense([[True, True, False]]))
    assert output == pytest.approx([3.0])
    assert lse == pytest.approx(math.log(2.0))


def test_a_row_that_sees_nothing() -> None:
    given = one([1.0], [[1.0], [2.0]], [[4.0], [2.0]])
    assert run(*given, pattern=hw.Lengths(0)) == ([0.0], float("-inf"))
    assert run(*given, bias=torch.tensor(float("-inf"))) == ([0.0], float("-inf"))


def test_softcap_bends_scores_before_the_bias() -> None:
    """Cap 1 turns a score of atanh(1/2) into 1/2; the bias ln 3 - 1/2 makes it ln 3."""
    given = one([math.atanh(0.5)], [[1.0], [0.0]], [[4.0], [0.0]])
    output, _ = run(*given, softcap=1.0, bias=torch.tensor([LN3 - 0.5, 0.0]))
    assert output == pytest.approx([3.0])


def test_a_sink_takes_its_share_and_brings_nothing() -> None:
    """Scores 0, 0 and a sink of ln 2: each key weighs 1/4."""
    given = one([0.0], [[1.0], [1.0]], [[4.0], [8.0]])
    sinks = torch.tensor([math.log(2.0)])
    output, lse = run(*given, sinks=sinks)
    assert output == pytest.approx([3.0])
    assert lse == pytest.approx(math.log(4.0))
    weights = hw.attention_weights(*given[:2], sinks=sinks)
    assert weights.flatten().tolist() == pytest.approx([0.25, 0.25])


def test_query_heads_in_a_row_share_a_key_head() -> None:
    """B106: values 0 and 1 in two key heads give 0, 0, 1, 1 in four query heads."""
    value = torch.stack([torch.zeros(3, 1), torch.ones(3, 1)])[None]
    output = hw.attend(torch.randn(1, 4, 1, 2), torch.randn(1, 2, 3, 2), value)
    assert output.flatten().tolist() == pytest.approx([0.0, 0.0, 1.0, 1.0])


def test_the_last_query_stands_beside_the_last_key() -> None:
    """Equal scores: each row is the mean of what it sees, keys 0 to i + 2."""
    value = torch.tensor([0.0, 2.0, 4.0, 6.0, 8.0]).view(1, 1, 5, 1)
    flat = torch.zeros(1, 1, 3, 1), torch.zeros(1, 1, 5, 1), value
    lower = hw.attend(*flat, hw.Causal(), backend="reference").flatten().tolist()
    assert lower == pytest.approx([2.0, 3.0, 4.0])
    upper = hw.attend(*flat, hw.Causal(), q_offset=0, backend="reference").flatten().tolist()
    assert upper == pytest.approx([0.0, 1.0, 2.0])
    moved = hw.attend(*flat, hw.Causal(), q_offset=10, kv_offset=10, backend="reference")
    assert moved.flatten().tolist() == pytest.approx([0.0, 1.0, 2.0])


def test_a_finite_but_huge_bias_is_arithmetic() -> None:
    """B03: a row full of ``finfo.min`` swamps the scores, so every key weighs the same."""
    given = one([1.0], [[1.0], [5.0]], [[4.0], [8.0]])
    assert run(*given, bias=torch.tensor(torch.finfo(torch.float32).min))[0] == pytest.approx([6.0])
