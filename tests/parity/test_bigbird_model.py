"""Whole BigBird models whose layers attend through ours."""

from typing import Any

import pytest
import torch
import transformers
from torch import Tensor, nn

import headwise as hw
from tests.support.budget import assert_within_budget


def tiny(training: bool) -> Any:
    config = transformers.BigBirdConfig(
        vocab_size=61,
        hidden_size=24,
        num_attention_heads=3,
        num_hidden_layers=2,
        intermediate_size=40,
        block_size=4,
        num_random_blocks=2,
        max_position_embeddings=128,
        hidden_dropout_prob=0.0,
        attention_probs_dropout_prob=0.0,
    )
    with torch.random.fork_rng():
        torch.manual_seed(7)
        model: Any = transformers.BigBirdModel(config)
        for weight in model.parameters():
            nn.init.normal_(weight, std=0.3)
    return model.train(training)


class _Served(nn.Module):
    """Our attention in the place of a ``BigBirdBlockSparseAttention``."""

    def __init__(self, theirs: Any) -> None:
        super().__init__()
        self.theirs = theirs

    def forward(
        self, hidden_states: Tensor, band: Tensor, rows: Tensor, columns: Tensor, *_: Tensor
    ) -> tuple[Tensor, None]:
        pattern, bias = hw.hf.big_bird(self.theirs, hidden_states.shape[1])
        real = columns[:, 0, 0] > 0
        query, key, value = (
            made(hidden_states).view(*real.shape, 3, -1).transpose(1, 2)
            for made in (self.theirs.query, self.theirs.key, self.theirs.value)
        )
        pattern = pattern & hw.Documents(real.long() - 1)
        found = hw.attend(query, key, value, pattern, bias=bias)
        return found.transpose(1, 2).flatten(2), None


def derived(model: Any, given: dict[str, Tensor]) -> tuple[Tensor, Tensor]:
    """Return the hidden states of real tokens, and what the embeddings learn from them."""
    output = model(**given).last_hidden_state[given["attention_mask"].bool()]
    upstream = torch.linspace(-1, 1, output.numel(), dtype=torch.float64).view(output.shape)
    weight = model.embeddings.word_embeddings.weight
    (learned,) = torch.autograd.grad(output, weight, upstream.to(output.dtype))
    return output.detach(), learned


@pytest.mark.parametrize("training", [False, True])
@pytest.mark.parametrize("length", [40, 53])
def test_hidden_states_and_gradients(training: bool, length: int) -> None:
    mask = torch.ones(2, length, dtype=torch.long)
    mask[1, length - 6 :] = 0
    ids = torch.randint(1, 61, (2, length)).masked_fill(mask == 0, 0)
    given = {"input_ids": ids, "attention_mask": mask}
    served = tiny(training)
    for layer in served.encoder.layer:
        layer.attention.self = _Served(layer.attention.self)
    found, plain = derived(served, given), derived(tiny(training), given)
    exact = derived(tiny(training).double(), given)
    for name, mine, right, usual in zip(("output", "embeddings"), found, exact, plain, strict=True):
        assert_within_budget(mine, exact=right, plain=usual, label=name)
