"""What linear attention takes, in each of its forms."""

from typing import NamedTuple

from headwise.nn.mechanism import Cost
from headwise.ops.linear.chunked import CHUNK

# Bytes of a number in a state.
_WIDE = 4
# Tokens of a chunk of the compiled kernel (csrc/kernels/linear_chunk.h).
_NATIVE_CHUNK = 64


class Sizes(NamedTuple):
    """The sizes of one sample's call; ``itemsize`` is that of queries, keys and values."""

    q_len: int
    kv_len: int
    q_heads: int
    kv_heads: int
    head_dim: int
    value_dim: int
    features: int
    map_flops: int
    itemsize: int


def costs_of(sizes: Sizes) -> dict[str, Cost]:
    """Return the cost of every form by its name, that of the feature map included.

    ``"whole"`` is every form without causality. Of the map only matrix products are counted,
    ``map_flops`` for a token and head.
    """
    q_rows, kv_rows = sizes.q_heads * sizes.q_len, sizes.kv_heads * sizes.kv_len
    width, columns = sizes.features, sizes.value_dim + 1
    state = sizes.kv_heads * width * columns * _WIDE
    tensors = (q_rows + kv_rows) * (sizes.head_dim + width + sizes.value_dim) * sizes.itemsize
    maps = (q_rows + kv_rows) * sizes.map_flops
    passes = maps + 2 * (q_rows + kv_rows) * width * columns
    near = 2 * q_rows * min(_NATIVE_CHUNK, sizes.kv_len) * (width + columns)
    chunks = (max(sizes.q_len, sizes.kv_len) + CHUNK - 1) // CHUNK
    pairs = 2 * q_rows * min(CHUNK, sizes.kv_len) * (width + columns)
    spelled = 2 * q_rows * sizes.kv_len * (width + columns)
    weights = 2 * q_rows * sizes.kv_len * _WIDE
    linear = "O((q_len + kv_len) · features · value_dim)"
    return {
        "whole": Cost(passes, tensors + 2 * state, linear),
        "native": Cost(passes + near, tensors + 2 * state, linear),
        "chunked": Cost(passes + pairs, tensors + 2 * chunks * state, linear),
        "recurrent": Cost(passes, tensors + 2 * sizes.kv_len * state, linear),
        "reference": Cost(maps + spelled, tensors + weights, "O(q_len · kv_len)"),
    }
