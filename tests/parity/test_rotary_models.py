"""Queries turned as in Llama, Cohere, GPT-NeoX and GPT-J: values, gradients, every dtype."""

from typing import Any

import pytest
import torch
from hypothesis import assume, given
from hypothesis import strategies as st
from torch import Tensor
from transformers import CohereConfig, GPTNeoXConfig, LlamaConfig
from transformers.models.cohere import modeling_cohere
from transformers.models.gpt_neox import modeling_gpt_neox
from transformers.models.gptj import modeling_gptj
from transformers.models.llama import modeling_llama

from headwise.positions import Rotary
from tests.support.budget import assert_within_budget
from tests.support.rotary import scalings, turned

LLAMA: Any = modeling_llama
COHERE: Any = modeling_cohere
NEOX: Any = modeling_gpt_neox
GPTJ: Any = modeling_gptj

DTYPES = st.sampled_from([torch.float64, torch.float32, torch.bfloat16])
OFFSETS = st.integers(-20, 3000)


def drawn_query(rotary: Rotary, length: int, dtype: torch.dtype, seed: int) -> Tensor:
    source = torch.Generator().manual_seed(seed)
    shape = (2, 3, length, rotary.head_dim)
    query = torch.randn(shape, generator=source, dtype=torch.float64).to(dtype)
    return query.requires_grad_()


def like_llama(query: Tensor, places: Tensor, rotary: Rotary, scaling: dict[str, Any]) -> Tensor:
    """Turn by Llama's code, or Cohere's for pairs of neighbours; both turn whole heads."""
    whole = {"rope_theta": rotary.base, **scaling}
    longest = whole.get("original_max_position_embeddings", 64)
    if whole["rope_type"] == "dynamic":
        whole.pop("original_max_position_embeddings")
    sizes = {"hidden_size": 2 * rotary.head_dim, "num_attention_heads": 2}
    settings: dict[str, Any] = {
        **sizes,
        "max_position_embeddings": longest,
        "rope_parameters": whole,
    }
    if rotary.interleaved:
        embedding = COHERE.CohereRotaryEmbedding(CohereConfig(**settings))
        turn = COHERE.apply_rotary_pos_emb
    else:
        embedding = LLAMA.LlamaRotaryEmbedding(LlamaConfig(**settings))
        turn = LLAMA.apply_rotary_pos_emb
    cos, sin = embedding(query, places)
    found: Tensor = turn(query, query, cos, sin)[0]
    return found


def assert_alike(query: Tensor, exact: Tensor, plain: Tensor, found: Tensor) -> None:
    """Compare values, and the gradients of a sum with weights of no symmetry."""
    assert found.dtype == query.dtype
    assert_within_budget(found, exact=exact, plain=plain, label="turned")
    weights = torch.linspace(-1, 1, query.numel(), dtype=torch.float64).view(query.shape)
    right, usual, mine = (
        torch.autograd.grad((side.double() * weights).sum(), query)[0]
        for side in (exact, plain, found)
    )
    assert_within_budget(mine, exact=right, plain=usual, label="gradient")


@given(
    drawn=scalings(),
    length=st.integers(1, 9),
    offsets=st.tuples(OFFSETS, OFFSETS),
    dtype=DTYPES,
    seed=st.integers(0, 99),
)
def test_llama_and_cohere(
    drawn: tuple[Rotary, dict[str, Any]],
    length: int,
    offsets: tuple[int, int],
    dtype: torch.dtype,
    seed: int,
) -> None:
    rotary, scaling = drawn
    assume(rotary.rotary_dim == rotary.head_dim)
    if rotary.depends_on_length:
        offsets = (abs(offsets[0]),) * 2  # transformers has one length for the whole batch
    query = drawn_query(rotary, length, dtype, seed)
    places = torch.tensor(offsets)[:, None] + torch.arange(length)
    at_length = rotary.at_length(offsets[0] + length) if rotary.depends_on_length else rotary
    exact = turned(query, places, at_length)
    plain = like_llama(query, places, rotary, scaling)
    assert_alike(query, exact, plain, rotary(query, torch.tensor(offsets)))


@given(
    eighths=st.integers(1, 8),
    length=st.integers(1, 9),
    offset=OFFSETS,
    dtype=DTYPES,
    seed=st.integers(0, 99),
)
def test_gpt_neox_turns_a_part(
    eighths: int, length: int, offset: int, dtype: torch.dtype, seed: int
) -> None:
    rotary = Rotary(16, rotary_dim=2 * eighths)
    query = drawn_query(rotary, length, dtype, seed)
    places = (offset + torch.arange(length)).expand(2, -1)
    config: Any = GPTNeoXConfig(
        hidden_size=32,
        num_attention_heads=2,
        rope_parameters={
            "rope_type": "default",
            "rope_theta": 10000.0,
            "partial_rotary_factor": eighths / 8,
        },
    )
    cos, sin = NEOX.GPTNeoXRotaryEmbedding(config)(query, places)
    plain = NEOX.apply_rotary_pos_emb(query, query, cos, sin)[0]
    assert_alike(query, turned(query, places, rotary), plain, rotary(query, offset))


@given(
    pairs=st.integers(1, 8),
    length=st.integers(1, 9),
    offset=st.integers(0, 900),
    dtype=DTYPES,
    seed=st.integers(0, 99),
)
def test_gpt_j_turns_neighbours_in_a_part(
    pairs: int, length: int, offset: int, dtype: torch.dtype, seed: int
) -> None:
    """GPT-J keeps a table of positions, with the heads behind the length."""
    rotary = Rotary(16, interleaved=True, rotary_dim=2 * pairs)
    query = drawn_query(rotary, length, dtype, seed)
    places = (offset + torch.arange(length)).expand(2, -1)
    table = GPTJ.create_sinusoidal_positions(1024, 2 * pairs)
    sin, cos = table[places].to(dtype).split(pairs, -1)
    behind = query.transpose(1, 2)
    part = GPTJ.apply_rotary_pos_emb(behind[..., : 2 * pairs], sin, cos)
    plain = torch.cat((part, behind[..., 2 * pairs :]), -1).transpose(1, 2)
    assert_alike(query, turned(query, places, rotary), plain, rotary(query, offset))


@pytest.mark.parametrize("interleaved", [False, True])
def test_long_inputs_take_other_steps_to_the_same_numbers(interleaved: bool) -> None:
    """Many rows are turned in place, few ones with a temporary tensor."""
    for head_dim, width in ((64, 64), (64, 24)):
        rotary = Rotary(head_dim, interleaved=interleaved, rotary_dim=width)
        for dtype in (torch.float64, torch.float32, torch.bfloat16):
            query = drawn_query(rotary, 120, dtype, 0)
            offsets = torch.tensor([-7, 5])
            places = offsets[:, None] + torch.arange(120)
            exact = turned(query, places, rotary)
            # The same rows, a few at a time.
            plain = torch.cat(
                [rotary(query[:, :, at : at + 40], offsets + at) for at in (0, 40, 80)], 2
            )
            assert_alike(query, exact, plain, rotary(query, offsets))
