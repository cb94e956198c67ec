"""The frequencies of every kind of scaling are those of transformers, on drawn settings."""

from math import log
from typing import Any

import torch
from hypothesis import assume, given
from hypothesis import strategies as st
from transformers import LlamaConfig
from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS
from transformers.models.llama.modeling_llama import LlamaRotaryEmbedding

from headwise.positions import Rotary
from tests.support.budget import assert_same_bits, assert_within_budget
from tests.support.rotary import scalings

MODULE: Any = LlamaRotaryEmbedding


def theirs(rotary: Rotary, scaling: dict[str, Any], longest: int, length: int | None) -> Any:
    """Return the frequencies and the factor that transformers finds."""
    share = rotary.rotary_dim / rotary.head_dim
    whole = {"rope_theta": rotary.base, "partial_rotary_factor": share, **scaling}
    assume(int(rotary.head_dim * share) == rotary.rotary_dim)
    if scaling["rope_type"] == "dynamic":
        whole.pop("original_max_position_embeddings")
    config: Any = LlamaConfig(
        hidden_size=2 * rotary.head_dim,
        num_attention_heads=2,
        head_dim=rotary.head_dim,
        max_position_embeddings=longest,
        rope_parameters=whole,
    )
    if scaling["rope_type"] == "default":
        return MODULE.compute_default_rope_parameters(config)
    return ROPE_INIT_FUNCTIONS[scaling["rope_type"]](config, None, seq_len=length)


@given(drawn=scalings(), length=st.none() | st.integers(1, 5000))
def test_every_kind(drawn: tuple[Rotary, dict[str, Any]], length: int | None) -> None:
    rotary, scaling = drawn
    if scaling["rope_type"] == "default":
        assume(rotary.rotary_dim == rotary.head_dim)
    longest = scaling.get("original_max_position_embeddings", 64)
    wanted, factor = theirs(rotary, scaling, longest, length)
    found = rotary.at_length(length or 0).inv_freq
    assert rotary.attention_factor == factor
    if scaling["rope_type"] != "dynamic" or (length or 0) <= longest:
        assert_same_bits(found, wanted)
        return
    width = rotary.rotary_dim
    longer = scaling["factor"] * (length or 0) / longest - (scaling["factor"] - 1)
    stretched = log(rotary.base) + log(longer) * width / (width - 2)
    exact = (-stretched * torch.arange(0, width, 2, dtype=torch.float64) / width).exp()
    assert_within_budget(found / exact, exact=exact / exact, plain=wanted / exact, label="dynamic")


@given(drawn=scalings())
def test_a_whole_set_of_rope_parameters_is_taken(drawn: tuple[Rotary, dict[str, Any]]) -> None:
    """What stands in a configuration of transformers, with the keys that repeat the layer."""
    rotary, scaling = drawn
    share = rotary.rotary_dim / rotary.head_dim
    assume(int(rotary.head_dim * share) == rotary.rotary_dim)
    whole = {"rope_theta": rotary.base, "partial_rotary_factor": share, **scaling}
    whole["type"], whole["beta_slow"] = whole["rope_type"], whole.get("beta_slow")
    again = Rotary(
        rotary.head_dim, rotary.base, whole, rotary.interleaved, rotary_dim=rotary.rotary_dim
    )
    if scaling["rope_type"] != "proportional":
        assert again.scaling == rotary.scaling
    assert again.at_length(9999).inv_freq.tolist() == rotary.at_length(9999).inv_freq.tolist()
    assert eval(repr(rotary)).inv_freq.tolist() == rotary.inv_freq.tolist()
