"""MPNet's attention after ``accelerate``: biases by distance, and the masks that go with them."""

from typing import Any

import pytest
import torch

from headwise import hf
from headwise.hf.accelerated.mpnet import FastMPNetEncoder, FastMPNetSelfAttention, _SharedBias
from tests.support.budget import assert_same_bits, assert_within_budget
from tests.support.hf_tiny import answer, both, inputs, tiny, tokens, without_dropout

LONG: dict[str, Any] = {"max_position_embeddings": 400}


def test_biases_agree_at_all_distances() -> None:
    """Past 128 tokens all distances share a bucket."""
    ours, theirs = both("mpnet", **LONG)
    given = {"input_ids": tokens(length=301)}
    with torch.no_grad():
        actual, plain = answer(ours, given), answer(theirs, given)
        exact = answer(theirs.double(), given)
    assert_within_budget(actual, exact=exact, plain=plain, label="301")


@pytest.mark.parametrize("length", [1, 5, 200])
def test_biases_spelled_out_are_those_of_transformers(length: int) -> None:
    ours, theirs = both("mpnet", **LONG)
    hidden = torch.zeros(2, length, 24)
    rule = ours.encoder.compute_position_bias(hidden)
    wanted = theirs.encoder.compute_position_bias(hidden)
    assert_same_bits(rule.spelled().expand_as(wanted), wanted)


def test_no_random_numbers_are_drawn_for_them() -> None:
    ours, given = tiny("mpnet"), inputs("mpnet")
    state = torch.get_rng_state()
    answer(ours, given)
    assert torch.equal(torch.get_rng_state(), state)


@pytest.mark.parametrize("side", ["none", "left", "right"])
def test_biases_are_not_spelled_out_unless_they_must_be(
    side: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    ours, given = tiny("mpnet").train(), inputs("mpnet", side)
    spelled: list[int] = []
    monkeypatch.setattr(_SharedBias, "spelled", lambda bias: spelled.append(1))
    loss: Any = answer(ours, given).square().mean()
    loss.backward()
    assert not spelled
    assert ours.encoder.relative_attention_bias.weight.grad.any()


@pytest.mark.parametrize("mild", [False, True])
def test_masks_of_numbers_count(mild: bool) -> None:
    """Holes and mild numbers stand beside the biases, which are then spelled out."""
    ours, theirs = both("mpnet")
    holes = torch.rand(2, 1, 11, 11, generator=torch.Generator().manual_seed(5)) < 0.4
    holes.diagonal(dim1=-2, dim2=-1).zero_()
    mask = torch.zeros(holes.shape).masked_fill(holes, -1.5 if mild else -1e38)
    given = {"input_ids": tokens(), "attention_mask": mask}
    with torch.no_grad():
        actual, plain = answer(ours, given), answer(theirs, given)
        exact = answer(theirs.double(), {**given, "attention_mask": mask.double()})
    assert_within_budget(actual, exact=exact, plain=plain, label=str(mild))


def test_a_mask_of_booleans_is_added_as_transformers_adds_it() -> None:
    ours, theirs = both("mpnet")
    mask = torch.ones(11, 11).tril().bool().expand(2, 1, 11, 11)
    given = {"input_ids": tokens(), "attention_mask": mask}
    torch.testing.assert_close(answer(ours, given), answer(theirs, given))


def test_the_chance_of_dropout_is_kept() -> None:
    layer = without_dropout(tiny("mpnet")).encoder.layer[0].attention.attn
    layer.dropout.p = 1.0
    output = layer(torch.randn(2, 5, 24), None, None)[0]
    torch.testing.assert_close(output, layer.o.bias.expand(2, 5, 24))


def test_other_buckets_than_the_code_counts_are_left() -> None:
    ours = tiny("mpnet", relative_attention_num_buckets=40)
    theirs = tiny("mpnet", "eager", relative_attention_num_buckets=40)
    assert "has 40 buckets" in str(FastMPNetEncoder.refusal(theirs.encoder))
    assert not isinstance(ours.encoder, FastMPNetEncoder)
    assert isinstance(ours.encoder.layer[0].attention.attn, FastMPNetSelfAttention)
    given = inputs("mpnet")
    torch.testing.assert_close(answer(ours, given), answer(theirs, given))


def test_layers_of_transformers_get_numbers() -> None:
    model, given = tiny("mpnet"), inputs("mpnet", "right")
    real = given["attention_mask"].bool()
    wanted = answer(model, given)
    hf.restore(model.encoder.layer[1].attention.attn)
    hidden = torch.zeros(2, 3, 24)
    assert isinstance(model.encoder.compute_position_bias(hidden), torch.Tensor)
    torch.testing.assert_close(answer(model, given)[real], wanted[real])


@pytest.mark.slow
def test_a_compiled_model_answers_alike() -> None:
    ours, given = tiny("mpnet"), inputs("mpnet", "right")
    with torch.no_grad():
        compiled = answer(torch.compile(ours, backend="eager"), given)
        assert_same_bits(compiled, answer(ours, given))
    torch._dynamo.reset()
