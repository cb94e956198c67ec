"""Linear attention: one definition, several forms of the same sums."""

from headwise.ops.linear.api import LinearAttended, linear_attend
from headwise.ops.linear.features import FeatureMap, Features, as_feature_map
from headwise.ops.linear.state import LinearState
from headwise.ops.linear.weights import linear_attention_weights

__all__ = [
    "FeatureMap",
    "Features",
    "LinearAttended",
    "LinearState",
    "as_feature_map",
    "linear_attend",
    "linear_attention_weights",
]
