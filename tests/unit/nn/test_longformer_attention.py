"""LongformerAttention: windows, global tokens, padding, what it leaves alone, what it refuses."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

import headwise as hw
from tests.support.budget import assert_same_bits
from tests.support.longformer import neighbours, spelled

pytestmark = pytest.mark.usefixtures("plain_calls")

LENGTH = 19


def flags(*samples: list[int]) -> Tensor:
    found = torch.zeros(len(samples), LENGTH, dtype=torch.bool)
    for sample, tokens in zip(found, samples, strict=True):
        sample[tokens] = True
    return found


CHOSEN = flags([0, 7, 18], [], [3])
REAL = ~flags([], [17, 18], [0, 1, 10])
X = torch.randn(3, LENGTH, 12, generator=torch.Generator().manual_seed(5), dtype=torch.float64)


def made(window: Any = 6, **changes: Any) -> hw.nn.LongformerAttention:
    return hw.nn.LongformerAttention(12, 3, window, dtype=torch.float64, **changes)


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("masked", [False, True])
@pytest.mark.parametrize(
    ("window", "dilation"),
    [(6, 1), (7, 1), (1, 1), (6, 3), ([2, 6, 40], 1), (4, [1, 2, 5]), ((2, 4, 6), (3, 2, 1))],
    ids=str,
)
def test_windows_dilation_and_causal_use(
    window: Any, dilation: Any, causal: bool, masked: bool
) -> None:
    layer = made(window, dilation=dilation, causal=causal)
    real = REAL if masked else torch.ones_like(REAL)
    windows, steps = ([n] * 3 if isinstance(n, int) else list(n) for n in (window, dilation))
    near = neighbours(LENGTH, windows, steps, causal)
    x = X.clone().requires_grad_()
    found = layer(x, CHOSEN, kv_mask=REAL if masked else None)
    wanted = spelled(layer, x, near, CHOSEN & real, real)
    torch.testing.assert_close(found, wanted)
    upstream = torch.randn_like(found)
    inputs = [x, *layer.parameters()]
    for mine, right in zip(
        torch.autograd.grad(found, inputs, upstream),
        torch.autograd.grad(wanted, inputs, upstream),
        strict=True,
    ):
        torch.testing.assert_close(mine, right)


def test_tied_projections_are_the_pattern() -> None:
    layer = made()
    for name in ("W_q", "W_k", "W_v"):
        layer.get_submodule(f"{name}_global").load_state_dict(
            layer.get_submodule(name).state_dict()
        )
    plain = hw.MultiHeadAttention(12, 3, dtype=torch.float64)
    plain.load_state_dict({k: v for k, v in layer.state_dict().items() if "global" not in k})
    pattern = hw.patterns.longformer(6, CHOSEN)
    torch.testing.assert_close(layer(X, CHOSEN), plain(X, pattern=pattern))


@pytest.mark.parametrize(
    "tokens", [7, [7, 0], torch.tensor([0, 7]), flags([0, 7])[0], flags([0, 7])], ids=str
)
def test_the_same_tokens_in_every_sample(tokens: Any) -> None:
    layer, wanted = made(), [0, 7] if not isinstance(tokens, int) else [7]
    assert_same_bits(layer(X, tokens), layer(X, flags(wanted, wanted, wanted)))


def test_one_sample_may_leave_out_the_batch() -> None:
    layer = made()
    assert_same_bits(layer(X[0], CHOSEN[0]), layer(X[:1], CHOSEN[:1])[0])
    found = layer(X[2], CHOSEN[2], kv_mask=REAL[2])
    assert_same_bits(found, layer(X[2:], CHOSEN[2:], kv_mask=REAL[2:])[0])


def test_padding_is_seen_by_none_and_gives_the_bias_of_the_output() -> None:
    layer, x = made().float(), X.float()
    clean = layer(x, CHOSEN, kv_mask=REAL)
    x[~REAL] = float("nan")
    x.requires_grad_()
    found = layer(x, CHOSEN | ~REAL, kv_mask=REAL)
    assert_same_bits(found, clean)
    assert bool((found[~REAL] == layer.W_o.bias).all())
    (learned,) = torch.autograd.grad(found.sum(), x)
    assert bool(learned[REAL].isfinite().all())
    nothing = layer(X.float(), CHOSEN, kv_mask=torch.zeros_like(REAL))
    assert bool((nothing == layer.W_o.bias).all())


@pytest.mark.parametrize("tokens", [None, [], flags([], [], []), flags([], [17], [])], ids=str)
def test_without_global_tokens_their_projections_rest(tokens: Any) -> None:
    layer = made()
    used: list[str] = []
    for name, module in layer.named_children():
        module.register_forward_hook(lambda *_, name=name: used.append(name))
    found = layer(X, tokens, kv_mask=REAL)
    assert used == ["W_q", "W_k", "W_v", "W_o"]
    assert_same_bits(found, layer(X, kv_mask=REAL))


@pytest.mark.parametrize("causal", [False, True])
def test_no_pair_is_worked_on_twice_or_for_nothing(
    causal: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[Tensor] = []

    def noted(q: Tensor, k: Tensor, v: Tensor, pattern: hw.patterns.Pattern, **rest: Any) -> Tensor:
        seen.append(pattern.dense(q.shape[2], k.shape[2], q_offset=0).squeeze(1))
        return hw.attend(q, k, v, pattern, **rest)

    monkeypatch.setattr("headwise.nn.longformer_attention.attend", noted)
    made(causal=causal)(X, CHOSEN, kv_mask=REAL)
    local, asked = seen
    assert torch.equal(local.any(-1), REAL & ~(CHOSEN & REAL))
    assert asked.shape == (3, 3, LENGTH)
    assert asked.any(-1).tolist() == [[True, True, True], [False] * 3, [True, False, False]]


def test_dropout_is_off_in_eval() -> None:
    layer = made(dropout=0.5).eval()
    before = torch.get_rng_state()
    assert_same_bits(layer(X, CHOSEN), layer(X, CHOSEN))
    assert torch.equal(torch.get_rng_state(), before)
    assert not torch.equal(layer.train()(X, CHOSEN), layer(X, CHOSEN))
    layer.dropout = 1.0
    assert bool((layer(X, CHOSEN) == layer.W_o.bias).all())


@pytest.mark.parametrize("shape", [(0, 5, 12), (2, 0, 12), (0, 0, 12)], ids=str)
def test_empty_sizes(shape: tuple[int, ...]) -> None:
    layer, x = made(), torch.zeros(shape, dtype=torch.float64, requires_grad=True)
    tokens = torch.ones(shape[:2], dtype=torch.bool)
    found = layer(x, tokens, kv_mask=tokens)
    assert found.shape == shape
    torch.autograd.backward(found.sum())
    assert x.grad is not None


def test_its_text_says_what_it_sees() -> None:
    assert "num_heads=3, pattern=Window(left=3, right=3" in repr(made(causal=True))
    assert "causal=True" in repr(made(causal=True))


Wrong = Callable[[], object]
REFUSED: list[tuple[Wrong, type[Exception], str]] = [
    (lambda: made()(X[..., :11]), hw.ShapeError, "x must be (batch, length, 12)"),
    (lambda: made()(X[None]), hw.ShapeError, "x must be (batch, length, 12)"),
    (lambda: made()(X, [3, 19]), hw.ShapeError, "positions below 19, got 19"),
    (lambda: made()(X, [-1]), hw.PatternError, "positions must not be negative"),
    (lambda: made()(X, [0.5]), hw.PatternError, "GlobalTokens: which"),
    (lambda: made()(X, CHOSEN[:2]), hw.ShapeError, "got (2, 19) for a batch of 3 and 19"),
    (lambda: made()(X, CHOSEN[:, :18]), hw.ShapeError, "global_tokens must be (batch, length)"),
    (lambda: made()(X, CHOSEN[None]), hw.PatternError, "booleans (length,) or (batch, length)"),
    (lambda: made()(X, kv_mask=REAL[:, 1:]), hw.ShapeError, "kv_mask must be (batch, length)"),
    (lambda: made()(X, kv_mask=REAL * -1e9), hw.PatternError, "numbers that are all 0 or 1"),
    (lambda: made(0), hw.ShapeError, "ints of at least 1, or 3 of them, got 0 and 1"),
    (lambda: made([2, 4]), hw.ShapeError, "got [2, 4] and 1"),
    (lambda: made(None), hw.ShapeError, "got None and 1"),
    (lambda: made(dilation=[1, 0, 1]), hw.ShapeError, "got 6 and [1, 0, 1]"),
    (lambda: made(dropout=1.5), ValueError, "dropout must lie between 0 and 1, got 1.5"),
    (lambda: hw.nn.LongformerAttention(12, 5, 6), hw.ShapeError, "got 5 and 12"),
    (lambda: hw.nn.LongformerAttention(12, 0, 6), hw.ShapeError, "got num_heads=0"),
]


@pytest.mark.parametrize(("wrong", "kind", "text"), REFUSED, ids=[text for *_, text in REFUSED])
def test_refusals(wrong: Wrong, kind: type[Exception], text: str) -> None:
    with pytest.raises(kind) as caught:
        wrong()
    assert text in str(caught.value)
