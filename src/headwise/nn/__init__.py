"""Layers."""

from headwise.nn.attention import MultiHeadAttention
from headwise.nn.longformer_attention import LongformerAttention

__all__ = ["LongformerAttention", "MultiHeadAttention"]
