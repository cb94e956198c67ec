"""Models of ``headwise.models`` under ``torch.compile``."""

from typing import Any

import pytest
import torch

import headwise as hw
from tests.support.own_models import ENCODERS, RANDOM_FEATURES, given, tiny

compiled: Any = torch.compile

CASES: dict[str, tuple[str, dict[str, Any]]] = {
    "decoder": ("decoder", {"pattern": "window(3, 0) | global(0)"}),
    "performer": ("decoder", {"mechanism": RANDOM_FEATURES, "positions": "learned"}),
    "linformer": ("encoder", ENCODERS["linformer"]),
    "pair": ("encoder_decoder", {"positions": "sinusoidal"}),
}


@pytest.mark.slow
@pytest.mark.parametrize("name", CASES)
def test_a_pass_and_its_gradients_in_one_graph(name: str) -> None:
    kind, changes = CASES[name]
    model, asked = tiny(kind, **changes), given(kind)
    asked["labels"] = asked.get("decoder_input_ids", asked["input_ids"])
    asked["attention_mask"] = torch.ones(2, 11, dtype=torch.long)
    asked["attention_mask"][1, 8:] = 0
    outs = [model(**asked), compiled(model, fullgraph=True, backend="aot_eager")(**asked)]
    logits = [out.logits[:, :5] for out in outs]
    torch.testing.assert_close(*logits, rtol=0, atol=1e-4)
    gradients = []
    for out in outs:
        model.zero_grad()
        out.loss.backward()
        gradients.append(model.get_input_embeddings().weight.grad.clone())
    torch.testing.assert_close(*gradients, rtol=1e-4, atol=1e-4)


@torch.no_grad()
def test_a_pass_in_one_graph() -> None:
    model, ids = tiny(num_layers=1), given("decoder")["input_ids"]
    mask = torch.ones_like(ids)
    mask[1, :3] = 0
    out = compiled(model, fullgraph=True, backend="eager")(ids, attention_mask=mask)
    assert out.cache is None
    wanted = model(ids, attention_mask=mask).logits
    torch.testing.assert_close(out.logits[mask.bool()], wanted[mask.bool()], rtol=0, atol=1e-4)


def test_positions_are_refused_in_a_graph() -> None:
    model = compiled(tiny(), backend="eager")
    with pytest.raises(hw.PatternError, match="cannot be checked while a call is traced"):
        model(given("decoder")["input_ids"], position_ids=torch.arange(11)[None])
