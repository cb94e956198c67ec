"""``RelativeBias``: T5's buckets, the table of distances, and what it refuses."""

from typing import Any

import pytest
import torch
from torch import nn
from transformers.models.t5.configuration_t5 import T5Config
from transformers.models.t5.modeling_t5 import T5Attention

from headwise import ShapeError
from headwise.positions import RelativeBias

FAR = torch.arange(-3000, 3001)
SHAPES = [(32, 128), (32, 64), (33, 128), (64, 1000), (4, 2), (5, 2), (8, 3), (16, 5), (320, 800)]


@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_the_buckets_are_those_of_t5(shape: tuple[int, int]) -> None:
    for both in (True, False):
        if not both and shape[1] <= shape[0] // 2:
            continue
        bias = RelativeBias(2, *shape, bidirectional=both)
        theirs: Any = T5Attention
        wanted = theirs._relative_position_bucket(-FAR, both, *shape)
        assert torch.equal(bias.buckets(FAR), wanted)


def test_buckets_seen_by_eye() -> None:
    """Eight a side: 0 to 3 alone, then from 4 up to 64 each bucket is twice as long."""
    bias = RelativeBias(1, 16, 64)
    assert bias.buckets(torch.arange(0, 8)).tolist() == [0, 1, 2, 3, 4, 4, 4, 4]
    assert bias.buckets(torch.tensor([8, 15, 16, 31, 32, 64, 10**9])).tolist() == [
        5,
        5,
        6,
        6,
        7,
        7,
        7,
    ]
    assert bias.buckets(torch.tensor([-1, -3, -8, -64])).tolist() == [9, 11, 13, 15]
    one_sided = RelativeBias(1, 16, 20, bidirectional=False)
    assert one_sided.buckets(torch.tensor([-5, 0, 1, 7])).tolist() == [0, 0, 1, 7]


@pytest.mark.parametrize("both", [True, False])
@pytest.mark.parametrize("past", [0, 9])
def test_the_table_spells_out_what_t5_adds(both: bool, past: int) -> None:
    config: Any = T5Config(num_heads=3, d_model=6, d_kv=2, is_decoder=not both)
    theirs: Any = T5Attention(config, has_relative_attention_bias=True, layer_idx=0)
    nn.init.normal_(theirs.relative_attention_bias.weight)
    bias = RelativeBias(3, bidirectional=both)
    bias.load_state_dict(theirs.relative_attention_bias.state_dict())
    wanted = theirs.compute_bias(5, 211, past_seen_tokens=past)[0]
    table = bias.table(past - 210, past + 4)
    gaps = past + torch.arange(5)[:, None] - torch.arange(211)
    assert torch.equal(table[:, gaps - (past - 210)], wanted)


def test_the_table_follows_the_weight() -> None:
    bias = RelativeBias(2, 8, 20, dtype=torch.float64)
    table = bias.table(-7, 5)
    assert table.shape == (2, 13)
    assert table.dtype == torch.float64
    assert torch.autograd.grad(table.sum(), bias.weight)[0].sum() == 26
    assert bias.table(4, 4).shape == (2, 1)


def test_it_can_be_made_on_meta_and_filled() -> None:
    with torch.device("meta"):
        bias = RelativeBias(2)
    assert bias.table(-3, 3).is_meta
    bias.to_empty(device="cpu").load_state_dict({"weight": torch.arange(64.0).view(32, 2)})
    assert bias.table(0, 2).tolist() == [[0.0, 2.0, 4.0], [1.0, 3.0, 5.0]]


def test_it_says_what_it_is() -> None:
    shown = "RelativeBias(2, num_buckets=16, max_distance=50, bidirectional=False)"
    assert repr(RelativeBias(2, 16, 50, bidirectional=False)) == shown


REFUSED = [
    ((0,), "num_heads must be an int of at least 1, got 0", "give the number of query heads"),
    ((2, 3), "num_buckets must be an int of at least 4, got 3", "T5 has 32; each side needs at "),
    ((2, 1, 9, False), "num_buckets must be an int of at least 2, got 1", "T5 has 32; each side "),
    ((2, 32, 8), "max_distance must be an int of at least 9, got 8", "T5 has 128; nearer ones "),
    ((2, 32, 16, False), "max_distance must be an int of at least 17, got 16", "T5 has 128; near"),
    ((2, 32, 99.5), "max_distance must be an int of at least 9, got 99.5", "T5 has 128; nearer "),
]


@pytest.mark.parametrize(("given", "problem", "hint"), REFUSED)
def test_what_makes_no_sense_is_refused(given: Any, problem: str, hint: str) -> None:
    with pytest.raises(ShapeError) as refusal:
        RelativeBias(*given)
    assert str(refusal.value).startswith(f"RelativeBias: {problem}\n  hint: {hint}")
