"""Layers that ``accelerate(unpad=True)`` takes or leaves, by what their code shows."""

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
import transformers
from torch import Tensor, nn
from transformers.models.bert.modeling_bert import BertLayer

import headwise
from headwise import hf
from headwise.errors import BackendRefused
from headwise.hf.accelerated.swap import is_packed
from headwise.hf.report import notes
from tests.support.hf_tiny import FAMILIES, LEFT, padded, tiny, tokens

OWN = "run the code of their own class"


def given() -> dict[str, Tensor]:
    return {"input_ids": tokens(3), "attention_mask": padded("right", 3)}


def unpadded(model: Any) -> Any:
    return hf.accelerate(copy.deepcopy(model), unpad=True)


def states(model: Any, **call: Any) -> Tensor:
    found: Tensor = model(**call).last_hidden_state
    return found


def first_layer(model: Any) -> Any:
    return model.encoder.layer[0]


class Shift(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return x.roll(1, 1)


class Mean(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return x - x.mean(1, keepdim=True)


class First(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return x + x[:, :1]


class Product(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return (x @ x.transpose(1, 2)) @ x


class Spread(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        def inner(part: Tensor) -> Tensor:
            return part.cumsum(1)

        return inner(x)


class Held(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.change: Callable[[Tensor], Tensor] = lambda x: x.roll(1, 1)

    def forward(self, x: Tensor) -> Tensor:
        return self.change(x)


class Places(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.places = nn.Parameter(torch.ones(11, 24))

    def forward(self, x: Tensor) -> Tensor:
        return x + self.places


MIXING = {
    Shift: "its Shift may mix tokens: it uses roll",
    Mean: "its Mean may mix tokens: it uses mean",
    First: "its First may mix tokens: it uses x[…, …]",
    Product: "its Product may mix tokens: it uses @",
    Spread: "its Spread may mix tokens: it uses cumsum",
    Held: "its Held may mix tokens: it uses change",
    Places: "its Places may tell places apart: it holds places (11, 24)",
}


@pytest.mark.parametrize("kind", MIXING)
def test_layers_with_parts_that_mix_tokens_are_left(kind: type[nn.Module]) -> None:
    before, inputs = tiny("bert", "eager"), given()
    first_layer(before).output.dropout = kind()
    ours = unpadded(before)
    assert [is_packed(layer) for layer in ours.encoder.layer] == [False, True]
    assert hf.report(ours).padding[0] == f"padding: goes through 1 BertLayer: {MIXING[kind]}"
    real = inputs["attention_mask"].bool()
    torch.testing.assert_close(states(ours, **inputs)[real], states(before, **inputs)[real])


def test_parts_that_are_replaced_later_are_looked_at() -> None:
    before, inputs = tiny("bert", "eager"), given()
    ours = unpadded(before)
    real = inputs["attention_mask"].bool()
    states(ours, **inputs)
    for model in (before, ours):
        first_layer(model).output.dropout = Mean()
    torch.testing.assert_close(states(ours, **inputs)[real], states(before, **inputs)[real])
    assert notes[first_layer(ours)] == MIXING[Mean]
    assert f"{OWN}; the last call did: {MIXING[Mean]}" in str(hf.report(ours))
    torch.manual_seed(2)
    adapter = nn.Sequential(nn.Linear(24, 24), nn.GELU())
    for model in (before, ours):
        first_layer(model).output.dropout = adapter
    torch.testing.assert_close(states(ours, **inputs)[real], states(before, **inputs)[real])
    assert first_layer(ours) not in notes


def _chunked(layer: Any) -> None:
    layer.chunk_size_feed_forward = 2


def _replaced(layer: Any) -> None:
    layer.output.dense.forward = lambda x: x[..., :24]


def _method(layer: Any) -> None:
    layer.feed_forward_chunk = lambda x: x.roll(1, 1)


def _convolution(layer: Any) -> None:
    layer.output.dropout = nn.Conv1d(11, 11, 1)


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (_chunked, "it cuts its input into chunks, chunk_size_feed_forward"),
        (_replaced, "the forward of its Linear was replaced"),
        (_convolution, "its Conv1d may mix tokens"),
        (_method, "its BertLayer may mix tokens: it uses feed_forward_chunk"),
    ],
)
def test_layers_that_are_left(change: Callable[[Any], None], reason: str) -> None:
    before = tiny("bert", "eager")
    change(first_layer(before))
    ours = unpadded(before)
    assert not is_packed(first_layer(ours))
    assert hf.report(ours).padding[0] == f"padding: goes through 1 BertLayer: {reason}"


class Telling(BertLayer):  # type: ignore[no-untyped-call]
    def forward(self, hidden_states: Tensor, attention_mask: Any = None, **kwargs: Any) -> Any:
        found: Tensor = super().forward(hidden_states, attention_mask)
        return found, hidden_states


def test_a_layer_that_returns_more_is_refused() -> None:
    config = tiny("bert", "eager").config
    config._attn_implementation = "headwise"
    made: Any = Telling
    layer = hf.accelerate(made(config).eval(), unpad=True)
    ours = tiny("bert")
    embedded = ours.embeddings(tokens(3))
    mask, _ = ours._create_attention_masks(padded("right", 3), None, embedded, None, None)
    with pytest.raises(BackendRefused) as refused:
        layer(embedded, mask)
    assert str(refused.value) == (
        "hf.accelerate: unpad=True runs Telling on 29 tokens in a row, and must get one tensor "
        "(1, 29, width) back, got [(1, 29, 24), (1, 29, 24)]\n"
        "  hint: call hf.accelerate(model) without unpad"
    )


REASONS = {
    "mpnet": "its MPNetLayer adds biases of distances, which packing changes",
    "t5": "its T5Block adds biases of distances, which packing changes",
    "longformer": "its LongformerSelfAttention attends by its own code",
    "big_bird": "its BigBirdBlockSparseAttention attends by its own code",
    "deberta_v2": "its DisentangledSelfAttention attends by its own code",
    "gpt2": "it is a decoder's",
    "bloom": "its BloomAttention attends by its own code",
    "llama": "it is a decoder's",
    "bigbird_pegasus": "its BigBirdPegasusBlockSparseAttention attends by its own code",
    "vit": "its model reads pixel_values, of which no mask says what is padding",
    "clip_vision": "its model reads pixel_values, of which no mask says what is padding",
    "whisper": "its model reads input_features, of which no mask says what is padding",
}


@pytest.mark.parametrize("name", REASONS)
def test_families_where_it_does_nothing_say_so(name: str) -> None:
    family = FAMILIES[name] if name in FAMILIES else LEFT[name]
    with torch.device("meta"):
        config = getattr(transformers, family.config)(**family.numbers)
        model = getattr(transformers, family.auto).from_config(config)
    found = hf.report(hf.accelerate(model, unpad=True))
    assert found.padding[0].endswith(f": {REASONS[name]}")
    assert not any(is_packed(part) for part in model.modules())


def test_without_the_compiled_core(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(headwise._native, "kernels", None)
    model = hf.accelerate(tiny("bert", "eager"), unpad=True)
    assert hf.report(model).padding == (
        "padding: goes through 2 BertLayer: headwise has no compiled core here, without which "
        "this would not be faster",
    )
