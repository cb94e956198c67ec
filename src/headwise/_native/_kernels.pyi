"""
Attention kernels. Checks memory, not meaning: call headwise.attend instead.
"""

from typing import Annotated

import torch


QUERY_TILE: int = 48

KEY_TILE: int = 128

def isa() -> str:
    """Name the instruction set in use."""

def available() -> list[str]:
    """
    Name the instruction sets that this processor can run, the plainest first.
    """

def use_isa(name: str) -> None:
    """Put another instruction set in use."""

class LiveTiles:
    """Live tiles as the kernels read them."""

    def __init__(self, which: Annotated[torch.Tensor, dict(dtype='int32', shape=(None, None), order='C', device='cpu', writable=False)], starts: Annotated[torch.Tensor, dict(dtype='int32', shape=(None, None), order='C', device='cpu', writable=False)], entries: Annotated[torch.Tensor, dict(dtype='int32', shape=(None, None), order='C', device='cpu', writable=False)], bitmaps: Annotated[torch.Tensor, dict(dtype='int64', shape=(None, None), order='C', device='cpu', writable=False)]) -> None: ...

def attend(query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, output: torch.Tensor, lse: torch.Tensor | None, bias: torch.Tensor | None, slopes: torch.Tensor | None, table: torch.Tensor | None, shifts: torch.Tensor | None, sinks: torch.Tensor | None, softcap: float, dropout_p: float, seed: int, tiles: LiveTiles | None, scale: float, threads: int) -> None:
    """Attend, writing to output and lse."""

def attend_stored(query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, output: torch.Tensor, lse: torch.Tensor | None, key_scale: torch.Tensor | None, value_scale: torch.Tensor | None, pages: torch.Tensor | None, kv_len: int, bias: torch.Tensor | None, slopes: torch.Tensor | None, table: torch.Tensor | None, shifts: torch.Tensor | None, sinks: torch.Tensor | None, softcap: float, dropout_p: float, seed: int, tiles: LiveTiles | None, scale: float, threads: int) -> None:
    """Attend with up to 16 queries to keys and values as a cache holds them."""

def attend_backward(d_output: torch.Tensor, d_lse: torch.Tensor | None, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, output: torch.Tensor, lse: torch.Tensor | None, d_query: torch.Tensor, d_key: torch.Tensor, d_value: torch.Tensor, d_sinks: torch.Tensor | None, bias: torch.Tensor | None, slopes: torch.Tensor | None, table: torch.Tensor | None, shifts: torch.Tensor | None, sinks: torch.Tensor | None, softcap: float, dropout_p: float, seed: int, tiles: LiveTiles | None, scale: float, threads: int) -> None:
    """Write the gradients of query, key, value and sinks."""

def bias_backward(d_output: torch.Tensor, d_lse: torch.Tensor | None, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, output: torch.Tensor, lse: torch.Tensor | None, d_bias: torch.Tensor | None, d_table: torch.Tensor | None, bias: torch.Tensor | None, slopes: torch.Tensor | None, table: torch.Tensor | None, shifts: torch.Tensor | None, sinks: torch.Tensor | None, softcap: float, dropout_p: float, seed: int, tiles: LiveTiles | None, scale: float, threads: int) -> None:
    """Write the gradient of a bias."""

def linear_rows(input: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None, output: torch.Tensor, threads: int) -> None:
    """Write input @ weight^T + bias to output, for few rows of input."""

def linear_sums(query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, gain: torch.Tensor | None, offset: torch.Tensor | None, log_decay: torch.Tensor | None, sums: torch.Tensor | None, normaliser: torch.Tensor | None, log_scale: torch.Tensor | None, output: torch.Tensor, total: torch.Tensor | None, sums_after: torch.Tensor, normaliser_after: torch.Tensor, log_scale_after: torch.Tensor, causal: bool, backwards: bool, threads: int) -> None:
    """
    Write linear attention's sums over keys, and the state after the last one.
    """

def random_features(input: torch.Tensor, directions: torch.Tensor, output: torch.Tensor, gain: torch.Tensor, factor: float, log_norm: float, least: float, threads: int) -> None:
    """
    Write positive random features, and the log of the factor taken out of each row.
    """

def own_threads(count: int) -> int:
    """
    Set on how many threads this thread's loops run, torch's included; return how many before.
    """

def multiply_add(dtype: str, rounds: int, threads: int) -> float:
    """
    Multiply and add in registers on every thread; return the number of operations.
    """
