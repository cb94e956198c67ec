"""Calls that ``accelerate(unpad=True)`` leaves as they are; there and back, copies, compilers."""

import copy
import io
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from torch import Tensor

from headwise import hf
from headwise.hf.accelerated.swap import is_fast, is_packed
from headwise.hf.report import notes
from tests.support.budget import assert_same_bits
from tests.support.hf_tiny import padded, tiny, tokens

OWN = "run the code of their own class"


def given(side: str = "right") -> dict[str, Tensor]:
    return {"input_ids": tokens(3), "attention_mask": padded(side, 3)}


def unpadded(model: Any) -> Any:
    return hf.accelerate(copy.deepcopy(model), unpad=True)


def states(model: Any, **call: Any) -> Tensor:
    found: Tensor = model(**call).last_hidden_state
    return found


def first_layer(model: Any) -> Any:
    return model.encoder.layer[0]


@pytest.mark.parametrize("call", ["whole", "no mask", "one text", "padding alone", "float64"])
def test_where_nothing_can_be_left_out_bits_are_those_of_accelerate(call: str) -> None:
    plain = hf.accelerate(tiny("bert", "eager"))
    ours, inputs = unpadded(plain), given("none" if call == "whole" else "right")
    if call == "no mask":
        del inputs["attention_mask"]
    if call == "one text":
        inputs = {"input_ids": tokens(1)}
    if call == "padding alone":
        inputs["attention_mask"] = torch.zeros_like(inputs["attention_mask"])
    if call == "float64":
        plain, ours = plain.double(), ours.double()
    assert_same_bits(states(ours, **inputs), states(plain, **inputs))
    reasons = {
        "padding alone": "the batch is padding alone",
        "float64": "the compiled core does not compute torch.float64 on cpu",
    }
    assert notes.get(first_layer(ours)) == reasons.get(call)


def test_a_mask_of_other_making() -> None:
    plain = hf.accelerate(tiny("bert", "eager"))
    ours, inputs = unpadded(plain), given()
    inputs["attention_mask"] = inputs["attention_mask"].bool()[:, None, None].expand(3, 1, 11, 11)
    assert_same_bits(states(ours, **inputs), states(plain, **inputs))
    assert notes[first_layer(ours)] == "its mask is not of headwise's making"
    ours.set_attn_implementation("eager")
    torch.testing.assert_close(states(ours, **given()), states(tiny("bert", "eager"), **given()))


def test_holes_where_a_mask_counts_distances() -> None:
    plain = hf.accelerate(tiny("modernbert", "eager"))
    ours, inputs = unpadded(plain), given()
    inputs["attention_mask"][0, 4] = 0
    real = inputs["attention_mask"].bool()
    torch.testing.assert_close(states(ours, **inputs)[real], states(plain, **inputs)[real])
    sliding = [layer for layer in ours.layers if layer.attention_type == "sliding_attention"]
    assert sliding
    assert {notes[layer] for layer in sliding} == {
        "its mask counts distances, and padding stands between real tokens"
    }


def test_tensors_beside_hidden_states() -> None:
    plain = hf.accelerate(tiny("bert", "eager"))
    ours = unpadded(plain)
    rotary = (torch.zeros(1, 11, 4), torch.ones(3, 11, 4))
    for extra, reason in (
        ({"input_ids": torch.ones(3, 11)}, "it was given input_ids, Tensor (3, 11)"),
        ({"labels": (torch.ones(3), None)}, "it was given labels, Tensor (3,), NoneType"),
        (
            {"position_ids": torch.ones(11)},
            "it was given position_ids, Tensor (11,)",
        ),
        ({"position_ids": [None]}, "it was given position_ids, NoneType"),
        ({"num_items_in_batch": torch.tensor(3), "return_dict": True}, None),
        ({"position_ids": torch.arange(11).expand(3, 11)}, None),
        ({"position_ids": list(rotary)}, None),
    ):
        encoded = [_encoded(model, extra) for model in (ours, plain)]
        real = given()["attention_mask"].bool()
        torch.testing.assert_close(encoded[0][real], encoded[1][real])
        assert notes.get(first_layer(ours)) == reason


def test_a_cache() -> None:
    ours = unpadded(tiny("bert", "eager"))
    found = _encoded(ours, {"cache": transformers.DynamicCache()})
    assert found.isfinite().all()
    assert notes[first_layer(ours)] == "it was given cache, DynamicCache"


def _encoded(model: Any, extra: dict[str, Any]) -> Tensor:
    """Run the stack of layers with one argument more."""
    inputs = given()
    embedded = model.embeddings(inputs["input_ids"])
    mask, _ = model._create_attention_masks(inputs["attention_mask"], None, embedded, None, None)
    found: Tensor = model.encoder(embedded, attention_mask=mask, **extra).last_hidden_state
    return found


def test_transforms() -> None:
    ours, inputs = unpadded(tiny("bert", "eager")), given()
    weights = {name: weight.detach() for name, weight in ours.named_parameters()}
    whole = torch.func.functional_call(ours, weights, (), inputs)[0]
    assert_same_bits(whole, states(ours, **inputs))
    assert first_layer(ours) not in notes

    def loss(weights: dict[str, Tensor]) -> Tensor:
        found: Tensor = torch.func.functional_call(ours, weights, (), inputs)[0]
        return found[inputs["attention_mask"].bool()].square().mean()

    grads = torch.func.grad(loss)(weights)
    assert notes[first_layer(ours)] == "a transform or torch.jit follows torch's operations"
    found: Any = loss(dict(ours.named_parameters()))
    found.backward()
    for name, weight in ours.named_parameters():
        if weight.grad is not None:
            torch.testing.assert_close(grads[name], weight.grad)


def test_who_listens_inside_sees_the_padded_batch() -> None:
    ours, inputs = unpadded(tiny("bert", "eager")), given()
    real, wanted, seen = inputs["attention_mask"].bool(), states(ours, **inputs), []
    hook: Callable[..., None] = lambda part, args, found: seen.append(found.shape)  # noqa: E731
    for place in (first_layer(ours), first_layer(ours).intermediate):
        handle = place.register_forward_hook(hook)
        torch.testing.assert_close(states(ours, **inputs)[real], wanted[real])
        handle.remove()
    assert seen == [(3, 11, 24), (3, 11, 40)]
    assert notes[first_layer(ours)] == "hooks listen inside"
    ours(**inputs, output_attentions=True)
    assert_same_bits(states(ours, **inputs), wanted)


def test_there_and_back() -> None:
    model, inputs = tiny("bert", "eager"), given()
    before = states(model, **inputs)
    kinds = [type(part) for part in model.modules()]
    plain = states(hf.accelerate(model), **inputs)
    lines = hf.report(model).padding
    assert lines == (
        "padding: goes through 2 BertLayer; hf.accelerate(model, unpad=True) leaves it out",
    )
    fast = sum(is_fast(part) for part in model.modules())
    for _ in range(2):
        hf.accelerate(model, unpad=True)
        found = states(model, **inputs)
        assert [is_packed(layer) for layer in model.encoder.layer] == [True, True]
        assert sum(is_fast(part) for part in model.modules()) == fast + 2
    assert hf.report(model).layers == hf.report(hf.accelerate(tiny("bert", "eager"))).layers
    assert hf.report(model).padding[0].startswith("padding: left out of 2 BertLayer; calls for")
    assert hf.report(model).padding[0].endswith(OWN)
    assert not found[~inputs["attention_mask"].bool()].any()
    assert_same_bits(states(hf.accelerate(model), **inputs), plain)
    assert hf.report(model).padding == lines
    hf.restore(hf.accelerate(model, unpad=True))
    assert [type(part) for part in model.modules()] == kinds
    assert_same_bits(states(model, **inputs), before)


def test_one_layer_alone() -> None:
    model, inputs = tiny("bert", "eager"), given()
    wanted = states(model, **inputs)
    hf.accelerate(model)
    hf.accelerate(model.encoder.layer[1], unpad=True)
    assert [is_packed(layer) for layer in model.encoder.layer] == [False, True]
    real = inputs["attention_mask"].bool()
    torch.testing.assert_close(states(model, **inputs)[real], wanted[real])
    hf.accelerate(model.encoder.layer[1])
    assert not any(is_packed(layer) for layer in model.encoder.layer)


def test_copies_answer_alike(tmp_path: Path) -> None:
    ours, inputs = unpadded(tiny("bert", "eager")), given()
    wanted, stored = states(ours, **inputs), io.BytesIO()
    torch.save(ours, stored)
    stored.seek(0)
    for other in (copy.deepcopy(ours), torch.load(stored, weights_only=False)):
        assert is_packed(first_layer(other))
        assert_same_bits(states(other, **inputs), wanted)
    ours.save_pretrained(tmp_path)
    loaded = transformers.AutoModel.from_pretrained(tmp_path).eval()
    assert loaded.state_dict().keys() == ours.state_dict().keys()
    assert_same_bits(states(hf.accelerate(loaded, unpad=True), **inputs), wanted)


def test_a_saved_class_that_there_is_not() -> None:
    from headwise.hf.accelerated import packed_layers

    with pytest.raises(AttributeError, match="has no attribute 'Nothing'"):
        _ = packed_layers.Nothing


@pytest.mark.slow
def test_compiled_layers_run_the_code_of_their_own_class() -> None:
    ours = unpadded(tiny("bert", "eager"))
    layer, inputs = first_layer(ours), given()
    with torch.no_grad():
        embedded = ours.embeddings(inputs["input_ids"])
        mask, _ = ours._create_attention_masks(inputs["attention_mask"], None, embedded, None, None)
        wanted = layer(embedded, mask)
        compiled: Any = torch.compile(layer, backend="eager")
        found = compiled(embedded, mask)
    real = inputs["attention_mask"].bool()
    torch.testing.assert_close(found[real], wanted[real])
    assert found[~real].any()
