"""Philox4x32-10 in 64-bit integers of NumPy, and the weights that dropout keeps by it.

Written from "Parallel Random Numbers: As Easy as 1, 2, 3" (Salmon et al., 2011), apart from the
library's own, so that one can judge the other.
"""

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

Words = npt.NDArray[np.uint64]

LOW = np.uint64(0xFFFFFFFF)
HALF = np.uint64(32)
MULTIPLIERS = (np.uint64(0xD2511F53), np.uint64(0xCD9E8D57))
STEPS = (0x9E3779B9, 0xBB67AE85)


def philox(counter: list[Words], key: tuple[int, int]) -> list[Words]:
    """Return four words of 32 random bits for every counter."""
    a, b, c, d = counter
    for turn in range(10):
        first, second = (
            np.uint64((word + turn * step) % 2**32) for word, step in zip(key, STEPS, strict=True)
        )
        long_a, long_c = a * MULTIPLIERS[0], c * MULTIPLIERS[1]
        a, b = (long_c >> HALF) ^ b ^ first, long_c & LOW
        c, d = (long_a >> HALF) ^ d ^ second, long_a & LOW
    return [a, b, c, d]


def factors(seed: int, dropout_p: float, shape: tuple[int, int, int, int]) -> Tensor:
    """Return what dropout multiplies every weight by, (batch, heads, q_len, kv_len) in float64."""
    batch, heads, q_len, kv_len = shape
    if dropout_p >= 1:
        return torch.zeros(shape, dtype=torch.float64)
    blocks = -(-kv_len // 4)
    sample, head, query, block = np.indices((batch, heads, q_len, blocks)).astype(np.uint64)
    words = philox([query, block, head, sample], (seed % 2**32, seed >> 32))
    drawn = np.stack(words, -1).reshape(batch, heads, q_len, 4 * blocks)[..., :kv_len]
    kept = drawn >= np.uint64(min(int(dropout_p * 2**32), 2**32 - 1))
    return torch.from_numpy(kept) / (1.0 - dropout_p)
