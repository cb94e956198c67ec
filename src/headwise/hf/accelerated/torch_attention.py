"""Torch's own attention layer inside modules of others."""

from torch import nn
from torch.nn.utils import parametrize

from headwise.nn import TorchMultiheadAttention


class FastMultiheadAttention(TorchMultiheadAttention):
    """Torch's layer through ``attend``; torch's encoder layers call it in evaluation, too."""

    @staticmethod
    def refusal(module: nn.Module) -> str | None:
        """Leave a layer with parametrisations, which belong to its class."""
        return "has parametrisations" if parametrize.is_parametrized(module) else None

    @property
    def _qkv_same_embed_dim(self) -> bool:
        """Torch's encoder layers compute attention themselves where this is true."""
        return False

    @_qkv_same_embed_dim.setter
    def _qkv_same_embed_dim(self, value: bool) -> None:
        """Keep what torch's layer holds, for its own class to find again."""


SWAPS: dict[type, type] = {nn.MultiheadAttention: FastMultiheadAttention}
