"""Drawn rotary settings, and what a turn is, spelled out with complex numbers."""

from typing import Any

import torch
from hypothesis import strategies as st
from torch import Tensor

from headwise.positions import Rotary

ORIGINAL = "original_max_position_embeddings"
KINDS = ("default", "linear", "dynamic", "yarn", "longrope", "llama3", "proportional")


def turned(x: Tensor, places: Tensor, rotary: Rotary, frequencies: Tensor | None = None) -> Tensor:
    """Turn ``x``, (batch, heads, length, head_dim), in float64; ``places`` is (batch, length)."""
    steps = rotary.inv_freq if frequencies is None else frequencies
    angles = places.double()[:, None, :, None] * steps.double()
    turns = torch.polar(torch.full_like(angles, rotary.attention_factor), angles)
    width, wide = rotary.rotary_dim, x.double()
    if rotary.interleaved:
        first, second = wide[..., 0:width:2], wide[..., 1:width:2]
    else:
        first, second = wide[..., : width // 2], wide[..., width // 2 : width]
    points = torch.complex(first, second) * turns
    both = torch.stack((points.real, points.imag), -1 if rotary.interleaved else -2).flatten(-2)
    return torch.cat((both, wide[..., width:]), -1)


@st.composite
def settings_of(draw: st.DrawFn, kind: str, pairs: int) -> dict[str, Any]:
    """Draw the mapping of one kind of scaling."""
    factor, longest = draw(st.floats(1, 40)), draw(st.integers(2, 4096))
    given: dict[str, Any] = {"rope_type": kind}
    if kind == "linear":
        given |= {"factor": factor}
    if kind in ("dynamic", "yarn", "llama3"):
        given |= {"factor": factor, ORIGINAL: longest}
    if kind == "yarn":
        given |= draw(_yarn())
    if kind == "llama3":
        low = draw(st.floats(0.5, 4))
        given |= {"low_freq_factor": low, "high_freq_factor": low + draw(st.floats(0.5, 4))}
    if kind == "longrope":
        each = st.lists(st.floats(1, 60), min_size=pairs, max_size=pairs)
        given |= {"short_factor": draw(each), "long_factor": draw(each), ORIGINAL: longest}
        given |= {"factor": factor} if draw(st.booleans()) else {"attention_factor": factor}
    if kind == "proportional":
        given |= {"partial_rotary_factor": draw(st.floats(0.1, 1.0))}
        given |= draw(st.sampled_from([{}, {"factor": factor}]))
    return given


@st.composite
def _yarn(draw: st.DrawFn) -> dict[str, Any]:
    optional = {
        "attention_factor": st.floats(0.1, 3),
        "beta_fast": st.floats(16, 64),
        "beta_slow": st.floats(0.5, 8),
        "mscale": st.floats(0, 2),
        "mscale_all_dim": st.floats(0, 2),
        "truncate": st.booleans(),
    }
    chosen = draw(st.sets(st.sampled_from(sorted(optional))))
    return {key: draw(optional[key]) for key in sorted(chosen)}


@st.composite
def scalings(draw: st.DrawFn, kinds: tuple[str, ...] = KINDS) -> tuple[Rotary, dict[str, Any]]:
    """Draw a rotary embedding, and the scaling that it was made with."""
    kind = draw(st.sampled_from(kinds))
    head_dim = 2 * draw(st.integers(2, 24))
    width = head_dim
    if kind != "proportional" and draw(st.booleans()):
        width = 2 * draw(st.integers(2, head_dim // 2))
    base = draw(st.sampled_from([10000.0, 500000.0, 1e6]) | st.floats(2, 1e5))
    given = draw(settings_of(kind, width // 2))
    made = Rotary(head_dim, base, given, draw(st.booleans()), rotary_dim=width)
    return made, given
