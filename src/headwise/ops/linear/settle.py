"""Checks one call of linear attention, fills in its defaults, and takes the features."""

from typing import NamedTuple

import torch
from torch import Tensor

from headwise._checks import refuse_dtypes, refuse_shapes
from headwise._forks import alone_after_fork
from headwise.errors import DtypeError
from headwise.ops.given_tensors import (
    as_autocast,
    as_one_batch,
    check_tensors,
    fit_together,
    padded_keys,
)
from headwise.ops.linear.call import LinearCall
from headwise.ops.linear.features import FeatureMap, Features, as_feature_map
from headwise.ops.linear.scales import NOTHING
from headwise.ops.linear.settle_decay import settle_decay
from headwise.ops.linear.settle_state import settle_state
from headwise.ops.linear.state import LinearState, work_dtype


class Asked(NamedTuple):
    """The arguments of a call besides its tensors, as the user gave them."""

    feature_map: object
    causal: bool
    kv_mask: Tensor | None
    decay: float | Tensor | None
    normalize: bool
    state: LinearState | None


_FLAGS = {
    "causal": "causal=True hides later keys, as a layer's Causal(); padding goes into kv_mask",
    "normalize": "normalize=True divides by the sum of the weights, False leaves sums as they are",
}

_COMPUTED = (torch.float32, torch.bfloat16, torch.float16, torch.float64)


@alone_after_fork
def settle(caller: str, query: Tensor, key: Tensor, value: Tensor, asked: Asked) -> LinearCall:
    """Return the call with four dimensions and features in place of queries and keys.

    Padded keys and values are set to 0 before the map sees them, and their features behind it.
    """
    if not (isinstance(query, Tensor) and isinstance(key, Tensor) and isinstance(value, Tensor)):
        kinds = ", ".join(type(given).__name__ for given in (query, key, value))
        raise DtypeError(f"{caller}: query, key and value must be tensors, got {kinds}")
    for name, flag in (("causal", asked.causal), ("normalize", asked.normalize)):
        if not isinstance(flag, bool):
            raise TypeError(
                f"{caller}: {name} must be True or False, got {flag!r}\n  hint: {_FLAGS[name]}"
            )
    feature_map = as_feature_map(asked.feature_map, caller)
    if torch._C._is_any_autocast_enabled():
        query, key, value = as_autocast(query), as_autocast(key), as_autocast(value)
    if not fit_together(query, key, value):
        check_tensors(caller, query, key, value)
    if value.dtype not in _COMPUTED:
        raise refuse_dtypes(
            caller,
            "query, key and value must be float16, bfloat16, float32 or float64",
            "convert them with .to(torch.bfloat16)",
            query=query,
            key=key,
            value=value,
        )
    padded = None if asked.kv_mask is None else padded_keys(caller, asked.kv_mask, key)
    log_decay = settle_decay(caller, asked.decay, asked.causal, key)
    lead = key.shape[:-3]
    if query.ndim != 4:
        query, key, value = as_one_batch(query), as_one_batch(key), as_one_batch(value)
    if padded is not None:
        hidden = padded[:, None, :, None]
        key, value = key.masked_fill(hidden, 0.0), value.masked_fill(hidden, 0.0)

    asks = _features(caller, feature_map, query, asked.normalize, is_query=True)
    tells = _features(caller, feature_map, key, asked.normalize, is_query=False)
    features, log_gain = tells.values, tells.log_gain
    if asks.values.shape[-1] != features.shape[-1]:
        raise refuse_shapes(
            caller,
            "feature_map must make as many features of queries as of keys",
            "their products are the weights",
            query_features=asks.values,
            key_features=features,
        )
    if log_gain is not None:
        log_gain = log_gain.to(work_dtype(value))
    if padded is not None:
        features = features.masked_fill(padded[:, None, :, None], 0.0)
        log_gain = None if log_gain is None else log_gain.masked_fill(padded[:, None], NOTHING)
    state = asked.state
    if state is not None:
        state = settle_state(caller, state, Features(features, log_gain), value, lead)
    return LinearCall(
        asks.values, features, value, log_gain, log_decay, asked.causal, asked.normalize, state
    )


def _features(
    caller: str, feature_map: FeatureMap, x: Tensor, normalize: bool, *, is_query: bool
) -> Features:
    """Return the features of queries or keys in the dtype of the call; refuse what are none."""
    found = feature_map.features(x, is_query=is_query, normalize=normalize)
    if not isinstance(found, Features) or not isinstance(found.values, Tensor):
        raise TypeError(
            f"{caller}: the feature map {type(feature_map).__name__} must return "
            f"headwise.nn.Features, got {type(found).__name__}\n"
            "  hint: return Features(values), or give a module or function that returns a tensor"
        )
    values, log_gain = found
    if values.ndim != x.ndim or values.shape[:-1] != x.shape[:-1]:
        raise refuse_shapes(
            caller,
            "the features must have the heads and the length of what they are made of",
            "a feature map changes the last dimension only",
            given=x,
            features=values,
        )
    if log_gain is None:
        return Features(values.to(x.dtype))
    if not normalize:
        raise ValueError(
            f"{caller}: the feature map {type(feature_map).__name__} returned a log_gain where "
            "normalize=False, got Features with log_gain\n"
            "  hint: without a divisor factors do not cancel; multiply them into the features"
        )
    if log_gain.shape != x.shape[:-1]:
        raise refuse_shapes(
            caller,
            "the log_gain of features must be one number for each token and head",
            "return (…, heads, length), or None",
            given=x,
            log_gain=log_gain,
        )
    if log_gain.requires_grad:
        raise ValueError(
            f"{caller}: the log_gain of features must carry no gradient, got one that wants it\n"
            "  hint: detach it, and leave the gradient in the values: x - x.detach() is 0 with "
            "the gradient of x"
        )
    # The factor of a query is in every term of its row and in the divisor.
    return Features(values.to(x.dtype), None if is_query else log_gain)
