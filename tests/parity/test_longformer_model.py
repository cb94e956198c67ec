"""Our layer inside transformers' Longformer, on the tokens as they are: no padding to windows."""

from typing import Any

import pytest
import torch
from torch import Tensor, nn

from tests.support.budget import assert_within_budget
from tests.support.longformer import tiny_longformer, with_weights_of

WINDOW = 6


class _Served(nn.Module):
    """Our layer in the place of ``LongformerSelfAttention``, whose dense stands behind it."""

    def __init__(self, attention: nn.Module) -> None:
        super().__init__()
        self.layer = with_weights_of(attention, WINDOW)
        self.layer.set_submodule("W_o", nn.Identity())

    def forward(self, x: Tensor, attention_mask: Tensor, **_: object) -> tuple[Tensor]:
        return (self.layer(x, attention_mask > 0, kv_mask=attention_mask >= 0),)


def _unpadded(**given: Any) -> tuple[Any, ...]:
    names = ("input_ids", "attention_mask", "token_type_ids", "position_ids", "inputs_embeds")
    return 0, *(given[name] for name in names)


def _served(monkeypatch: pytest.MonkeyPatch) -> Any:
    model = tiny_longformer(WINDOW, layers=2)
    for layer in model.encoder.layer:
        layer.attention.self = _Served(layer.attention)
    monkeypatch.setattr(model, "_pad_to_window_size", _unpadded)
    return model


def _derived(model: Any, given: dict[str, Tensor]) -> dict[str, Tensor]:
    """Return the hidden states of real tokens, and what the embeddings learn from them."""
    real = given["attention_mask"].bool()
    output = model(**given).last_hidden_state[real]
    upstream = torch.linspace(-1, 1, output.numel(), dtype=torch.float64).view(output.shape)
    weight = model.embeddings.word_embeddings.weight
    (learned,) = torch.autograd.grad(output, weight, upstream.to(output.dtype))
    return {"output": output.detach(), "embeddings": learned}


@pytest.mark.parametrize("length", [17, 18, 29])
@pytest.mark.parametrize("padded", ["left", "right"])
@pytest.mark.parametrize("asking", [True, False], ids=["global", "none"])
def test_hidden_states_and_gradients(
    length: int, padded: str, asking: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    ids = torch.randint(2, 61, (3, length))
    mask = torch.ones(3, length, dtype=torch.long)
    mask[1, :4] = 0
    mask = mask if padded == "left" else mask.flip(1)
    ids = ids.masked_fill(mask == 0, 1)
    given = {"input_ids": ids, "attention_mask": mask}
    if asking:
        chosen = torch.zeros(3, length, dtype=torch.long)
        chosen[0, [0, 7]] = chosen[1, 9] = 1
        given["global_attention_mask"] = chosen

    exact = _derived(_served(monkeypatch).double(), given)
    ours = _derived(_served(monkeypatch), given)
    theirs = _derived(tiny_longformer(WINDOW, layers=2), given)
    for name, right in exact.items():
        torch.testing.assert_close(theirs[name], right.float())
        assert_within_budget(ours[name], exact=right, plain=theirs[name], label=name)
    # In float64 their softmax is in float32 still, and padded queries bring NaN to gradients.
    wide = tiny_longformer(WINDOW, layers=2).double()(**given).last_hidden_state[mask.bool()]
    right = exact["output"]
    assert_within_budget(wide, exact=right, plain=right.float(), label="their float64")
