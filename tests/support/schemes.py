"""Position schemes of every kind, for layers of given sizes."""

from collections.abc import Callable

from headwise.nn.schemes import Scheme
from headwise.positions import Alibi, Learned, RelativeBias, Rotary, Sinusoidal

# Tokens up to which frequencies that depend on the length stay as they are.
ORIGINAL = 6
LONGEST = 64


def long_factors(head_dim: int) -> dict[str, object]:
    """Return a ``longrope`` scaling whose frequencies change behind ``ORIGINAL`` tokens."""
    pairs = head_dim // 2
    return {
        "rope_type": "longrope",
        "factor": 4.0,
        "original_max_position_embeddings": ORIGINAL,
        "short_factor": [1.0 + n / 8 for n in range(pairs)],
        "long_factor": [2.0 + n / 2 for n in range(pairs)],
    }


SCHEMES: dict[str, Callable[[int, int, int], Scheme | None]] = {
    "none": lambda width, heads, dim: None,
    "rotary": lambda width, heads, dim: Rotary(dim),
    "interleaved": lambda width, heads, dim: Rotary(dim, 100.0, interleaved=True),
    "partial": lambda width, heads, dim: Rotary(dim, rotary_dim=dim // 2),
    "linear": lambda width, heads, dim: Rotary(dim, scaling={"rope_type": "linear", "factor": 3.0}),
    "yarn": lambda width, heads, dim: Rotary(
        dim,
        scaling={"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": ORIGINAL},
    ),
    "dynamic": lambda width, heads, dim: Rotary(
        dim,
        scaling={
            "rope_type": "dynamic",
            "factor": 2.0,
            "original_max_position_embeddings": ORIGINAL,
        },
    ),
    "longrope": lambda width, heads, dim: Rotary(dim, scaling=long_factors(dim)),
    "llama3": lambda width, heads, dim: Rotary(
        dim,
        scaling={
            "rope_type": "llama3",
            "factor": 8.0,
            "original_max_position_embeddings": 4 * ORIGINAL,
            "low_freq_factor": 1.0,
            "high_freq_factor": 4.0,
        },
    ),
    "proportional": lambda width, heads, dim: Rotary(
        dim,
        scaling={"rope_type": "proportional", "factor": 2.0, "partial_rotary_factor": 0.5},
    ),
    "alibi": lambda width, heads, dim: Alibi(heads),
    "relative": lambda width, heads, dim: RelativeBias(heads, 8, 16),
    "relative, one side": lambda width, heads, dim: RelativeBias(heads, 8, 16, False),
    "sinusoidal": lambda width, heads, dim: Sinusoidal(width),
    "sinusoidal, halves": lambda width, heads, dim: Sinusoidal(width, interleaved=False),
    "learned": lambda width, heads, dim: Learned(LONGEST, width),
}
BY_LENGTH = ("dynamic", "longrope")
