"""Fast classes that hand calls to the code that they replace say so, and the report shows it."""

import inspect
import pkgutil
from collections.abc import Callable, Iterator
from importlib import import_module
from typing import Any

import pytest
import torch
import transformers
from torch import nn
from transformers.pytorch_utils import Conv1D

from headwise import hf
from headwise.hf import accelerated
from headwise.hf.accelerated.feed_forward import FastFeedForward, fast_feed_forward
from headwise.hf.accelerated.swap import is_fast
from tests.support.budget import assert_same_bits
from tests.support.hf_tiny import tiny

_ORIGINALS = frozenset(("_original", "original"))


def fast_classes() -> Iterator[type]:
    for found in pkgutil.iter_modules(accelerated.__path__, f"{accelerated.__name__}."):
        yield from getattr(import_module(found.name), "SWAPS", {}).values()
    owner = import_module("transformers.models.bert.modeling_bert")
    yield fast_feed_forward(owner.BertIntermediate)


def functions_of(fast: type) -> Iterator[Callable[..., Any]]:
    """Return what a fast class computes by: its own functions, and those of its bases here."""
    for kind in fast.__mro__:
        if kind.__module__.startswith("headwise.hf."):
            for member in vars(kind).values():
                if inspect.isfunction(member) and member.__annotations__.get("return") is not None:
                    yield inspect.unwrap(member)


def hands_over(function: Callable[..., Any]) -> bool:
    names = set(function.__code__.co_names)
    return bool(names & _ORIGINALS) or {"super", function.__name__} <= names


KINDS = [*dict.fromkeys(fast_classes())]


@pytest.mark.parametrize("fast", KINDS, ids=lambda kind: kind.__qualname__)
def test_who_hands_over_says_so_and_no_other(fast: type) -> None:
    does = any(map(hands_over, functions_of(fast)))
    says = getattr(fast, "hands_over", "")
    assert bool(says) == does, says
    assert not does or says.startswith("calls ")


def test_the_rule_finds_all_kinds_of_it() -> None:
    found = [fast.__name__ for fast in KINDS if any(map(hands_over, functions_of(fast)))]
    assert {
        "FastBertIntermediate",
        "FastBlockSparseAttention",
        "FastConv1D",
        "FastMPNetEncoder",
        "FastNewGELU",
        "LEDEncoder",
    } <= set(found)
    assert "FastLinear" not in found


def test_reports_show_what_is_handed_over() -> None:
    lines = str(hf.report(hf.accelerate(tiny("gpt2", "eager"))))
    assert "9 accelerated; calls of up to 4 rows run the code of their own class" in lines
    lines = str(hf.report(tiny("longformer")))
    assert "calls for attention weights, in float64, off the CPU" in lines
    for name in ("gpt2", "longformer", "led", "mpnet", "bigbird_pegasus"):
        model = hf.accelerate(tiny(name, "eager"))
        shown = str(hf.report(model))
        for part in model.modules():
            calls = str(getattr(type(part), "hands_over", ""))
            assert not is_fast(part) or calls in shown, (name, type(part))


@pytest.mark.parametrize("kind", ["intermediate", "activation", "linear", "conv1d"])
def test_layers_without_numbers_know_no_autocast(kind: str) -> None:
    owner = import_module("transformers.models.bert.modeling_bert")
    sizes: dict[str, Any] = {"hidden_size": 8, "intermediate_size": 12, "num_attention_heads": 2}
    with torch.device("meta"):
        layer: Any = {
            "intermediate": lambda: owner.BertIntermediate(transformers.BertConfig(**sizes)),
            "activation": transformers.activations.NewGELUActivation,
            "linear": lambda: nn.Linear(8, 12),
            "conv1d": lambda: Conv1D(12, 8),  # type: ignore[no-untyped-call]
        }[kind]()
    x = torch.empty(3, 7, 8, device="meta")
    found = hf.accelerate(layer)(x)
    assert is_fast(layer)
    assert found.device.type == "meta"
    assert found.shape == ((3, 7, 8) if kind == "activation" else (3, 7, 12))


def test_autocast_runs_the_original_code() -> None:
    owner = import_module("transformers.models.bert.modeling_bert")
    before = owner.BertIntermediate(transformers.BertConfig(hidden_size=8, num_attention_heads=2))
    x = torch.randn(2, 3, 8)
    with torch.no_grad(), torch.autocast("cpu", torch.bfloat16):
        wanted = before(x)
        after = hf.accelerate(before)
        assert isinstance(after, FastFeedForward)
        assert_same_bits(after(x), wanted)
