"""MultiHeadAttention: what it takes, what it refuses, what it hands on."""

import copy
from collections.abc import Callable

import pytest
import torch
from torch import Tensor

import headwise as hw

pytestmark = pytest.mark.usefixtures("plain_calls")


@pytest.mark.parametrize("kv_heads", [1, 2, 4])
def test_grouped_heads_equal_repeated_ones(kv_heads: int) -> None:
    grouped = hw.MultiHeadAttention(20, 4, num_kv_heads=kv_heads)
    plain = hw.MultiHeadAttention(20, 4)
    state = grouped.state_dict()
    for name in ("W_k", "W_v"):
        weight = state[f"{name}.weight"].view(kv_heads, 5, 20).repeat_interleave(4 // kv_heads, 0)
        bias = state[f"{name}.bias"].view(kv_heads, 5).repeat_interleave(4 // kv_heads, 0)
        state |= {f"{name}.weight": weight.reshape(20, 20), f"{name}.bias": bias.reshape(20)}
    plain.load_state_dict(state)
    x = torch.randn(2, 7, 20)
    torch.testing.assert_close(grouped(x), plain(x))


def test_every_width_can_differ() -> None:
    layer = hw.MultiHeadAttention(
        13, 6, num_kv_heads=3, head_dim=5, value_dim=7, kv_dim=11, bias=False, qk_norm=True
    )
    assert layer(torch.randn(2, 3, 13), torch.randn(2, 4, 11)).shape == (2, 3, 13)
    assert all("bias" not in name for name, _ in layer.named_parameters())


def test_input_without_a_batch_is_one_sample() -> None:
    layer = hw.MultiHeadAttention(12, 3)
    x = torch.randn(5, 12)
    torch.testing.assert_close(layer(x), layer(x[None])[0])


def test_masks_and_patterns_are_joined() -> None:
    layer = hw.MultiHeadAttention(12, 3, pattern=hw.Causal())
    x = torch.randn(2, 5, 12)
    mask = torch.rand(5, 5) > 0.3
    real = torch.tensor([[1, 1, 1, 1, 1], [0, 1, 1, 1, 1]])
    joined = hw.Causal() & hw.Window(2, 0) & hw.Dense(mask) & hw.KeyMask(real)
    expected = hw.MultiHeadAttention(12, 3)
    expected.load_state_dict(layer.state_dict())
    torch.testing.assert_close(
        layer(x, mask=mask, kv_mask=real, pattern=hw.Window(2, 0)),
        expected(x, mask=joined.dense(5, 5)),
    )


def test_sinks_and_softcap_reach_the_scores() -> None:
    layer = hw.MultiHeadAttention(12, 3, sinks=True, softcap=1.5)
    x = torch.randn(2, 5, 12)
    q, k, v = layer.project(x)
    context = hw.attend(q, k, v, sinks=layer.sinks, softcap=1.5)
    torch.testing.assert_close(layer(x), layer.W_o(layer.combine_heads(context)))
    torch.autograd.backward(layer(x).sum())
    assert layer.sinks is not None
    assert layer.sinks.grad is not None
    assert bool((layer.sinks.grad != 0).all())


def test_dropout_is_off_in_eval_and_leaves_the_generator_alone() -> None:
    layer = hw.MultiHeadAttention(12, 3, dropout=0.5).eval()
    x = torch.randn(2, 5, 12)
    before = torch.get_rng_state()
    first, second = layer(x), layer(x)
    assert torch.equal(first, second)
    assert torch.equal(torch.get_rng_state(), before)
    assert not torch.equal(layer.train()(x), layer(x))


def test_copies_and_hooks_work() -> None:
    layer = hw.MultiHeadAttention(12, 3, pattern=hw.Causal() & hw.Lengths([3, 5]))
    x = torch.randn(2, 5, 12)
    assert torch.equal(copy.deepcopy(layer)(x), layer(x))
    seen: list[str] = []
    for name in ("W_q", "W_k", "W_v", "W_o"):
        layer.get_submodule(name).register_forward_hook(lambda *_, n=name: seen.append(n))
    layer(x)
    assert sorted(seen) == ["W_k", "W_o", "W_q", "W_v"]


def test_overridden_split_is_used_for_all_three() -> None:
    class Counting(hw.MultiHeadAttention):
        splits = 0

        def split_heads(self, x: Tensor) -> Tensor:
            self.splits += 1
            return super().split_heads(x)

    layer = Counting(12, 3, num_kv_heads=1)
    layer(torch.randn(2, 5, 12))
    assert layer.splits == 3


X = torch.zeros(2, 5, 12)
Wrong = Callable[[hw.MultiHeadAttention], Tensor]
REFUSED: list[tuple[Wrong, type[Exception], str]] = [
    (lambda layer: layer(Q=X), TypeError, "instead of Q use query="),
    (lambda layer: layer(X, need_weights=True), TypeError, "headwise.attention_weights"),
    (lambda layer: layer(X, key_padding_mask=X), TypeError, "turn it round with ~"),
    (lambda layer: layer(X, nonsense=1), TypeError, "there is no argument nonsense"),
    (hw.MultiHeadAttention.__call__, TypeError, "query is missing"),
    (lambda layer: layer(torch.zeros(2, 5, 11)), hw.ShapeError, "with widths (12, 12, 12)"),
    (lambda layer: layer(X, X[0]), hw.ShapeError, "leave out the batch in all or none"),
    (lambda layer: layer(X, X[:1]), hw.ShapeError, "nothing is broadcast"),
    (lambda layer: layer(X, mask=torch.ones(2, 5, 5)), hw.PatternError, "mask[:, None]"),
    (lambda layer: layer(X, mask=torch.full((5, 5), -1e9)), hw.PatternError, "go into bias="),
    (lambda layer: layer(X, mask=torch.ones(4, 5)), hw.PatternError, "broadcast to 5 queries"),
    (lambda layer: layer(X, kv_mask=torch.ones(2, 6)), hw.PatternError, "got 6 for 5 keys"),
    (lambda layer: layer(X, kv_mask=torch.ones(3, 5)), hw.PatternError, "got 3 for 2"),
    (lambda layer: layer(X, X, cache=hw.KVCache()), hw.CacheError, "serves self-attention"),
]


@pytest.mark.parametrize(("wrong", "kind", "text"), REFUSED, ids=[text for *_, text in REFUSED])
def test_refusals(wrong: Wrong, kind: type[Exception], text: str) -> None:
    with pytest.raises(kind) as caught:
        wrong(hw.MultiHeadAttention(12, 3))
    assert text in str(caught.value)


@pytest.mark.parametrize("sizes", [(12, 5), (0, 1), (12, 0), (12, 4, 3)], ids=str)
def test_sizes_that_do_not_fit(sizes: tuple[int, ...]) -> None:
    with pytest.raises(hw.ShapeError, match="MultiHeadAttention: "):
        hw.MultiHeadAttention(sizes[0], sizes[1], num_kv_heads=sizes[2] if sizes[2:] else None)


def test_override_of_the_seeds_step_is_refused() -> None:
    class Overriding(hw.MultiHeadAttention):
        def scaled_dot_product_attention(self) -> None: ...

    with pytest.raises(TypeError, match="so overriding it would change nothing"):
        Overriding(12, 3)
