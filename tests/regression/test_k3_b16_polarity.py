"""B16: True meant "keep" in one function and "drop" in another, so code trained on the future."""

from typing import Any

import pytest
import torch

import headwise as hw
from headwise.patterns import Tiles
from tests.support.paths import Path, on_all, on_layers
from tests.support.shapes import Inputs

LOWER = torch.ones(3, 3).tril().bool()


def depends(run: object, x: torch.Tensor) -> torch.Tensor:
    """Return which output token depends on which input token."""
    jacobian = torch.autograd.functional.jacobian(run, x)  # type: ignore[no-untyped-call]
    found: torch.Tensor = jacobian.abs().sum((1, 3)) > 0
    return found


@on_all
@pytest.mark.parametrize(
    "pattern",
    [
        *(hw.Causal(), hw.Dense(LOWER), hw.Dense(LOWER.float())),
        *(Tiles(LOWER, 1), Tiles(LOWER.int(), 1), hw.PerHead([hw.Causal()])),
        *(hw.Causal() & hw.GlobalTokens([True] * 3), hw.Causal() & hw.KeyMask([True] * 3)),
        ~hw.Dense(~LOWER),
    ],
    ids=repr,
)
def test_true_may_attend(path: Path, pattern: hw.patterns.Pattern) -> None:
    query, key, value = torch.randn(3, 1, 1, 3, 4).unbind(0)
    for token in (1, 2):
        spoiled = [key.clone(), value.clone()]
        for tensor in spoiled:
            tensor[:, :, token] += 1.0
        with path.taken() as backend:
            before = hw.attend(query, key, value, pattern, backend=backend)
            after = hw.attend(*Inputs(query, *spoiled), pattern, backend=backend)
        assert torch.equal(after[:, :, :token], before[:, :, :token])
        assert not torch.equal(after[:, :, token], before[:, :, token])


@pytest.mark.parametrize("how", ["mask", "numbers", "pattern", "own pattern"])
def test_the_jacobian_of_a_layer_is_lower_triangular(how: str) -> None:
    layer = hw.MultiHeadAttention(4, 2, pattern=hw.Causal() if how == "own pattern" else None)
    given: dict[str, dict[str, Any]] = {
        "mask": {"mask": LOWER},
        "numbers": {"mask": LOWER.int()},
        "pattern": {"pattern": hw.Causal()},
        "own pattern": {},
    }
    found = depends(lambda x: layer(x[None], **given[how])[0], torch.randn(3, 4))
    assert torch.equal(found, LOWER)


@on_layers
def test_numbers_that_are_a_bias_are_no_mask(path: Path) -> None:
    layer = hw.MultiHeadAttention(4, 2)
    bias = torch.zeros(3, 3).masked_fill(~LOWER, float("-inf"))
    x = torch.randn(1, 3, 4)
    with path.taken():
        with pytest.raises(hw.PatternError, match="go into bias="):
            layer(x, mask=bias)
        torch.testing.assert_close(layer(x, bias=bias), layer(x, mask=LOWER))


@pytest.mark.parametrize(
    ("name", "way_out"),
    [("key_padding_mask", "kv_mask"), ("attn_mask", "mask"), ("is_causal", "Causal()")],
)
def test_names_with_the_other_polarity_are_refused(name: str, way_out: str) -> None:
    layer = hw.MultiHeadAttention(4, 2)
    with pytest.raises(TypeError, match=name) as caught:
        layer(torch.randn(1, 3, 4), **{name: LOWER})
    assert way_out in str(caught.value).splitlines()[-1]
