"""``accelerate(unpad=True)``: real tokens get what they got before, and padding costs nothing."""

import copy
from typing import Any

import pytest
import torch
from torch import Tensor

from headwise import hf
from headwise.hf import attention
from headwise.ops import attend
from tests.support.budget import assert_same_bits, assert_within_budget
from tests.support.hf_tiny import (
    ENCODERS,
    padded,
    tiny,
    tokens,
    with_dropout,
    without_dropout,
)

PACKED = (
    *("bert", "roberta", "xlm_roberta", "distilbert", "electra", "modernbert", "splinter"),
    *("clip_text", "bart", "marian", "m2m_100", "pegasus"),
)
LENGTH = 13
KINDS = {
    "whole": [1] * LENGTH,
    "right": [1] * 7 + [0] * 6,
    "left": [0] * 5 + [1] * 8,
    "single": [0] * 4 + [1] + [0] * 8,
    "nothing": [0] * LENGTH,
    "holes": [1, 1, 0, 1, 0, 0, 1, 1, 1, 0, 1, 1, 0],
}


@pytest.fixture
def lengths(monkeypatch: pytest.MonkeyPatch) -> list[tuple[int, int]]:
    """Note the batch and the number of queries of every call of the attention."""
    seen: list[tuple[int, int]] = []

    def noting(query: Tensor, *args: Any, **kwargs: Any) -> Tensor:
        seen.append((query.shape[0], query.shape[2]))
        return attend(query, *args, **kwargs)

    monkeypatch.setattr(attention, "attend", noting)
    return seen


def batch(name: str) -> dict[str, Tensor]:
    """Return texts with every kind of padding, but for those that a family is not tested with.

    Holes move a token in a window; a causal query behind nothing but padding makes NaN in float64.
    """
    left_out = {"modernbert": ("holes",), "clip_text": ("left", "single")}.get(name, ())
    kinds = [mask for kind, mask in KINDS.items() if kind not in left_out]
    return {"input_ids": tokens(len(kinds), LENGTH), "attention_mask": torch.tensor(kinds)}


def encoder(model: Any, name: str) -> Any:
    return model if name in ENCODERS else model.get_encoder()


def real_states(model: Any, given: dict[str, Tensor], name: str) -> Tensor:
    found: Tensor = encoder(model, name)(**given).last_hidden_state
    return found[given["attention_mask"].bool()]


def exact_states(model: Any, given: dict[str, Tensor], name: str) -> Tensor:
    """Return the same in float64, where a query that sees nothing makes NaN of all gradients.

    Padding has such queries where windows are narrow; rotary positions need no padding to count.
    """
    real = given["attention_mask"].bool()
    if name != "modernbert":
        return real_states(model, {key: value[real.any(1)] for key, value in given.items()}, name)
    texts = [ids[mask] for ids, mask in zip(given["input_ids"], real, strict=True) if mask.any()]
    return torch.cat([model(input_ids=text[None]).last_hidden_state[0] for text in texts])


def learn(found: Tensor) -> None:
    loss: Any = found.square().mean()
    loss.backward()


def unpadded(model: Any) -> Any:
    return hf.accelerate(copy.deepcopy(model), unpad=True)


@pytest.mark.parametrize("name", PACKED)
def test_real_tokens_and_gradients_agree(name: str, lengths: list[tuple[int, int]]) -> None:
    theirs, given = without_dropout(tiny(name, "eager")), batch(name)
    ours, wide = unpadded(theirs), copy.deepcopy(theirs).double()
    actual, plain = (real_states(model, given, name) for model in (ours, theirs))
    total = int(given["attention_mask"].sum())
    assert lengths == 2 * [(1, total)]
    for found in (actual, plain):
        learn(found)
    exact = exact_states(wide, given, name)
    learn(exact)
    assert_within_budget(actual, exact=exact, plain=plain, label=name)
    pairs = zip(ours.named_parameters(), theirs.parameters(), wide.parameters(), strict=True)
    for (label, mine), right, best in pairs:
        assert (mine.grad is None) == (best.grad is None), label
        if mine.grad is not None and right.grad is not None and best.grad is not None:
            assert_within_budget(mine.grad, exact=best.grad, plain=right.grad, label=label)


@pytest.mark.parametrize("name", ["bert", "modernbert", "bart"])
def test_hidden_states_have_the_padded_shape_with_zeros_at_padding(
    name: str, lengths: list[tuple[int, int]]
) -> None:
    theirs, given = tiny(name, "eager"), batch(name)
    ours, real = unpadded(theirs), given["attention_mask"].bool()
    with torch.no_grad():
        mine, right = (
            encoder(model, name)(**given, output_hidden_states=True).hidden_states
            for model in (ours, theirs)
        )
    assert lengths[0][0] == 1
    assert len(mine) == len(right) == 3
    for found, wanted in zip(mine, right, strict=True):
        torch.testing.assert_close(found[real], wanted[real])
    assert_same_bits(mine[0], right[0])
    assert not mine[1][~real].any()


def test_attention_weights_are_those_of_the_padded_batch() -> None:
    theirs, given = tiny("bert", "eager"), batch("bert")
    ours, real = unpadded(theirs), given["attention_mask"].bool()
    found, wanted = (model(**given, output_attentions=True) for model in (ours, theirs))
    for mine, right in zip(found.attentions, wanted.attentions, strict=True):
        torch.testing.assert_close(mine.transpose(1, 2)[real], right.transpose(1, 2)[real])
    assert "asked for attention weights" in hf.report(ours).padding[0]


@pytest.mark.parametrize("name", ["bert", "modernbert"])
def test_numbers_at_padding_never_matter(name: str) -> None:
    ours, given = unpadded(tiny(name, "eager")), batch(name)
    real = given["attention_mask"].bool()
    embedded = torch.randn(*real.shape, 24, generator=torch.Generator().manual_seed(1))
    mask = given["attention_mask"]
    wanted = ours(inputs_embeds=embedded, attention_mask=mask).last_hidden_state
    spoiled = embedded.masked_fill(~real.unsqueeze(2), float("nan")).requires_grad_()
    found = ours(inputs_embeds=spoiled, attention_mask=mask).last_hidden_state
    assert_same_bits(found, wanted)
    assert not found[~real].any()
    learn(found)
    assert spoiled.grad is not None
    assert spoiled.grad[real].isfinite().all()


def test_a_text_does_not_depend_on_those_beside_it() -> None:
    ours, given = unpadded(tiny("bert", "eager")), batch("bert")
    before = torch.get_num_threads()
    whole = ours(**given).last_hidden_state
    try:
        torch.set_num_threads(3 - min(before, 2))
        torch.testing.assert_close(ours(**given).last_hidden_state, whole)
    finally:
        torch.set_num_threads(before)
    for sample in (1, 2, 5):
        one = {key: value[sample : sample + 1] for key, value in given.items()}
        torch.testing.assert_close(ours(**one).last_hidden_state[0], whole[sample])


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_narrow_numbers(dtype: torch.dtype, lengths: list[tuple[int, int]]) -> None:
    theirs, given = tiny("bert", "eager"), batch("bert")
    with torch.no_grad():
        exact = real_states(theirs, given, "bert")
        theirs = theirs.to(dtype)
        actual, plain = (real_states(m, given, "bert") for m in (unpadded(theirs), theirs))
    assert lengths[0][0] == 1
    assert actual.dtype == dtype
    assert_within_budget(actual, exact=exact, plain=plain, label=str(dtype))


def test_autocast(lengths: list[tuple[int, int]]) -> None:
    theirs, given = tiny("distilbert", "eager"), batch("distilbert")
    with torch.no_grad():
        exact = real_states(theirs, given, "distilbert")
        plain = real_states(copy.deepcopy(theirs).bfloat16(), given, "distilbert")
        with torch.autocast("cpu", torch.bfloat16):
            actual = real_states(unpadded(theirs), given, "distilbert").bfloat16()
    assert lengths[0][0] == 1
    assert_within_budget(actual, exact=exact, plain=plain, label="autocast")


def test_dropout_is_drawn_for_real_tokens_in_training_alone() -> None:
    ours, given = unpadded(tiny("bert", "eager")), batch("bert")
    wanted = ours(**given).last_hidden_state
    with_dropout(ours, 0.4)
    assert_same_bits(ours.eval()(**given).last_hidden_state, wanted)
    ours.train()
    drawn = []
    for seed in (1, 1, 2):
        torch.manual_seed(seed)
        drawn.append(ours(**given).last_hidden_state)
    assert_same_bits(drawn[0], drawn[1])
    assert not torch.equal(drawn[0], drawn[2])
    assert not drawn[0][~given["attention_mask"].bool()].any()


@pytest.mark.parametrize("name", ["bert", "modernbert", "bart"])
@pytest.mark.parametrize("reentrant", [False, True])
def test_gradient_checkpointing(name: str, reentrant: bool) -> None:
    plain, given = unpadded(with_dropout(tiny(name, "eager"), 0.3)), batch(name)
    again = copy.deepcopy(plain)
    again.activation_checkpointing_enable({"use_reentrant": reentrant})
    for model in (plain, again):
        torch.manual_seed(4)
        learn(real_states(model, given, name))
    found = 0
    for mine, right in zip(again.parameters(), plain.parameters(), strict=True):
        assert (mine.grad is None) == (right.grad is None)
        if mine.grad is not None and right.grad is not None:
            torch.testing.assert_close(mine.grad, right.grad)
            found += bool(mine.grad.any())
    assert found > 10


def test_a_pair_answers_from_a_packed_source() -> None:
    theirs = tiny("bart", "eager")
    given = {"input_ids": tokens(3), "attention_mask": padded("left", 3)}
    given["decoder_input_ids"] = tokens(3, length=5, seed=4)
    found, wanted = (model(**given).logits for model in (unpadded(theirs), theirs))
    torch.testing.assert_close(found, wanted)
    del given["decoder_input_ids"]
    made = [m.generate(**given, max_new_tokens=4) for m in (unpadded(theirs), theirs)]
    assert torch.equal(*made)
