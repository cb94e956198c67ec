"""What random features refuse."""

import torch
from torch import Tensor

from headwise._checks import is_int
from headwise.errors import ShapeError
from headwise.ops.linear.directions import LARGEST_SEED
from headwise.ops.linear.positive_features import KERNELS
from headwise.positions.bases import is_number


def check_drawable(x: Tensor) -> None:
    """Refuse to draw where nothing can be kept: in a graph, or inside a transform."""
    if torch.compiler.is_compiling() or torch._C._are_functorch_transforms_active():
        raise RuntimeError(
            "RandomFeatures: head_dim must be known before a module is compiled, exported or "
            "transformed by torch.func\n"
            f"  hint: make it with RandomFeatures(count, head_dim={x.shape[-1]})"
        )


def check_settings(count: int, head_dim: int | None, scale: float | None, kernel: str) -> None:
    """Refuse settings that make no sense."""
    width = "it is the width of a head's queries and keys; None = that of the first input"
    usual = "2 to 4 times head_dim is a usual count; more lowers the error"
    for name, number, hint in (("count", count, usual), ("head_dim", head_dim, width)):
        if number is not None and (not is_int(number) or number < 1):
            raise ShapeError(
                f"RandomFeatures: {name} must be an int of at least 1, got {number!r}\n"
                f"  hint: {hint}"
            )
    if kernel not in KERNELS:
        raise ValueError(
            f"RandomFeatures: kernel must be one of {', '.join(map(repr, KERNELS))}, "
            f"got {kernel!r}\n  hint: other maps are feature_map= of LinearAttention"
        )
    if kernel == "hyperbolic" and count % 2:
        raise ShapeError(
            "RandomFeatures: count must be even for kernel='hyperbolic', whose features come in "
            f"pairs, got {count}\n  hint: pass count={count + 1}"
        )
    if scale is not None and not (is_number(scale) and scale >= 0):
        raise ValueError(
            f"RandomFeatures: scale must be a finite number of at least 0, got {scale!r}\n"
            "  hint: for a negative one, give queries the other sign"
        )


def check_seed(seed: int) -> None:
    """Refuse what is no seed."""
    if not is_int(seed) or not 0 <= seed <= LARGEST_SEED:
        raise ValueError(
            f"RandomFeatures: seed must be an int from 0 to 2**63 - 1, got {seed!r}\n"
            "  hint: any of them will do; layers should have different ones"
        )
