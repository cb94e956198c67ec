"""Which weights dropout keeps: a function of the seed and of a pair's place, and of nothing else.

The bits come from Philox4x32-10 ("Parallel Random Numbers: As Easy as 1, 2, 3", Salmon et al.,
2011), a cipher of counters, so that any part of the mask can be made anew, in any order. The key
is the seed. One counter (query, key // 4, query head, sample) gives the words of four keys.
"""

import torch
from torch import Tensor

_LOW = 0xFFFFFFFF
_MULTIPLIERS = (0xD2511F53, 0xCD9E8D57)
_WEYL = (0x9E3779B9, 0xBB67AE85)
_ROUNDS = 10
_LANES = 4


def draw_seed() -> Tensor:
    """Draw the seed of one call, (1,), from torch's default generator on the CPU."""
    return torch.randint(2**63 - 1, (1,), dtype=torch.int64, device="cpu")


def threshold(dropout_p: float) -> int:
    """Return the number below which a pair's 32 random bits drop it."""
    return min(int(dropout_p * 2**32), _LOW)


def keep(seed: Tensor, dropout_p: float, shape: tuple[int, int, int, int]) -> Tensor:
    """Say which pairs keep their weight.

    Args:
        seed: From ``draw_seed``; the mask is made where it lies.
        dropout_p: Share of pairs dropped, 0 to 1.
        shape: (batch, q_heads, q_len, kv_len).

    Returns:
        A boolean tensor of that shape, ``True`` = kept. All are dropped where ``dropout_p`` is 1.
    """
    batch, heads, q_len, kv_len = shape
    sample, head, query, block = (
        torch.arange(count, device=seed.device).view(place)
        for count, place in (
            (batch, (-1, 1, 1, 1)),
            (heads, (-1, 1, 1)),
            (q_len, (-1, 1)),
            (-(-kv_len // _LANES), (-1,)),
        )
    )
    words = philox((query, block, head, sample), (seed & _LOW, seed >> 32))
    lanes = torch.stack(words, -1).flatten(-2)
    kept = lanes[..., :kv_len] >= threshold(dropout_p)
    return kept if dropout_p < 1.0 else torch.zeros_like(kept)


def philox(
    counter: tuple[Tensor, Tensor, Tensor, Tensor], key: tuple[Tensor, Tensor]
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Return four words of 32 random bits for each counter; words are int64 from 0 to 2**32 - 1."""
    (a, b, c, d), (first, second) = counter, key
    for _ in range(_ROUNDS):
        a_high, a_low = _product(a, _MULTIPLIERS[0])
        c_high, c_low = _product(c, _MULTIPLIERS[1])
        a, b, c, d = c_high ^ b ^ first, c_low, a_high ^ d ^ second, a_low
        first, second = (first + _WEYL[0]) & _LOW, (second + _WEYL[1]) & _LOW
    return a, b, c, d


def _product(word: Tensor, multiplier: int) -> tuple[Tensor, Tensor]:
    """Return the high and the low word of a product of 64 bits, which int64 cannot hold."""
    upper, lower = (word >> 16) * multiplier, (word & 0xFFFF) * multiplier
    high = (upper + (lower >> 16)) >> 16
    low = (((upper & 0xFFFF) << 16) + lower) & _LOW
    return high, low
