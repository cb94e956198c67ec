"""Layers, and how they compute."""

from headwise.nn.attention import MultiHeadAttention
from headwise.nn.longformer_attention import LongformerAttention
from headwise.nn.mechanism import AttentionCall, Cost, Mechanism, Step
from headwise.ops.projection import Projection, packed_bytes, projections

__all__ = [
    "AttentionCall",
    "Cost",
    "LongformerAttention",
    "Mechanism",
    "MultiHeadAttention",
    "Projection",
    "Step",
    "packed_bytes",
    "projections",
]
