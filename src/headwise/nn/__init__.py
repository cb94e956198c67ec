"""Layers, and how they compute."""

from headwise.nn.attention import MultiHeadAttention
from headwise.nn.blocks import TransformerBlock
from headwise.nn.extra_keys import ExtraKeys
from headwise.nn.feedforward import FeedForward
from headwise.nn.layer_plan import LayerPlan
from headwise.nn.linear_attention import LinearAttention
from headwise.nn.longformer_attention import LongformerAttention
from headwise.nn.low_rank import LowRank
from headwise.nn.mechanism import AttentionCall, ChosenForm, Cost, LayerSettings, Mechanism, Step
from headwise.nn.random_features import RandomFeatures
from headwise.nn.torch_attention import TorchMultiheadAttention
from headwise.ops.linear.features import FeatureMap, Features
from headwise.ops.projection import Projection, packed_bytes, projections, release_packed

__all__ = [
    "AttentionCall",
    "ChosenForm",
    "Cost",
    "ExtraKeys",
    "FeatureMap",
    "Features",
    "FeedForward",
    "LayerPlan",
    "LayerSettings",
    "LinearAttention",
    "LongformerAttention",
    "LowRank",
    "Mechanism",
    "MultiHeadAttention",
    "Projection",
    "RandomFeatures",
    "Step",
    "TorchMultiheadAttention",
    "TransformerBlock",
    "packed_bytes",
    "projections",
    "release_packed",
]
