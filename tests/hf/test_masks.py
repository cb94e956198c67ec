"""Mask functions of transformers become patterns that mean the same."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor
from transformers import masking_utils as theirs

from headwise.errors import BackendRefused, PatternError, ShapeError
from headwise.hf.masks import from_tensor, unmasked
from headwise.hf.pattern_mask import PatternMask
from headwise.hf.prepare import mask
from headwise.patterns import Causal, Dense, Documents, Full, KeyMask, Window, sliding_causal

LEAVES: dict[str, Callable[[int, Tensor], Any]] = {
    "causal": lambda n, ids: theirs.causal_mask_function,
    "bidirectional": lambda n, ids: theirs.bidirectional_mask_function,
    "sliding": lambda n, ids: theirs.sliding_window_causal_mask_function(n),
    "both ways": lambda n, ids: theirs.sliding_window_bidirectional_mask_function(n),
    "chunks": lambda n, ids: theirs.chunked_causal_mask_function(n, ids[:, 0].abs()),
    "blocks": lambda n, ids: theirs.or_masks(
        theirs.causal_mask_function, theirs.blockwise_overlay(ids)
    ),
}


@given(
    leaf=st.sampled_from(sorted(LEAVES)),
    number=st.integers(1, 6),
    samples=st.integers(1, 3),
    past=st.integers(0, 7),
    q_len=st.integers(1, 6),
    unfilled=st.integers(0, 4),
    padding=st.integers(0, 3),
    seed=st.integers(0, 999),
)
def test_known_functions_mean_what_transformers_spells_out(
    leaf: str,
    number: int,
    samples: int,
    past: int,
    q_len: int,
    unfilled: int,
    padding: int,
    seed: int,
) -> None:
    kv_len = past + q_len + unfilled
    ids = torch.randint(-1, 3, (samples, kv_len), generator=torch.Generator().manual_seed(seed))
    real = torch.ones(samples, past + q_len, dtype=torch.bool)
    real[-1, :padding] = False
    call: dict[str, Any] = {
        "batch_size": samples,
        "q_length": q_len,
        "kv_length": kv_len,
        "q_offset": past,
        "mask_function": LEAVES[leaf](number, ids),
        "attention_mask": real,
    }
    ours = mask(**call)
    assert isinstance(ours, PatternMask)
    assert ours.note is None
    right = theirs.sdpa_mask(**call, allow_is_causal_skip=False)
    assert right is not None
    assert torch.equal(ours.spelled(), right)


@pytest.mark.parametrize("past", [0, 3, 4, 9])
@pytest.mark.parametrize("q_len", [1, 3])
def test_a_sliding_cache_gives_keys_that_do_not_start_at_zero(past: int, q_len: int) -> None:
    window, kv_offset = 4, max(past - 3, 0)
    call: dict[str, Any] = {
        "batch_size": 2,
        "q_length": q_len,
        "kv_length": past - kv_offset + q_len,
        "q_offset": past,
        "kv_offset": kv_offset,
        "mask_function": theirs.sliding_window_causal_mask_function(window),
        "attention_mask": torch.arange(past + q_len).expand(2, -1) > torch.tensor([[-1], [1]]),
    }
    ours = mask(**call)
    assert isinstance(ours, PatternMask)
    right = theirs.sdpa_mask(**call, allow_is_causal_skip=False)
    assert right is not None
    assert torch.equal(ours.spelled(), right)


def test_patterns_are_the_ones_a_reader_expects() -> None:
    assert _pattern(theirs.causal_mask_function) == Causal()
    assert _pattern(theirs.bidirectional_mask_function) == Full()
    sliding = theirs.sliding_window_causal_mask_function(3)
    assert _pattern(sliding) == (Window(2, None) & Causal())
    assert _pattern(theirs.sliding_window_bidirectional_mask_function(3)) == Window(3, 3)
    real = torch.tensor([[False, True, True, True, True]])
    assert _pattern(theirs.causal_mask_function, attention_mask=real) == (Causal() & KeyMask(real))


def test_parts_that_forbid_nothing_are_left_out() -> None:
    one = {"q_length": 1, "q_offset": 4, "mask_function": theirs.causal_mask_function}
    assert _pattern(**one) == Full()
    assert _pattern(theirs.sliding_window_causal_mask_function(9)) == Causal()
    assert _pattern(attention_mask=torch.ones(1, 5, dtype=torch.bool)) == Causal()


def test_packed_sequences_become_documents() -> None:
    places = torch.tensor([[0, 1, 2, 0, 1]])
    ids = theirs.find_packed_sequence_indices(places)
    assert ids is not None
    moved = theirs.remap_positions_for_packed_sequence(theirs.causal_mask_function, places)
    packed = theirs.and_masks(moved, theirs.packed_sequence_mask_function(ids))
    assert _pattern(packed) == (Causal() & Documents(ids))


def test_an_unknown_function_is_spelled_out_and_named() -> None:
    def even(batch: Any, head: Any, q: Any, k: Any) -> Any:
        return k % 2 == 0

    joined = theirs.and_masks(theirs.causal_mask_function, even)
    ours = mask(2, 5, 5, mask_function=joined, use_vmap=True)
    assert isinstance(ours, PatternMask)
    assert ours.note is not None
    assert "test_an_unknown_function_is_spelled_out_and_named.<locals>.even" in ours.note
    both = torch.ones(5, 5).tril().bool() & (torch.arange(5) % 2 == 0)
    assert torch.equal(ours.spelled(), both.expand(2, 1, 5, 5))


def test_no_mask_is_left_out() -> None:
    full = theirs.bidirectional_mask_function
    for function in (full, theirs.causal_mask_function):
        ours = mask(
            *(1, 5, 5),
            mask_function=function,
            allow_is_bidirectional_skip=True,
            allow_is_causal_skip=True,
        )
        assert isinstance(ours, PatternMask)


def test_booleans_are_taken_as_they_are() -> None:
    allowed = torch.ones(3, 3).tril().bool().expand(2, 1, 3, 3)
    assert from_tensor(allowed, torch.float32) == (Dense(allowed), None)
    assert from_tensor(torch.ones(2, 1, 3, 3, dtype=torch.bool), torch.float32) == (None, None)


@pytest.mark.parametrize("lowest", [torch.finfo(torch.float32).min, float("-inf")])
def test_about_the_most_negative_number_means_closed(lowest: float) -> None:
    allowed = torch.ones(3, 3).tril().bool().expand(1, 1, 3, 3)
    numbers = torch.zeros(1, 1, 3, 3).masked_fill(~allowed, lowest)
    assert from_tensor(numbers, torch.float32) == (Dense(allowed), None)


def test_other_numbers_stay_a_bias() -> None:
    numbers = torch.full((1, 1, 2, 2), -1e9)
    numbers[..., 0, 1] = torch.finfo(torch.float32).min
    pattern, bias = from_tensor(numbers, torch.float32)
    assert pattern == Dense(torch.tensor([[[[True, False], [True, True]]]]))
    assert bias is not None
    assert bias.flatten().tolist() == [-1e9, 0.0, -1e9, -1e9]


def test_masks_of_unclear_shape_are_refused() -> None:
    with pytest.raises(ShapeError, match=r"must be \(batch, heads, q_len, kv_len\)"):
        from_tensor(torch.ones(2, 3), torch.float32)
    with pytest.raises(ShapeError, match=r"must be \(batch, tokens\) or"):
        mask(2, 3, 3, attention_mask=torch.ones(2, 3, 3))


def test_without_a_mask_the_module_says_who_sees_whom() -> None:
    assert unmasked(True, 3, 3, None) == Causal()
    assert unmasked(False, 3, 3, None) == Full()
    assert unmasked(True, 1, 5, None) == Full()
    assert unmasked(False, 3, 5, None) == Full()
    window = unmasked(True, 4, 4, 2).dense(4, 4)
    assert torch.equal(window, sliding_causal(2).dense(4, 4))
    with pytest.raises(ShapeError, match="as many keys as queries, got 5 and 3"):
        unmasked(True, 3, 5, None)


def test_arithmetic_on_a_mask_is_refused_and_boolean_work_is_not() -> None:
    ours = mask(2, 3, 3)
    assert ours is not None
    with pytest.raises(BackendRefused, match="uses its attention mask in its own 'add'"):
        torch.zeros(2, 1, 3, 3) + ours
    with pytest.raises(BackendRefused, match="_to_copy"):
        ours.to(torch.float32)
    causal = torch.ones(3, 3).tril().bool()
    assert torch.equal(ours[:, :, -1:], causal[-1:].expand(2, 1, 1, 3))
    assert torch.equal(torch.zeros(3, 3).masked_fill(~ours, 1.0)[0, 0], (~causal).float())
    assert isinstance(ours.contiguous().to("cpu").detach(), PatternMask)


def test_a_pattern_that_does_not_fit_says_so() -> None:
    with pytest.raises(PatternError):
        mask(
            2,
            3,
            3,
            mask_function=theirs.and_masks(
                theirs.causal_mask_function,
                theirs.packed_sequence_mask_function(torch.zeros(3, 3, dtype=torch.long)),
            ),
            attention_mask=torch.tensor([[False, True, True]] * 2),
        )


def _pattern(function: Any = None, **changes: Any) -> Any:
    call = {"batch_size": 1, "q_length": 5, "kv_length": 5, "mask_function": function, **changes}
    made = mask(**call)
    assert isinstance(made, PatternMask)
    return made.pattern
