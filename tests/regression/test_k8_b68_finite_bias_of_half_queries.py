"""B68: finite numbers of a float32 bias became -inf in half precision, and NaN when added."""

import pytest
import torch

from tests.support.paths import Path, on_exact_once
from tests.support.shapes import Sizes
from tests.support.whole_calls import judged_whole, simple

LOWEST = torch.finfo(torch.float32).min


@on_exact_once
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=str)
@pytest.mark.parametrize("q_len", [5, 49])
def test_half_the_keys_and_one_whole_row(path: Path, dtype: torch.dtype, q_len: int) -> None:
    bias = torch.zeros(q_len, 40)
    bias[:, ::2] = LOWEST
    call = simple(Sizes(2, 2, 1, q_len, 40, 16, 16), dtype=dtype, bias=bias)
    judged_whole(path, call)
    bias[3] = LOWEST
    with path.taken() as backend:
        found = call.run(backend)
    step = 2 * torch.finfo(dtype).eps
    mean = call.given.value.double().mean(2).to(dtype)
    torch.testing.assert_close(found.output[:, :, 3], mean, rtol=step, atol=step)
    for tensor in found:
        assert tensor is None or tensor.isfinite().all()
