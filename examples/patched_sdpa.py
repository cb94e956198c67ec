"""A model that calls torch's attention, untouched, on our kernels.

The model below is written for torch alone. It runs once as it is and once with the patch on; the
table has the time of both and how far the results lie apart. Then it is asked of three calls who
computes them, and why.

Takes a few seconds.

    python examples/patched_sdpa.py
    python examples/patched_sdpa.py --length 2048 --dtype bfloat16
"""

# ruff: noqa: T201

import argparse
import time
from collections.abc import Callable

import torch
from torch import Tensor, nn
from torch.nn import functional as F

import headwise as hw


class Block(nn.Module):
    """Causal self-attention as many models write it."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)

    def forward(self, x: Tensor) -> Tensor:
        """Attend over (batch, length, width)."""
        q, k, v = self.qkv(x).unflatten(-1, (3, self.heads, -1)).permute(2, 0, 3, 1, 4)
        mixed = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        added: Tensor = self.out(mixed.transpose(1, 2).flatten(2))
        return x + added


def best_of(run: Callable[[], Tensor], times: int) -> tuple[Tensor, float]:
    """Return the result and the shortest time, in milliseconds."""
    shortest = float("inf")
    for _ in range(times):
        begun = time.perf_counter()
        result = run()
        shortest = min(shortest, time.perf_counter() - begun)
    return result, shortest * 1e3


@torch.inference_mode()
def main() -> None:
    """Compare, and explain."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--length", type=int, default=1024, help="tokens")
    parser.add_argument("--times", type=int, default=5, help="runs, of which the best counts")
    parser.add_argument("--dtype", choices=["float32", "bfloat16"], default="float32")
    chosen = parser.parse_args()
    torch.manual_seed(0)
    dtype = getattr(torch, chosen.dtype)
    model = nn.Sequential(*(Block(256, 8) for _ in range(4))).to(dtype)
    x = torch.randn(1, chosen.length, 256, dtype=dtype)

    theirs, before = best_of(lambda: model(x), chosen.times)
    with hw.patch.sdpa():
        ours, after = best_of(lambda: model(x), chosen.times)
    apart = (ours - theirs).abs().max().item()
    print(f"torch   {before:9.2f} ms\npatched {after:9.2f} ms   apart by at most {apart:.1e}\n")

    q = torch.randn(1, 8, 16, 32)
    for name, said in {
        "float32, causal": hw.patch.explain(q, q, q, is_causal=True),
        "float64": hw.patch.explain(q.double(), q.double(), q.double()),
        "keys of another width": hw.patch.explain(q, q[..., :16], q),
    }.items():
        print(f"{name}: {'headwise' if said.taken else 'torch, for ' + said.refusals[0]}")


if __name__ == "__main__":
    main()
