"""LongformerAttention compiles whole, but for global tokens whose number has to be read."""

from typing import Any

import pytest
import torch

import headwise as hw
from tests.support.budget import assert_same_bits

pytestmark = pytest.mark.filterwarnings("ignore:`torch.jit:DeprecationWarning")

REAL = torch.ones(2, 20, dtype=torch.bool)
REAL[1, 17:] = False
CHOSEN = torch.zeros(2, 20, dtype=torch.bool)
CHOSEN[0, [0, 3]] = CHOSEN[1, 5] = True
CALLS: dict[str, tuple[Any, Any]] = {
    "nothing": (None, None),
    "padding": (None, REAL),
    "positions": ([0, 3], None),
    "flags": (CHOSEN, REAL),
    "no flag set": (CHOSEN & False, REAL),
}


@pytest.mark.slow
@pytest.mark.parametrize(("tokens", "real"), CALLS.values(), ids=CALLS)
@pytest.mark.parametrize("causal", [False, True])
def test_compiled_calls(tokens: Any, real: Any, causal: bool) -> None:
    torch._dynamo.reset()
    layer = hw.nn.LongformerAttention(24, 3, 6, causal=causal)
    compiled = torch.compile(
        layer, backend="aot_eager", fullgraph=real is None and not isinstance(tokens, torch.Tensor)
    )
    x = torch.randn(2, 20, 24)
    found, wanted = compiled(x, tokens, kv_mask=real), layer(x, tokens, kv_mask=real)
    assert_same_bits(found, wanted)
    mine, right = (
        torch.autograd.grad(output.sum(), layer.W_k.weight)[0] for output in (found, wanted)
    )
    assert_same_bits(mine, right)


def test_global_tokens_are_refused_where_the_graph_must_be_whole() -> None:
    torch._dynamo.reset()
    layer = hw.nn.LongformerAttention(24, 3, 6)
    compiled = torch.compile(layer, backend="aot_eager", fullgraph=True)
    with pytest.raises(torch._dynamo.exc.Unsupported, match="how many tokens are global"):
        compiled(torch.randn(2, 20, 24), CHOSEN)
