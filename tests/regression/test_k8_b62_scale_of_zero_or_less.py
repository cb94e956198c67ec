"""B62: a negative scale became NaN or lost its sign, where its root was taken on both sides."""

from typing import Any

import pytest
import torch

import headwise as hw
from tests.support.paths import Path, on_all_once
from tests.support.shapes import Sizes
from tests.support.whole_calls import judged_whole, simple

SIZES = Sizes(4, 3, 1, 5, 5, 8, 8)
MASK = torch.rand(5, 5, generator=torch.Generator().manual_seed(0)) < 0.6
FORMS: dict[str, dict[str, Any]] = {
    "none": {},
    "bool": {"pattern": hw.Dense(MASK)},
    "float": {"bias": torch.zeros(5, 5).masked_fill(~MASK, float("-inf"))},
}


@on_all_once
@pytest.mark.parametrize("scale", [-0.5, 0.0, -1e4])
@pytest.mark.parametrize("form", list(FORMS))
def test_the_scale_is_taken_as_given(path: Path, scale: float, form: str) -> None:
    found = judged_whole(path, simple(SIZES, scale=scale, **FORMS[form]))
    for gradient in (found.d_query, found.d_key, found.d_value):
        assert gradient.isfinite().all()
    if scale == 0.0:
        assert (found.d_query == 0).all()
        assert (found.d_key == 0).all()


@on_all_once
def test_zero_gives_the_mean_of_what_is_seen(path: Path) -> None:
    call = simple(SIZES, scale=0.0, pattern=hw.Dense(MASK))
    with path.taken() as backend:
        output = call.run(backend).output
    shares = MASK / MASK.sum(-1, keepdim=True).clamp(min=1)
    torch.testing.assert_close(output, shares @ call.given.value)
