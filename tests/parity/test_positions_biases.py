"""ALiBi and T5's bias on drawn settings, as transformers' models add them to the scores."""

from typing import Any

import torch
from hypothesis import assume, given
from hypothesis import strategies as st
from torch import nn
from transformers.models.bloom import modeling_bloom
from transformers.models.mpt import modeling_mpt
from transformers.models.t5.configuration_t5 import T5Config
from transformers.models.t5.modeling_t5 import T5Attention

import headwise as hw
from headwise.positions import Alibi, RelativeBias
from tests.support.budget import assert_same_bits, assert_within_budget

BLOOM: Any = modeling_bloom
MPT: Any = modeling_mpt


@given(
    heads=st.integers(1, 20),
    length=st.integers(1, 40),
    padding=st.integers(0, 5),
    seed=st.integers(0, 99),
)
def test_weights_as_in_bloom(heads: int, length: int, padding: int, seed: int) -> None:
    """Causal, with padding on the left: Bloom's bias counts the real tokens before a key."""
    assume(padding < length)
    source = torch.Generator().manual_seed(seed)
    query, key = torch.randn(2, 1, heads, length, 8, generator=source, dtype=torch.float64)
    real = torch.arange(length)[None] >= padding
    causal = torch.ones(length, length, dtype=torch.bool).tril()

    def theirs(dtype: torch.dtype) -> torch.Tensor:
        bias = BLOOM.build_alibi_tensor(real, heads, dtype).view(1, heads, 1, length)
        scores = query.to(dtype) @ key.to(dtype).mT / 8**0.5 + bias
        closed = ~(causal & real)
        weights: torch.Tensor = scores.masked_fill(closed, float("-inf")).softmax(-1)
        return weights.nan_to_num(0.0)

    pattern = hw.Causal() & hw.KeyMask(real)
    found = hw.attention_weights(query.float(), key.float(), pattern, bias=Alibi(heads))
    assert_within_budget(
        found, exact=theirs(torch.float64), plain=theirs(torch.float32), label="Bloom"
    )


@given(power=st.integers(0, 5), length=st.integers(1, 40), seed=st.integers(0, 99))
def test_weights_as_in_mpt(power: int, length: int, seed: int) -> None:
    heads = 2**power
    source = torch.Generator().manual_seed(seed)
    query, key = torch.randn(2, 1, heads, length, 8, generator=source, dtype=torch.float64)
    causal = torch.ones(length, length, dtype=torch.bool).tril()
    bias = MPT.build_mpt_alibi_tensor(heads, length)

    def theirs(dtype: torch.dtype) -> torch.Tensor:
        scores = query.to(dtype) @ key.to(dtype).mT / 8**0.5 + bias.to(dtype)
        weights: torch.Tensor = scores.masked_fill(~causal, float("-inf")).softmax(-1)
        return weights

    found = hw.attention_weights(query.float(), key.float(), hw.Causal(), bias=Alibi(heads))
    assert_within_budget(
        found, exact=theirs(torch.float64), plain=theirs(torch.float32), label="MPT"
    )


@given(
    heads=st.integers(1, 6),
    buckets=st.integers(4, 64),
    farthest=st.integers(3, 300),
    both=st.booleans(),
    lengths=st.tuples(st.integers(1, 9), st.integers(1, 400)),
    past=st.integers(0, 300),
)
def test_what_t5_adds(
    heads: int, buckets: int, farthest: int, both: bool, lengths: tuple[int, int], past: int
) -> None:
    """Encoders and decoders, with tokens in a cache; values, and the gradient of the weight."""
    buckets -= buckets % 2 if both else 0
    assume(farthest > (buckets // 2 if both else buckets) // 2)
    config: Any = T5Config(
        num_heads=heads,
        d_model=heads,
        d_kv=1,
        is_decoder=not both,
        relative_attention_num_buckets=buckets,
        relative_attention_max_distance=farthest,
    )
    theirs: Any = T5Attention(config, has_relative_attention_bias=True, layer_idx=0)
    nn.init.normal_(theirs.relative_attention_bias.weight)
    bias = RelativeBias(heads, buckets, farthest, bidirectional=both)
    bias.load_state_dict(theirs.relative_attention_bias.state_dict())
    q_len, kv_len = lengths
    wanted = theirs.compute_bias(q_len, kv_len, past_seen_tokens=past)[0]
    lowest, highest = past - kv_len + 1, past + q_len - 1
    gaps = past + torch.arange(q_len)[:, None] - torch.arange(kv_len)
    found = bias.table(lowest, highest)[:, gaps - lowest]
    assert_same_bits(found, wanted)
    # Whole numbers, whose sums are exact in any order.
    weights = (torch.arange(wanted.numel()) % 17 - 8.0).view(wanted.shape)
    (mine,) = torch.autograd.grad((found * weights).sum(), bias.weight)
    (right,) = torch.autograd.grad((wanted * weights).sum(), theirs.relative_attention_bias.weight)
    assert torch.equal(mine, right)
