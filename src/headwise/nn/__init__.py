"""Layers."""

from headwise.nn.attention import MultiHeadAttention

__all__ = ["MultiHeadAttention"]
