"""BigBird of transformers through our attention, in both modes, values and gradients."""

from collections.abc import Callable
from typing import Any, NamedTuple

import pytest
import torch
import transformers
from torch import Tensor, nn
from torch.nn.functional import pad
from transformers.models.big_bird.modeling_big_bird import BigBirdBlockSparseAttention
from transformers.models.bigbird_pegasus.modeling_bigbird_pegasus import (
    BigBirdPegasusBlockSparseAttention,
)

import headwise as hw
from tests.support.budget import assert_within_budget
from tests.support.paths import Path, on_layers

HEADS, WIDTH = 3, 24


class Case(NamedTuple):
    """Sizes of one attention, and its number of tokens."""

    block: int
    random: int
    length: int
    training: bool


CASES = {
    "evaluation": Case(4, 3, 60, False),
    "evaluation, a block cut short": Case(4, 3, 57, False),
    "evaluation, four blocks": Case(4, 2, 16, False),
    "evaluation, five blocks": Case(4, 3, 19, False),
    "evaluation, large blocks": Case(16, 2, 180, False),
    "training": Case(4, 3, 60, True),
    "training, a block cut short": Case(4, 3, 54, True),
    "training, the fewest blocks of a model": Case(4, 3, 48, True),
    "training, blocks named twice": Case(4, 3, 24, True),
    "training, large blocks": Case(16, 2, 181, True),
    "training, one of the old lengths": Case(64, 3, 1021, True),
    "evaluation, one of the old lengths": Case(64, 3, 1024, False),
}


def attention_of(case: Case, kind: Any = BigBirdBlockSparseAttention, seed: int = 2) -> Any:
    config = transformers.BigBirdConfig(
        hidden_size=WIDTH,
        num_attention_heads=HEADS,
        block_size=case.block,
        num_random_blocks=case.random,
        max_position_embeddings=2048,
    )
    made = kind(config, seed)
    for weight in made.parameters():
        nn.init.normal_(weight, std=0.3)
    return made.train(case.training)


def theirs(attention: Any, x: Tensor, real: Tensor) -> Tensor:
    """Run transformers' attention, padded to its blocks and cut."""
    rest = -x.shape[1] % attention.block_size
    create = transformers.BigBirdModel.create_masks_for_block_sparse_attn
    blocked, band, rows, columns = create(pad(real, (0, rest)).to(x.dtype), attention.block_size)
    found: Tensor = attention(
        pad(x, (0, 0, 0, rest)),
        band_mask=band,
        from_mask=rows,
        to_mask=columns,
        from_blocked_mask=blocked,
        to_blocked_mask=blocked,
    )[0]
    return found[:, : x.shape[1]]


def split(attention: Any, x: Tensor) -> tuple[Tensor, ...]:
    return tuple(
        made(x).view(*x.shape[:2], HEADS, -1).transpose(1, 2)
        for made in (attention.query, attention.key, attention.value)
    )


def ours(attention: Any, x: Tensor, real: Tensor) -> Tensor:
    pattern, bias = hw.hf.big_bird(attention, x.shape[1])
    pattern = pattern & hw.Documents(real.long() - 1)
    query, key, value = split(attention, x)
    return hw.attend(query, key, value, pattern, bias=bias).transpose(1, 2).flatten(2)


def derived(
    run: Callable[[Any, Tensor, Tensor], Tensor], attention: Any, x: Tensor, real: Tensor
) -> list[Tensor]:
    """Return the output and the gradients of the input and the weights."""
    x = x.detach().clone().requires_grad_()
    output = run(attention, x, real)
    upstream = torch.linspace(-1, 1, output.numel(), dtype=torch.float64).view(output.shape)
    learned = [x, attention.query.weight, attention.key.weight, attention.value.weight]
    found = torch.autograd.grad(output, learned, upstream.to(output.dtype))
    return [output.detach(), *found]


@on_layers
@pytest.mark.parametrize("case", CASES.values(), ids=CASES)
def test_outputs_and_gradients_are_those_of_transformers(path: Path, case: Case) -> None:
    attention = attention_of(case)
    real = torch.ones(2, case.length, dtype=torch.bool)
    real[1, case.length - case.block - 3 :] = False
    x = torch.randn(2, case.length, WIDTH)
    plain = derived(theirs, attention, x, real)
    with path.taken():
        found = derived(ours, attention, x, real)
    exact = derived(theirs, attention.double(), x.double(), real)
    for name, mine, right, usual in zip(
        ("output", "x", "query", "key", "value"), found, exact, plain, strict=True
    ):
        assert_within_budget(mine, exact=right, plain=usual, label=name)


@pytest.mark.parametrize("training", [False, True])
def test_float64_and_padding_in_front(training: bool) -> None:
    case = CASES["training" if training else "evaluation"]
    attention = attention_of(case).double()
    real = torch.ones(2, case.length, dtype=torch.bool)
    real[0, :3] = real[1, [0, 20, 59]] = False
    x = torch.randn(2, case.length, WIDTH, dtype=torch.float64)
    found, wanted = (derived(run, attention, x, real) for run in (ours, theirs))
    torch.testing.assert_close(found, wanted)


@pytest.mark.parametrize("training", [False, True])
def test_the_same_of_pegasus(training: bool) -> None:
    case = CASES["training" if training else "evaluation"]
    attention = attention_of(case, BigBirdPegasusBlockSparseAttention).double()
    real = torch.ones(2, case.length, dtype=torch.bool)
    x = torch.randn(2, case.length, WIDTH, dtype=torch.float64)
    torch.testing.assert_close(ours(attention, x, real), theirs(attention, x, real))
