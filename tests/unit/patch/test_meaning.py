"""Patched calls mean what torch's calls mean: results and gradients within the budget."""

import pytest
import torch
from torch import Tensor
from torch.nn import functional

import headwise as hw
from tests.support.budget import assert_same_bits, assert_within_budget
from tests.support.sdpa_calls import Asked, leaves, results, taken, tensors

GROUPED = {"enable_gqa": True}
CAUSAL = {"is_causal": True}
MASKED = {
    "rows": Asked((2, 3), (2, 3), (2, 3), (5, 7)),
    "keys": Asked((2, 3), (2, 3), (2, 3), (2, 1, 1, 7)),
    "all queries alike": Asked((2, 3), (2, 3), (2, 3), (5, 1)),
    "heads, without a batch": Asked((2, 3), (2, 3), (2, 3), (3, 5, 7)),
    "one head": Asked((2, 3), (2, 3), (2, 3), (2, 1, 5, 7)),
    "three dimensions": Asked((3,), (3,), (3,), (5, 7)),
    "three, mask per sample": Asked((3,), (3,), (3,), (3, 5, 7)),
    "two dimensions": Asked((), (), (), (5, 7)),
    "five dimensions": Asked((2, 3, 4), (2, 3, 4), (2, 3, 4), (3, 1, 5, 7)),
    "five, mask of all": Asked((2, 3, 4), (2, 3, 4), (2, 3, 4), (2, 3, 4, 5, 7)),
    "five, mask of the second": Asked((2, 3, 4), (2, 3, 4), (2, 3, 4), (1, 3, 1, 1, 7)),
    "grouped": Asked((2, 6), (2, 3), (2, 3), (2, 6, 5, 7), GROUPED),
    "batches that broadcast": Asked((2, 3), (1, 3), (1, 3), (2, 1, 5, 7)),
}
OPEN = {
    "plain": Asked((2, 3), (2, 3), (2, 3)),
    "causal, more keys": Asked((2, 3), (2, 3), (2, 3), None, CAUSAL),
    "causal, more queries": Asked((2, 3), (2, 3), (2, 3), None, CAUSAL, (7, 5)),
    "causal, two dimensions": Asked((), (), (), None, CAUSAL),
    "scale": Asked((2, 3), (2, 3), (2, 3), None, {"scale": -0.7}),
    "scale of 0": Asked((3,), (3,), (3,), None, {"scale": 0}),
    "one key head": Asked((2, 3), (2, 1), (2, 1)),
    "one query head": Asked((2, 1), (2, 3), (2, 3)),
    "one value head": Asked((2, 3), (2, 3), (2, 1)),
    "more values": Asked((1, 3), (1, 3), (2, 3)),
    "fewer dimensions of keys": Asked((2, 3), (3,), ()),
    "fewer dimensions of queries": Asked((), (2, 3), (2, 3)),
    "grouped, causal": Asked((2, 6), (2, 2), (2, 2), None, {**GROUPED, **CAUSAL}),
    "grouped, three dimensions": Asked((6,), (2,), (2,), None, GROUPED),
    "grouped, five dimensions": Asked((2, 3, 4), (1, 3, 2), (2, 1, 2), None, GROUPED),
}
CASES = {
    **{name: (asked, "none") for name, asked in OPEN.items()},
    **{
        f"{name}, {kind}": (asked, kind) for name, asked in MASKED.items() for kind in ("bool", "f")
    },
}


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("case", CASES)
def test_results_and_gradients(case: str, dtype: torch.dtype) -> None:
    asked, kind = CASES[case]
    given = tensors(asked, dtype, kind)
    found: list[Tensor] = []
    count = taken(lambda: found.extend(results(given, **asked.more)))
    assert count == 1, hw.patch.explain(*given, **asked.more)
    plain = results(given, **asked.more)
    exact = results(leaves(given, torch.float64), **asked.more)
    for name, ours, theirs, wanted in zip(
        ("output", "query", "key", "value", "mask"), found, plain, exact, strict=False
    ):
        assert ours.shape == theirs.shape
        assert ours.dtype == theirs.dtype
        assert_within_budget(ours, exact=wanted, plain=theirs, label=f"{case}: {name}")
    assert len(found) == len(plain)


@pytest.mark.parametrize("lead", [(3,), (), (2, 3, 4)])
def test_results_of_other_dimensions_are_contiguous_as_torchs_are(lead: tuple[int, ...]) -> None:
    query = torch.randn(*lead, 11, 5).mT
    with hw.patch.sdpa():
        assert functional.scaled_dot_product_attention(query, query, query).is_contiguous()


def test_heads_inside_lengths_stay_so() -> None:
    query = torch.randn(2, 5, 3, 8).transpose(1, 2)
    with hw.patch.sdpa():
        found = functional.scaled_dot_product_attention(query, query, query)
    assert found.transpose(1, 2).is_contiguous()


def test_finfo_min_is_a_number() -> None:
    """A row of it sees all keys alike; beside other numbers it closes."""
    query, key, value = torch.randn(3, 1, 2, 5, 8).unbind(0)
    mask = torch.zeros(5, 5)
    mask[1], mask[2, :3] = torch.finfo(torch.float32).min, torch.finfo(torch.float32).min
    wanted = functional.scaled_dot_product_attention(query, key, value, mask)
    with hw.patch.sdpa():
        found = functional.scaled_dot_product_attention(query, key, value, mask)
    torch.testing.assert_close(found[:, :, 1], value.mean(2))
    torch.testing.assert_close(found, wanted)


@pytest.mark.parametrize("number", [float("inf"), float("nan")])
def test_a_mask_of_no_number_gives_none(number: float) -> None:
    query = torch.ones(1, 2, 3, 8)
    with hw.patch.sdpa():
        assert (
            functional.scaled_dot_product_attention(query, query, query, torch.full((3, 3), number))
            .isnan()
            .all()
        )


def test_autocast_casts_the_mask_as_torch_does() -> None:
    """The lowest float32 is ``-inf`` in bfloat16, so such a row is closed."""
    query = torch.randn(1, 2, 3, 8)
    mask = torch.full((3, 3), torch.finfo(torch.float32).min)
    mask[0] = 0.0
    with torch.autocast("cpu", dtype=torch.bfloat16):
        wanted = functional.scaled_dot_product_attention(query, query.bfloat16(), query, mask)
        assert taken(lambda: functional.scaled_dot_product_attention(query, query, query)) == 1
        with hw.patch.sdpa():
            found = functional.scaled_dot_product_attention(query, query.bfloat16(), query, mask)
    assert found.dtype == wanted.dtype == torch.bfloat16
    assert not found[:, :, 1:].any()
    torch.testing.assert_close(found, wanted)


def test_dropout_is_reproducible_and_keeps_the_mean() -> None:
    query, key = torch.zeros(1, 1, 64, 8), torch.zeros(1, 1, 512, 8)
    value = torch.ones(1, 1, 512, 1)

    def drawn(seed: int, share: float) -> Tensor:
        torch.manual_seed(seed)
        return functional.scaled_dot_product_attention(query, key, value, dropout_p=share)

    with hw.patch.sdpa():
        found = drawn(1, 0.3)
        assert_same_bits(found, drawn(1, 0.3))
        assert not torch.equal(found, drawn(2, 0.3))
        assert not drawn(3, 1.0).any()
    # Each number is the mean of 512 draws of variance 0.3 / 0.7.
    spread = (0.3 / 0.7 / 512) ** 0.5
    assert abs(found.mean().item() - 1.0) < 5 * spread / 8
    assert 0.7 * spread < found.std().item() < 1.4 * spread
