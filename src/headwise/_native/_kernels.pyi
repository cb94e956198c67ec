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

def attend(query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, output: torch.Tensor, lse: torch.Tensor | None, bias: torch.Tensor | None, tiles: LiveTiles | None, scale: float, threads: int) -> None:
    """Attend, writing to output and lse."""
