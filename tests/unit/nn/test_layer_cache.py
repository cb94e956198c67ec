"""A call of the layer with a cache is one step: it is done, or nothing has changed."""

from collections.abc import Callable

import pytest
import torch
from torch import nn

import headwise as hw
from tests.support.budget import assert_same_bits

KINDS: dict[str, Callable[[], hw.KVCache]] = {
    "growing": hw.KVCache,
    "fixed": lambda: hw.KVCache(capacity=20),
    "window": lambda: hw.KVCache(window=8),
    "pages": lambda: hw.KVCache(pool=hw.PagePool()),
    "8 bits": lambda: hw.KVCache(dtype=torch.int8),
}
on_kinds = pytest.mark.parametrize("kind", KINDS)


def broken(*_: object) -> None:
    raise ArithmeticError("broken")


@on_kinds
def test_what_fails_behind_the_attention_leaves_no_tokens(kind: str) -> None:
    layer = hw.MultiHeadAttention(16, 4, pattern=hw.Causal()).eval().requires_grad_(False)
    x, cache, untouched = torch.randn(2, 6, 16), KINDS[kind](), KINDS[kind]()
    for tokens in (x[:, :3], x[:, 3:]):
        hook = layer.W_o.register_forward_hook(broken)
        with pytest.raises(ArithmeticError):
            layer(tokens, cache=cache)
        hook.remove()
        assert cache.length() == untouched.length()
        assert_same_bits(layer(tokens, cache=cache), layer(tokens, cache=untouched))


@on_kinds
def test_a_refused_call_claims_no_layer(kind: str) -> None:
    first, second = (hw.MultiHeadAttention(16, 4).eval().requires_grad_(False) for _ in range(2))
    x, cache = torch.randn(2, 3, 16), KINDS[kind]()
    wrong: list[Callable[[], object]] = [
        lambda: second(torch.randn(2, 3, 9), cache=cache),
        lambda: second(x, kv_mask=torch.ones(2, 9, dtype=torch.bool), cache=cache),
        lambda: second(x, q_lengths=[9, 9], cache=cache),
    ]
    for call in wrong:
        with pytest.raises((hw.ShapeError, hw.PatternError, hw.CacheError)):
            call()
    second.explain(x, cache=cache)
    first(x, cache=cache)
    assert cache.length(0) == 3
    second(x, cache=cache)
    assert cache.length(1) == 3


def test_the_state_of_a_mechanism_is_taken_back() -> None:
    class Sum(nn.Module):
        """The sum of all values up to now."""

        def forward(self, call: hw.nn.AttentionCall, state: object = None) -> hw.nn.Step:
            before = self.state(call) if state is None else state
            assert isinstance(before, torch.Tensor)
            sums = before + call.value.cumsum(-2)
            return hw.nn.Step(sums, sums[..., -1:, :])

        def state(self, call: hw.nn.AttentionCall) -> object:
            return call.value.new_zeros(*call.value.shape[:2], 1, call.value.shape[3])

        def cost(self, q_len: int, kv_len: int, **_: int) -> hw.nn.Cost:
            return hw.nn.Cost(q_len, kv_len, "O(n)")

        def reference(self, call: hw.nn.AttentionCall) -> torch.Tensor:
            return call.value.cumsum(-2)

    layer = hw.MultiHeadAttention(16, 4, mechanism=Sum()).eval().requires_grad_(False)
    x, cache = torch.randn(2, 7, 16), hw.KVCache()
    layer(x[:, :4], cache=cache)
    hook = layer.W_o.register_forward_hook(broken)
    with pytest.raises(ArithmeticError):
        layer(x[:, 4:], cache=cache)
    hook.remove()
    torch.testing.assert_close(layer(x[:, 4:], cache=cache), layer(x)[:, 4:])
    assert cache.length() == 7
    with pytest.raises((hw.CacheError, hw.ShapeError)):
        layer(torch.randn(1, 1, 16), cache=cache)
    assert cache.length() == 7
