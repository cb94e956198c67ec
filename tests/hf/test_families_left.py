"""Families that headwise has no attention for: refused by name, left by ``accelerate``, and right.

What stands around their attention is accelerated all the same.
"""

from typing import Any

import pytest
import torch

from headwise import hf
from headwise.errors import BackendRefused
from tests.support.budget import assert_same_bits, assert_within_budget
from tests.support.hf_tiny import LEFT, answer, inputs, tiny, without_dropout

pytestmark = pytest.mark.parametrize("name", LEFT)


def test_they_are_refused_by_name(name: str) -> None:
    hf.register()
    model = tiny(name, "eager")
    kind = type(model.base_model).__name__
    with pytest.raises(BackendRefused, match="attends by its own code") as refusal:
        model.set_attn_implementation("headwise")
    assert kind in str(refusal.value) or type(model).__name__ in str(refusal.value)
    assert model.config._attn_implementation == "eager"


def test_a_report_says_why_they_are_left(name: str) -> None:
    for model in (tiny(name, "eager"), tiny(name)):
        found = hf.report(model)
        assert len(found) == 2
        assert {(row.served, row.reason) for row in found} == {(False, "attends by its own code")}


@pytest.mark.parametrize("side", ["none", "right"])
def test_accelerate_changes_no_answer(name: str, side: str) -> None:
    model, given = tiny(name, "eager"), inputs(name, side)
    real = given["attention_mask"].bool()
    plain = answer(model, given)
    actual = answer(hf.accelerate(model), given)
    exact = answer(tiny(name, "eager").double(), given)
    assert_within_budget(actual[real], exact=exact[real], plain=plain[real], label=name)
    assert_same_bits(answer(hf.restore(model), given), plain)


def test_accelerate_changes_no_gradient(name: str) -> None:
    given, found = inputs(name), []
    for model in (tiny(name), tiny(name, "eager"), tiny(name, "eager").double()):
        loss: Any = answer(without_dropout(model), given).square().mean()
        loss.backward()
        found.append({label: w.grad for label, w in model.named_parameters() if w.grad is not None})
    ours, theirs, wide = found
    assert ours.keys() == wide.keys()
    for label, exact in wide.items():
        assert exact is not None
        actual, plain = ours[label], theirs[label]
        assert isinstance(actual, torch.Tensor)
        assert isinstance(plain, torch.Tensor)
        assert_within_budget(actual, exact=exact, plain=plain, label=label)
