"""Models answer the same through headwise as through transformers' own attention."""

import pytest
import torch

from tests.support.budget import assert_within_budget
from tests.support.hf_tiny import (
    DECODERS,
    PAIRS,
    answer,
    both,
    inputs,
    padded,
    tiny,
    tokens,
)


@pytest.mark.parametrize("name", ["bert", "llama", "gpt_oss", "t5"])
def test_bfloat16(name: str) -> None:
    ours, theirs = both(name)
    given = inputs(name)
    with torch.no_grad():
        exact = answer(theirs.double(), given)
        actual, plain = (answer(model.bfloat16(), given) for model in (ours, theirs))
    assert_within_budget(actual, exact=exact, plain=plain, label=name)


@pytest.mark.parametrize("name", ["llama", "mistral", "gemma2"])
def test_packed_sequences_do_not_see_each_other(name: str) -> None:
    ours, theirs = both(name)
    ids = tokens(batch=1, length=11)
    places = torch.tensor([[0, 1, 2, 3, 0, 1, 2, 3, 4, 5, 6]])
    with torch.no_grad():
        packed = ours(ids, position_ids=places, use_cache=False).logits
        plain = torch.cat([theirs(ids[:, :4]).logits, theirs(ids[:, 4:]).logits], 1)
        theirs.double()
        exact = torch.cat([theirs(ids[:, :4]).logits, theirs(ids[:, 4:]).logits], 1)
    assert_within_budget(packed, exact=exact, plain=plain, label=name)


@pytest.mark.parametrize("name", ["bert", "llama"])
def test_a_mask_of_numbers_is_a_mask(name: str) -> None:
    ours, theirs = tiny(name), tiny(name, "sdpa")
    ids, seen = tokens(), padded("left")
    allowed = torch.ones(11, 11).tril().bool() & seen.bool()[:, None, None, :]
    numbers = torch.zeros(allowed.shape).masked_fill(~allowed, torch.finfo(torch.float32).min)
    with torch.no_grad():
        actual = answer(ours, {"input_ids": ids, "attention_mask": numbers})
        plain = answer(theirs, {"input_ids": ids, "attention_mask": allowed})
        exact = answer(theirs.double(), {"input_ids": ids, "attention_mask": allowed})
    real = seen.bool()
    assert_within_budget(actual[real], exact=exact[real], plain=plain[real], label=name)


@pytest.mark.parametrize("name", DECODERS)
def test_the_future_is_not_seen(name: str) -> None:
    ours, _ = both(name)
    ids = tokens()
    changed = ids.clone()
    changed[:, 6:] = tokens(seed=9)[:, 6:]
    with torch.no_grad():
        before, after = ours(ids).logits[:, :6], ours(changed).logits[:, :6]
    assert_within_budget(after, exact=before.double(), plain=before, label=name)


@pytest.mark.parametrize("name", PAIRS)
def test_source_padding_changes_nothing(name: str) -> None:
    ours, _ = both(name)
    given = inputs(name, "right")
    other = {**given, "input_ids": given["input_ids"].where(given["attention_mask"].bool(), 5)}
    with torch.no_grad():
        assert torch.equal(answer(ours, given), answer(ours, other))
