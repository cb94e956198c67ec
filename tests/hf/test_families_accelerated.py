"""Models whose attention ``accelerate`` replaced: still the same models in every other respect."""

import copy
import io
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from headwise import hf
from tests.support.budget import assert_same_bits, assert_within_budget
from tests.support.hf_tiny import (
    FAMILIES,
    PAIRS,
    answer,
    at_real_tokens,
    both,
    inputs,
    tiny,
    tokens,
    with_dropout,
)

ACCELERATED = [name for name, family in FAMILIES.items() if family.through == "accelerate"]
pytestmark = pytest.mark.parametrize("name", ACCELERATED)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
@pytest.mark.parametrize("length", [1, 2, 13, 37])
def test_answers_agree_at_every_length(name: str, length: int, dtype: torch.dtype) -> None:
    ours, theirs = both(name)
    given = {"input_ids": tokens(length=length)}
    if name in PAIRS:
        given["decoder_input_ids"] = tokens(length=5, seed=4)
    with torch.no_grad():
        actual = answer(ours.to(dtype), given)
        # Bloom sums its softmax in float32, whatever the rest computes in.
        wide = dtype == torch.float64 and name == "bloom"
        plain = answer(theirs.to(torch.float32 if wide else dtype), given)
        exact = answer(tiny(name, "eager").double(), given)
    assert actual.dtype == dtype
    assert_within_budget(actual, exact=exact, plain=plain, label=f"{name} {length} {dtype}")


def test_restored_models_give_the_bits_from_before(name: str) -> None:
    model, given = tiny(name, "eager"), inputs(name)
    before = answer(model, given)
    hf.accelerate(model)
    kinds = [type(part) for part in model.modules()]
    hf.accelerate(model)
    assert [type(part) for part in model.modules()] == kinds
    hf.restore(model)
    assert not any("accelerated" in type(part).__module__ for part in model.modules())
    assert_same_bits(answer(model, given), before)


def test_copies_answer_alike(name: str, tmp_path: Path) -> None:
    ours, given = tiny(name), inputs(name, "right")
    wanted = answer(ours, given)
    stored = io.BytesIO()
    torch.save(ours, stored)
    stored.seek(0)
    for other in (copy.deepcopy(ours), torch.load(stored, weights_only=False)):
        assert_same_bits(answer(other, given), wanted)
    theirs = tiny(name, "eager")
    assert ours.state_dict().keys() == theirs.state_dict().keys()
    ours.save_pretrained(tmp_path)
    loaded = hf.accelerate(type(theirs).from_pretrained(tmp_path).eval())
    assert_same_bits(answer(loaded, given), wanted)


def test_one_part_alone_may_be_accelerated_and_restored(name: str) -> None:
    given, theirs = inputs(name, "right"), tiny(name, "eager")
    plain, exact = _real(theirs, given, name), _real(theirs.double(), given, name)
    for change, model in ((hf.accelerate, tiny(name, "eager")), (hf.restore, tiny(name))):
        change(_layers(model)[0])
        fast = sum("accelerated" in type(part).__module__ for part in model.modules())
        assert 0 < fast < len(list(model.modules()))
        actual = _real(model, given, name)
        assert_within_budget(actual, exact=exact, plain=plain, label=name)


def test_hidden_states_agree(name: str) -> None:
    ours, theirs = both(name)
    given = inputs(name)
    with torch.no_grad():
        mine, right = (model(**given, output_hidden_states=True) for model in (ours, theirs))
    kinds = [kind for kind in right if "hidden_states" in kind]
    assert kinds
    for kind in kinds:
        torch.testing.assert_close(mine[kind], right[kind])


def test_dropout_is_drawn_in_training_alone(name: str) -> None:
    ours, given = tiny(name), inputs(name, "right")
    wanted = answer(ours, given)
    with_dropout(ours, 0.4)
    assert_same_bits(answer(ours.eval(), given), wanted)
    ours.train()
    first, again, other = (_drawn(ours, given, name, seed) for seed in (1, 1, 2))
    assert_same_bits(first, again)
    assert not torch.equal(first, other)
    loss: Any = first.square().mean()
    loss.backward()
    grads = [weight.grad for weight in ours.parameters() if weight.grad is not None]
    assert grads
    assert all(grad.isfinite().all() for grad in grads)


def test_other_ways_to_call(name: str) -> None:
    ours, given = tiny(name), inputs(name, "right")
    with torch.no_grad():
        wanted = answer(ours, given)
    with torch.inference_mode():
        assert_same_bits(answer(ours, given).clone(), wanted)
    weights = {label: weight.detach() for label, weight in ours.named_parameters()}
    found = torch.func.functional_call(ours, weights, (), given)[0]
    torch.testing.assert_close(
        at_real_tokens(found, given, name), at_real_tokens(wanted, given, name)
    )


def test_autocast(name: str) -> None:
    """Against the whole model in bfloat16: transformers' BigBird does not run under autocast."""
    ours, given = tiny(name), inputs(name, "right")
    exact, plain = _real(ours, given, name), _real(tiny(name, "eager").bfloat16(), given, name)
    with torch.autocast("cpu", torch.bfloat16):
        actual = _real(ours, given, name).bfloat16()
    assert_within_budget(actual, exact=exact, plain=plain, label=name)


def test_a_sample_of_padding_alone_spoils_nothing(name: str) -> None:
    ours = tiny(name)
    given = inputs(name)
    whole = answer(ours, given)
    given["attention_mask"][1] = 0
    found = answer(ours, given)
    assert found.isfinite().all()
    torch.testing.assert_close(found[0], whole[0])


def _layers(model: Any) -> Any:
    return next(part for part in model.modules() if isinstance(part, torch.nn.ModuleList))


def _real(model: Any, given: dict[str, Tensor], name: str) -> Tensor:
    return at_real_tokens(answer(model, given), given, name)


def _drawn(model: Any, given: dict[str, Tensor], name: str, seed: int) -> Tensor:
    torch.manual_seed(seed)
    return _real(model, given, name)
