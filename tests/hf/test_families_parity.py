"""Every family answers and learns as with transformers' eager attention, padded or not."""

from typing import Any

import pytest
import torch
from torch import Tensor

from tests.support.budget import assert_within_budget
from tests.support.hf_tiny import (
    DECODERS,
    ENCODERS,
    FAMILIES,
    answer,
    at_real_tokens,
    both,
    inputs,
    without_dropout,
)

Given = dict[str, Tensor]


@pytest.mark.parametrize("name", FAMILIES)
@pytest.mark.parametrize("batch", ["whole", "padded"])
def test_logits_agree_at_real_tokens(name: str, batch: str) -> None:
    ours, theirs = both(name)
    given = _given(name, batch)
    with torch.no_grad():
        actual, plain = (
            at_real_tokens(answer(model, given), given, name) for model in (ours, theirs)
        )
        exact = _alone(theirs.double(), given, name)
    assert_within_budget(actual, exact=exact, plain=plain, label=f"{name} {batch}")


@pytest.mark.parametrize("name", FAMILIES)
@pytest.mark.parametrize("batch", ["whole", "padded"])
def test_gradients_agree_in_training(name: str, batch: str) -> None:
    ours, theirs = (without_dropout(model) for model in both(name))
    given = _given(name, batch)
    actual, plain = (
        _gradients(model, at_real_tokens(answer(model, given), given, name))
        for model in (ours, theirs)
    )
    exact = _gradients(theirs.double(), _alone(theirs, given, name))
    assert actual.keys() == exact.keys()
    for label, found in actual.items():
        assert_within_budget(found, exact=exact[label], plain=plain[label], label=label)


@pytest.mark.parametrize("name", DECODERS)
def test_decoders_padded_on_the_right(name: str) -> None:
    ours, theirs = both(name)
    given = inputs(name, "right")
    with torch.no_grad():
        actual, plain = (
            at_real_tokens(answer(model, given), given, name) for model in (ours, theirs)
        )
        exact = _alone(theirs.double(), given, name)
    assert_within_budget(actual, exact=exact, plain=plain, label=name)


@pytest.mark.parametrize("name", [name for name in ENCODERS if name != "clip_text"])
def test_encoders_padded_on_the_left(name: str) -> None:
    """Positions move with the padding, so a sample alone says nothing; CLIP's text is causal."""
    ours, theirs = both(name)
    given = inputs(name, "left")
    with torch.no_grad():
        actual, plain = (
            at_real_tokens(answer(model, given), given, name) for model in (ours, theirs)
        )
        exact = at_real_tokens(answer(theirs.double(), given), given, name)
    assert_within_budget(actual, exact=exact, plain=plain, label=name)


def _given(name: str, batch: str) -> Given:
    """Return a batch, padded on the side that is usual for the family."""
    given = inputs(name, "none" if batch == "whole" else "left" if name in DECODERS else "right")
    if name == "gpt2":
        # It counts padding as positions unless it is told.
        given["position_ids"] = (given["attention_mask"].cumsum(-1) - 1).clamp(min=0)
    return given


def _alone(model: Any, given: Given, name: str) -> Tensor:
    """Return the same answers, each sample run without its padding.

    Eager attention makes NaN of a query without a key in float64.
    """
    found = []
    for sample in range(2):
        part = {key: t[sample : sample + 1] for key, t in given.items()}
        real = part.pop("attention_mask", torch.ones(1, 1)).bool()[0]
        part = {
            key: t.double() if t.is_floating_point() else _cut(key, t, real)
            for key, t in part.items()
        }
        found.append(answer(model, part)[0])
    return torch.cat(found)


def _cut(key: str, tokens: Tensor, real: Tensor) -> Tensor:
    return tokens if key == "decoder_input_ids" else tokens[:, real]


def _gradients(model: Any, found: Tensor) -> Given:
    wanted = [(name, w) for name, w in model.named_parameters() if w.requires_grad]
    names, weights = zip(*wanted, strict=True)
    grads = torch.autograd.grad(found.square().mean(), weights, allow_unused=True)
    return {name: g for name, g in zip(names, grads, strict=True) if g is not None}
