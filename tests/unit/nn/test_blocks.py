"""TransformerBlock: equal to the layers of others, one rule for its parts, what it refuses."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

import headwise as hw
from tests.support.budget import assert_same_bits, assert_within_budget
from tests.support.foreign_layers import FOREIGN, HEADS, WIDTH, Foreign, Tensors, parts

LENGTH, MEMORY = 7, 5
REAL = torch.arange(LENGTH) < torch.tensor([[LENGTH], [4]])
REMEMBERED = torch.arange(MEMORY) >= torch.tensor([[0], [2]])
UPSTREAM = torch.linspace(-0.5, 0.5, 2 * LENGTH * WIDTH, dtype=torch.float64).view(2, LENGTH, WIDTH)


def inputs() -> Tensors:
    source = torch.Generator().manual_seed(3)
    shapes = {
        "x": (2, LENGTH, WIDTH),
        "memory": (2, MEMORY, WIDTH),
        "bias": (1, HEADS, LENGTH, LENGTH),
    }
    return {name: torch.randn(shape, generator=source) for name, shape in shapes.items()}


def derived(run: Callable[..., Tensor], module: nn.Module, given: Tensors) -> tuple[Tensors, ...]:
    """Return the output with what the inputs learn, and what the parameters do."""
    given = {name: tensor.clone().requires_grad_() for name, tensor in given.items()}
    output = run(module, **given)
    wanted = [*given.values(), *module.parameters()]
    learned = torch.autograd.grad(output, wanted, UPSTREAM.to(output.dtype), allow_unused=True)
    found = {"output": output.detach(), **dict(zip(given, learned, strict=False))}
    names = [name for name, _ in module.named_parameters()]
    weights = dict(zip(names, learned[len(given) :], strict=True))
    return tuple(
        {name: tensor for name, tensor in tensors.items() if tensor is not None}
        for tensors in (found, weights)
    )


def ours(foreign: Foreign, block: nn.Module, x: Tensor, memory: Tensor, bias: Tensor) -> Tensor:
    output: Tensor = block(
        x,
        memory if foreign.reads else None,
        kv_mask=REAL,
        memory_mask=REMEMBERED if foreign.reads else None,
        pattern=hw.Causal() if foreign.causal else None,
        bias=bias if foreign.biased else None,
    )
    return output


def theirs(foreign: Foreign, layer: nn.Module, x: Tensor, memory: Tensor, bias: Tensor) -> Tensor:
    seen = torch.ones(LENGTH, LENGTH, dtype=torch.bool)
    seen = REAL[:, None, None] & (seen.tril() if foreign.causal else seen)
    added = tuple(
        torch.zeros(open_.shape).masked_fill(~open_, float("-inf"))
        for open_ in (seen, REMEMBERED[:, None, None])
    )
    return foreign.run(layer, x, memory, (added[0], added[1]), bias)


@pytest.mark.parametrize("training", [True, False], ids=["train", "eval"])
@pytest.mark.parametrize("name", FOREIGN)
def test_values_and_gradients_of_others(name: str, training: bool) -> None:
    foreign = FOREIGN[name]()
    for weight in foreign.layer.parameters():
        nn.init.normal_(weight, std=0.3)
    foreign.layer.train(training)
    block = foreign.block().train(training)
    scale = foreign.query_scale
    block.load_state_dict(foreign.renamed(foreign.layer.state_dict(), scale))

    def run(module: nn.Module, **given: Tensor) -> Tensor:
        return (theirs if module is foreign.layer else ours)(foreign, module, **given)

    given = inputs()
    with torch.no_grad():
        unseen = run(block, **given)
    found, learned = derived(run, block, given)
    plain, weights = derived(run, foreign.layer, given)
    wide = {name: tensor.double() for name, tensor in given.items()}
    exact, exact_learned = derived(run, block.double(), wide)
    found, exact = found | learned, exact | exact_learned
    plain |= foreign.renamed(weights, 1 / scale)
    assert found.keys() == exact.keys() == plain.keys()
    assert len(found) == 2 + foreign.reads + foreign.biased + len(block.state_dict())
    for label, right in exact.items():
        torch.testing.assert_close(plain[label], right.float(), rtol=1e-4, atol=1e-4)
        assert_within_budget(found[label], exact=right, plain=plain[label], label=label)
    assert_within_budget(unseen, exact=exact["output"], plain=plain["output"], label="inference")


@pytest.mark.parametrize("norm_first", [True, False])
@pytest.mark.parametrize("norm", ["layer", "rms"])
def test_parts_stand_beside_the_residual_path(norm: str, norm_first: bool) -> None:
    block = hw.nn.TransformerBlock(*parts(reads=True), norm=norm, eps=0.5, norm_first=norm_first)
    given = inputs()
    x, memory = given["x"], given["memory"]
    cross = block.get_submodule("cross_attention")

    def normed(x: Tensor, name: str) -> Tensor:
        weights = {key: block.state_dict().get(f"{name}_norm.{key}") for key in ("weight", "bias")}
        if norm == "rms":
            return functional.rms_norm(x, (WIDTH,), weights["weight"], 0.5)
        return functional.layer_norm(x, (WIDTH,), **weights, eps=0.5)

    run: dict[str, Callable[[Tensor], Tensor]] = {
        "attention": lambda x: block.attention(x, pattern=hw.Causal()),
        "cross_attention": lambda x: cross(x, memory),
        "feed_forward": block.feed_forward,
    }
    wanted = x
    for name, part in run.items():
        if norm_first:
            wanted = wanted + part(normed(wanted, name))
        else:
            wanted = normed(wanted + part(wanted), name)
    assert_same_bits(block(x, memory, pattern=hw.Causal()), wanted)


def test_what_is_said_of_the_tokens_stays_with_the_attention() -> None:
    """The memory has other tokens, so no mask, pattern, bias or offset goes there."""
    block = hw.nn.TransformerBlock(*parts(reads=True))
    seen: dict[str, dict[str, Any]] = {}
    for name in ("attention", "cross_attention"):
        block.get_submodule(name).register_forward_pre_hook(
            lambda _, __, given, name=name: seen.update({name: given}), with_kwargs=True
        )
    given, mask = inputs(), torch.ones(LENGTH, LENGTH, dtype=torch.bool)
    said = {"pattern": hw.Window(2, 0), "bias": given["bias"], "q_offset": 3}
    block(given["x"], given["memory"], mask, kv_mask=REAL, memory_mask=REMEMBERED, **said)
    unsaid = {"cache": None, "layer": None, "q_lengths": None}
    assert seen["attention"] == {**said, **unsaid, "mask": mask, "kv_mask": REAL}
    assert seen["cross_attention"] == {"key": given["memory"], "kv_mask": REMEMBERED}


@pytest.mark.parametrize("capacity", [None, LENGTH])
def test_token_by_token_equals_the_full_pass(capacity: int | None) -> None:
    blocks = [hw.nn.TransformerBlock(*parts(reads=True, pattern=hw.Causal())) for _ in range(2)]
    given, cache = inputs(), hw.KVCache(capacity=capacity)

    def through(x: Tensor, memory: Tensor, cache: hw.KVCache | None = None) -> Tensor:
        for number, block in enumerate(blocks):
            x = block(x, memory, memory_mask=REMEMBERED, cache=cache, layer=number)
        return x

    with torch.no_grad():
        plain = through(given["x"], given["memory"])
        steps = [through(x, given["memory"], cache) for x in given["x"].unsqueeze(2).unbind(1)]
        for block in blocks:
            block.double()
        exact = through(given["x"].double(), given["memory"].double())
    assert cache.length() == LENGTH
    assert_within_budget(torch.cat(steps, 1), exact=exact, plain=plain, label="steps")


def test_one_sample_may_leave_out_the_batch() -> None:
    block, given = hw.nn.TransformerBlock(*parts(reads=True)), inputs()
    x, memory = given["x"], given["memory"]
    assert_same_bits(block(x[0], memory[0]), block(x[:1], memory[:1])[0])


@pytest.mark.parametrize("shape", [(0, LENGTH), (2, 0), (0, 0)], ids=str)
@pytest.mark.parametrize("norm", ["layer", "rms"])
def test_empty_sizes(norm: str, shape: tuple[int, int]) -> None:
    block = hw.nn.TransformerBlock(*parts(reads=True), norm=norm)
    x = torch.zeros(*shape, WIDTH, requires_grad=True)
    found = block(x, torch.ones(shape[0], MEMORY, WIDTH))
    assert found.shape == x.shape
    torch.autograd.backward(found.sum())
    assert x.grad is not None


def test_dropout_is_of_what_a_part_adds() -> None:
    x = inputs()["x"]
    block = hw.nn.TransformerBlock(*parts(), dropout=1.0)
    assert_same_bits(block(x), x)
    before = torch.get_rng_state()
    assert not torch.equal(block.eval()(x), x)
    assert torch.equal(torch.get_rng_state(), before)
    block.train().dropout = 0.5
    torch.manual_seed(1)
    found = block(x)
    torch.manual_seed(1)
    middle = x + functional.dropout(block.attention(block.attention_norm(x)), 0.5)
    added = block.feed_forward(block.feed_forward_norm(middle))
    assert_same_bits(found, middle + functional.dropout(added, 0.5))


def test_norms_are_made_like_the_attention() -> None:
    made: dict[str, Any] = {"device": "meta", "dtype": torch.bfloat16}
    block = hw.nn.TransformerBlock(
        hw.MultiHeadAttention(WIDTH, HEADS, **made), hw.nn.FeedForward(WIDTH, **made), norm="rms"
    )
    norms = {name: w for name, w in block.state_dict().items() if "norm" in name}
    assert list(norms) == ["attention_norm.weight", "feed_forward_norm.weight"]
    assert {(w.device.type, w.dtype) for w in norms.values()} == {("meta", torch.bfloat16)}
    assert "norm_first=True, dropout=0.0" in repr(block)


@pytest.mark.usefixtures("plain_calls")
@pytest.mark.parametrize(
    ("wrong", "kind", "says"),
    [
        (
            {"feed_forward": hw.nn.FeedForward(16), "cross_attention": parts()[0]},
            hw.errors.ShapeError,
            "TransformerBlock: all parts must have the same d_model, got attention 12, "
            "feed_forward 16, cross_attention 12\n"
            "  hint: the width of a memory is kv_dim of cross_attention",
        ),
        (
            {"norm": "batch"},
            ValueError,
            "TransformerBlock: norm must be one of layer, rms, got 'batch'\n"
            '  hint: "layer" is nn.LayerNorm, "rms" is nn.RMSNorm',
        ),
        (
            {"dropout": -0.5},
            ValueError,
            "TransformerBlock: dropout must lie between 0 and 1, got -0.5\n"
            "  hint: dropout is the share of numbers set to zero in training",
        ),
    ],
)
def test_refused_settings(wrong: dict[str, Any], kind: type[Exception], says: str) -> None:
    attention, feed_forward, _ = parts()
    settings = {"attention": attention, "feed_forward": feed_forward, **wrong}
    with pytest.raises(kind) as refused:
        hw.nn.TransformerBlock(**settings)
    assert str(refused.value) == says


@pytest.mark.parametrize(
    ("where", "shown"),
    [
        ({"pattern": hw.Window(1, 1)}, "Window(left=1, right=1, dilation=1) and None"),
        ({"positions": hw.positions.Alibi(HEADS)}, "None and Alibi(3)"),
    ],
    ids=["pattern", "positions"],
)
def test_cross_attention_that_counts_tokens(where: dict[str, Any], shown: str) -> None:
    attention, feed_forward, _ = parts()
    cross = hw.MultiHeadAttention(WIDTH, HEADS, **where)
    with pytest.raises(ValueError) as refused:  # noqa: PT011
        hw.nn.TransformerBlock(attention, feed_forward, cross)
    assert str(refused.value) == (
        "TransformerBlock: cross_attention must have no pattern and no positions, for the tokens "
        f"of a memory have a count of their own, got {shown}\n"
        "  hint: call the layers one by one, and say with q_offset= where queries stand"
    )


@pytest.mark.parametrize("name", ["memory", "memory_mask"])
def test_a_memory_that_nothing_reads(name: str) -> None:
    block, given = hw.nn.TransformerBlock(*parts()), {**inputs(), "memory_mask": REMEMBERED}
    with pytest.raises(TypeError) as refused:
        block(given["x"], **{name: given[name]})
    assert str(refused.value) == (
        f"TransformerBlock: there is nothing that reads {name}\n"
        "  hint: give the block a cross_attention=MultiHeadAttention(…)"
    )


def test_cross_attention_without_a_memory() -> None:
    block = hw.nn.TransformerBlock(*parts(reads=True))
    with pytest.raises(TypeError) as refused:
        block(inputs()["x"])
    assert str(refused.value) == (
        "TransformerBlock: the block has cross attention, and memory is missing\n"
        "  hint: pass the encoder's output as memory="
    )


def test_rows_of_a_block_may_take_fewer_tokens() -> None:
    torch.manual_seed(0)
    attention = hw.MultiHeadAttention(WIDTH, HEADS, pattern=hw.Causal())
    block, x = hw.nn.TransformerBlock(attention, hw.nn.FeedForward(WIDTH)), inputs()["x"]
    cache = hw.KVCache()
    with torch.no_grad():
        block(x[:, :4], cache=cache, q_lengths=[4, 2])
        assert cache.lengths().tolist() == [4, 2]
        found = block(x[:, 4:5], cache=cache)
        short = block(torch.cat([x[1:, :2], x[1:, 4:5]], 1))
    torch.testing.assert_close(found[1], short[0, 2:])
    with pytest.raises(TypeError, match="q_lengths says which tokens a cache stores"):
        block(x, q_lengths=[4, 2])
