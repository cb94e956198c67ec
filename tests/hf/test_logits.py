"""Models answer the same through headwise as through transformers' own attention."""

from typing import Any

import pytest
import torch

from tests.support.budget import assert_within_budget
from tests.support.hf_tiny import (
    DECODERS,
    ENCODERS,
    FAMILIES,
    PAIRS,
    answer,
    both,
    inputs,
    padded,
    tokens,
)


@pytest.mark.parametrize("name", FAMILIES)
@pytest.mark.parametrize("side", ["none", "left", "right"])
def test_logits_agree_at_real_tokens(name: str, side: str) -> None:
    ours, theirs = both(name)
    given = inputs(name, side)
    with torch.no_grad():
        actual, plain = answer(ours, given), answer(theirs, given)
        theirs.double()
        alone = FAMILIES[name].against == "eager" and name in DECODERS
        exact = _one_by_one(theirs, given) if alone else answer(theirs, _double(given))
    real = given["attention_mask"].bool() if name in DECODERS + ENCODERS else slice(None)
    wanted = exact if alone else exact[real]
    assert_within_budget(actual[real], exact=wanted, plain=plain[real], label=f"{name} {side}")


@pytest.mark.parametrize("name", FAMILIES)
def test_gradients_agree_in_training(name: str) -> None:
    ours, theirs = (model.train() for model in _without_dropout(*both(name)))
    given = inputs(name, "none" if FAMILIES[name].against == "eager" else "right")
    actual, plain = _gradients(ours, given), _gradients(theirs, given)
    exact = _gradients(theirs.double(), _double(given))
    assert actual.keys() == exact.keys()
    for label, found in actual.items():
        assert_within_budget(found, exact=exact[label], plain=plain[label], label=label)


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
    ours, theirs = both(name)
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


@pytest.mark.parametrize("name", DECODERS)
def test_tokens_in_pieces_agree_with_all_at_once(name: str) -> None:
    ours, _ = both(name)
    ids = tokens()
    with torch.no_grad():
        whole, exact = ours(ids).logits, None
        first = ours(ids[:, :5], use_cache=True)
        cache = first.cache
        rest = [ours(ids[:, at : at + 3], cache=cache, use_cache=True).logits for at in (5, 8)]
        exact = ours.double()(ids).logits
    pieces = torch.cat([first.logits, *rest], 1)
    assert_within_budget(pieces, exact=exact, plain=whole, label=name)


@pytest.mark.parametrize("name", PAIRS)
def test_source_padding_changes_nothing(name: str) -> None:
    ours, _ = both(name)
    given = inputs(name, "right")
    other = {**given, "input_ids": given["input_ids"].where(given["attention_mask"].bool(), 5)}
    with torch.no_grad():
        assert torch.equal(answer(ours, given), answer(ours, other))


def _gradients(model: torch.nn.Module, given: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    wanted = [(name, w) for name, w in model.named_parameters() if w.requires_grad]
    names, weights = zip(*wanted, strict=True)
    loss = answer(model, given).square().mean()
    found = torch.autograd.grad(loss, weights, allow_unused=True)
    return {name: g for name, g in zip(names, found, strict=True) if g is not None}


def _one_by_one(model: Any, given: dict[str, torch.Tensor]) -> torch.Tensor:
    """Return the logits of all real tokens, each sample run without its padding.

    transformers' eager attention makes NaN of a padded row in float64.
    """
    samples = zip(given["input_ids"], given["attention_mask"].bool(), strict=True)
    return torch.cat([model(ids[None, real]).logits[0] for ids, real in samples])


def _double(given: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    return {name: t.double() if t.is_floating_point() else t for name, t in given.items()}


def _without_dropout(*models: torch.nn.Module) -> tuple[torch.nn.Module, ...]:
    for model in models:
        for part in model.modules():
            for name, value in list(vars(part).items()):
                if "dropout" in name and isinstance(value, float):
                    setattr(part, name, 0.0)
            if isinstance(part, torch.nn.Dropout):
                part.p = 0.0
    return models
