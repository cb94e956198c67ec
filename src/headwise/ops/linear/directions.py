"""Random directions for random features, from a seed and from nothing else."""

import torch
from torch import Tensor

# Seeds are kept as 64-bit integers.
LARGEST_SEED = 2**63 - 1


def draw_directions(count: int, head_dim: int, *, seed: int, orthogonal: bool) -> Tensor:
    """Return (count, head_dim) directions, each a standard normal vector, in float32 on the CPU.

    Orthogonal ones come in blocks of ``head_dim``: the directions of a block are at right angles,
    and their lengths are those of normal vectors, drawn apart. Each direction for itself is then
    normal, too.

    Args:
        count: How many.
        head_dim: Their width.
        seed: The global generator is neither read nor moved.
        orthogonal: Whether the directions of a block are at right angles.
    """
    source = torch.Generator(device="cpu").manual_seed(seed)

    def normal(rows: int) -> Tensor:
        return torch.randn(rows, head_dim, generator=source, dtype=torch.float64, device="cpu")

    if not orthogonal:
        return normal(count).float()
    # More directions than memory holds must fail here, not after hours.
    found = torch.empty(count, head_dim, dtype=torch.float64, device="cpu")
    for rows in torch.split(found, head_dim):
        rows.copy_(_turned(normal(head_dim))[: len(rows)])
    lengths = normal(count).square().sum(-1, keepdim=True).sqrt()
    return (found * lengths).float()


def following(seed: int) -> int:
    """Return the seed that comes after one."""
    source = torch.Generator(device="cpu").manual_seed(seed)
    return int(torch.randint(LARGEST_SEED, (), generator=source, device="cpu"))


def _turned(block: Tensor) -> Tensor:
    """Return a rotation that is as likely as any other, from a square block of normal numbers."""
    found: tuple[Tensor, Tensor] = torch.linalg.qr(block)
    rotation, triangle = found
    return (rotation * triangle.diagonal().sign()).t()
