"""Layers, and how they compute."""

from headwise.nn.attention import MultiHeadAttention
from headwise.nn.blocks import TransformerBlock
from headwise.nn.extra_keys import ExtraKeys
from headwise.nn.feedforward import FeedForward
from headwise.nn.layer_plan import LayerPlan
from headwise.nn.longformer_attention import LongformerAttention
from headwise.nn.mechanism import AttentionCall, Cost, Mechanism, Step
from headwise.nn.torch_attention import TorchMultiheadAttention
from headwise.ops.projection import Projection, packed_bytes, projections, release_packed

__all__ = [
    "AttentionCall",
    "Cost",
    "ExtraKeys",
    "FeedForward",
    "LayerPlan",
    "LongformerAttention",
    "Mechanism",
    "MultiHeadAttention",
    "Projection",
    "Step",
    "TorchMultiheadAttention",
    "TransformerBlock",
    "packed_bytes",
    "projections",
    "release_packed",
]
