"""What torch.jit records of a model stands for texts with other padding, too."""

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

from headwise import hf
from tests.support.hf_tiny import answer, padded, tiny, tokens


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("kind", ["tokens", "booleans", "numbers"])
def test_a_traced_model_reads_other_masks(kind: str) -> None:
    before = tiny("bert", "sdpa")
    after = hf.accelerate(copy.deepcopy(before))
    ids, real = tokens(), padded("right")
    made: dict[str, Callable[[Tensor], Tensor]] = {
        "tokens": lambda real: real,
        "booleans": lambda real: real.bool()[:, None, None].expand(-1, 1, 11, -1),
        "numbers": lambda real: (real[:, None, None].expand(-1, 1, 11, -1) - 1) * 3e38,
    }
    trace: Any = torch.jit.trace
    with torch.no_grad():
        traced = trace(after, (ids, made[kind](torch.ones_like(real))), strict=False)
        found = traced(ids, made[kind](real))["last_hidden_state"]
        wanted = answer(before, {"input_ids": ids, "attention_mask": made[kind](real)})
    torch.testing.assert_close(found[real.bool()], wanted[real.bool()])
