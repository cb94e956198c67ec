"""What linear attention refuses, and in which words."""

from typing import Any

import pytest
import torch
from torch import Tensor

import headwise as hw
from headwise.nn import Features

pytestmark = pytest.mark.usefixtures("plain_calls")

Q, K, V = torch.randn(2, 4, 3, 5), torch.randn(2, 2, 3, 5), torch.randn(2, 2, 3, 6)
STATE = hw.linear_attend(Q, K, V, feature_map="elu").state


def attended(**changed: Any) -> hw.LinearAttended:
    given: dict[str, Any] = {"query": Q, "key": K, "value": V, "feature_map": "elu", **changed}
    return hw.linear_attend(**given)


class Says:
    """A map that returns what it was made with."""

    def __init__(self, found: Any) -> None:
        self.found = found

    def features(self, x: Tensor, *, is_query: bool, normalize: bool) -> Any:
        return self.found(x)


REFUSED: dict[str, tuple[dict[str, Any], type[Exception], str]] = {
    "no tensor": (
        {"query": [1.0]},
        hw.DtypeError,
        "linear_attend: query, key and value must be tensors, got list, Tensor, Tensor",
    ),
    "dtypes": (
        {"value": V.double()},
        hw.DtypeError,
        "linear_attend: query, key and value must share one floating-point dtype",
    ),
    "heads": (
        {
            "key": K.expand(2, 2, 3, 5).repeat(1, 2, 1, 1)[:, :3],
            "value": V.repeat(1, 2, 1, 1)[:, :3],
        },
        hw.ShapeError,
        "linear_attend: kv_heads must divide q_heads, got 3 and 4",
    ),
    "flag": ({"causal": K}, TypeError, "linear_attend: causal must be True or False, got tensor("),
    "number": (
        {"normalize": 1},
        TypeError,
        "linear_attend: normalize must be True or False, got 1\n"
        "  hint: normalize=True divides by the sum of the weights, False leaves sums as they are",
    ),
    "pattern as a flag": (
        {"causal": hw.Causal()},
        TypeError,
        "linear_attend: causal must be True or False, got Causal()\n"
        "  hint: causal=True hides later keys, as a layer's Causal(); padding goes into kv_mask",
    ),
    "eight bits": (
        {name: x.to(torch.float8_e4m3fn) for name, x in (("query", Q), ("key", K), ("value", V))},
        hw.DtypeError,
        "linear_attend: query, key and value must be float16, bfloat16, float32 or float64",
    ),
    "mechanism as a map": (
        {"feature_map": hw.nn.LinearAttention("elu")},
        TypeError,
        "linear_attend: feature_map must be a map of queries and keys, got the mechanism "
        "LinearAttention\n  hint: a layer takes it as mechanism=LinearAttention(…)",
    ),
    "another mechanism": (
        {"feature_map": hw.nn.LowRank(2, 8)},
        TypeError,
        "linear_attend: feature_map must be a map of queries and keys, got the mechanism LowRank",
    ),
    "mask of one sample": (
        {"kv_mask": torch.ones(3, dtype=torch.bool)},
        hw.PatternError,
        "linear_attend: kv_mask must be (batch, kv_len), (2, 3) here, got (3,)",
    ),
    "mask for a batch of one": (
        {"kv_mask": torch.ones(1, 3, dtype=torch.bool)},
        hw.PatternError,
        "linear_attend: kv_mask must be (batch, kv_len), (2, 3) here, got (1, 3)",
    ),
    "mask": (
        {"kv_mask": torch.ones(2, 4, dtype=torch.bool)},
        hw.PatternError,
        "linear_attend: kv_mask must be (batch, kv_len), (2, 3) here, got (2, 4)\n"
        "  hint: True = real token; kv_mask.expand(batch, -1) repeats one row; a mask "
        "over queries and keys is for headwise.attend, as Dense(mask)",
    ),
    "numbers in a mask": (
        {"kv_mask": torch.full((2, 3), 0.5)},
        hw.PatternError,
        "linear_attend, kv_mask: a mask must be boolean, or numbers that are all 0 or 1",
    ),
    "decay without causality": (
        {"decay": 0.9},
        ValueError,
        "linear_attend: decay is for causal=True, got causal=False\n"
        "  hint: it fades what lies behind a token; leave it out, or pass causal=True",
    ),
    "decay of 0": (
        {"decay": 0.0, "causal": True},
        ValueError,
        "linear_attend: decay must lie above 0 and be at most 1, got 0.0\n"
        "  hint: it is what is left of a token one step later; 1 or None forgets nothing",
    ),
    "decay above 1": (
        {"decay": torch.tensor([0.5, 1.5]), "causal": True},
        ValueError,
        "linear_attend: decay must lie above 0 and be at most 1, got [0.5, 1.5]",
    ),
    "decay that is NaN": (
        {"decay": torch.tensor(float("nan")), "causal": True},
        ValueError,
        "linear_attend: decay must lie above 0 and be at most 1, got nan",
    ),
    "decay of query heads": (
        {"decay": torch.full((4,), 0.5), "causal": True},
        hw.ShapeError,
        "linear_attend: decay must hold one number for each key/value head\n"
        "  key    (2, 2, 3, 5) torch.float32 cpu\n  decay  (4,) torch.float32 cpu\n"
        "  hint: give a tensor of shape (kv_heads,), or one number",
    ),
    "decay of integers": (
        {"decay": torch.ones(2, dtype=torch.int64), "causal": True},
        hw.DtypeError,
        "linear_attend: decay must be floating-point and on the device of key",
    ),
    "decay as a list": (
        {"decay": [0.5, 0.5], "causal": True},
        TypeError,
        "linear_attend: decay must be a number or a tensor (kv_heads,), got list",
    ),
    "state": (
        {"state": tuple(STATE)},
        TypeError,
        "linear_attend: state must be a LinearState, got tuple\n"
        "  hint: pass the state of the result of the call before",
    ),
    "state of another batch": (
        {"state": hw.LinearState(*(part[:1] for part in STATE))},
        hw.ShapeError,
        "linear_attend: the state must have the shapes (2, 2, 5, 6), (2, 2, 5) and (2, 2) here",
    ),
    "state in half": (
        {"state": hw.LinearState(*(part.half() for part in STATE))},
        hw.DtypeError,
        "linear_attend: the state of a call in torch.float32 must be torch.float32 on cpu",
    ),
    "backend": (
        {"backend": "fastest"},
        ValueError,
        "linear_attend: unknown backend 'fastest'\n  hint: choose one of 'auto', ",
    ),
    "backend that cannot": (
        {"query": Q.double(), "key": K.double(), "value": V.double(), "backend": "native"},
        hw.BackendRefused,
        "linear_attend: the backend 'native' will not take this call\n"
        "  native: it computes float32, bfloat16 and float16, and the tensors are torch.float64\n"
        '  hint: backend="auto" takes one that can',
    ),
    "map of tensors": (
        {"feature_map": Says(lambda x: x)},
        TypeError,
        "linear_attend: the feature map Says must return headwise.nn.Features, got Tensor",
    ),
    "map that loses tokens": (
        {"feature_map": Says(lambda x: Features(x[:, :, 1:]))},
        hw.ShapeError,
        "linear_attend: the features must have the heads and the length of what they are made of",
    ),
    "gain of another shape": (
        {"feature_map": Says(lambda x: Features(x.exp(), x))},
        hw.ShapeError,
        "linear_attend: the log_gain of features must be one number for each token and head",
    ),
    "gain without a divisor": (
        {"feature_map": Says(lambda x: Features(x.exp(), x[..., 0])), "normalize": False},
        ValueError,
        "linear_attend: the feature map Says returned a log_gain where normalize=False",
    ),
    "gain with a gradient": (
        {"feature_map": Says(lambda x: Features(x.exp(), x[..., 0].clone().requires_grad_()))},
        ValueError,
        "linear_attend: the log_gain of features must carry no gradient",
    ),
    "features of other widths": (
        {"feature_map": lambda x: x.exp()[..., : 4 if x.shape[1] == 4 else 5]},
        hw.ShapeError,
        "linear_attend: feature_map must make as many features of queries as of keys",
    ),
}


@pytest.mark.parametrize(("changed", "kind", "text"), REFUSED.values(), ids=REFUSED)
def test_refusals(changed: dict[str, Any], kind: type[Exception], text: str) -> None:
    with pytest.raises(kind) as caught:
        attended(**changed)
    assert type(caught.value) is kind
    assert str(caught.value).startswith(text)
    assert "hint: " in str(caught.value) or kind is hw.DtypeError


def test_weights_name_themselves() -> None:
    with pytest.raises(ValueError, match=r"^linear_attention_weights: decay is for causal=True"):
        hw.linear_attention_weights(Q, K, feature_map="elu", decay=0.5)
    with pytest.raises(
        IndexError, match=r"^linear_attention_weights: rows=3 is out of range for size 3"
    ):
        hw.linear_attention_weights(Q, K, feature_map="elu", rows=[3])
    with pytest.raises(TypeError, match=r"^linear_attention_weights: heads= takes integers"):
        hw.linear_attention_weights(Q, K, feature_map="elu", heads=["all"])  # type: ignore[list-item]


def test_a_state_goes_on_with_what_made_it() -> None:
    with pytest.raises(hw.ShapeError, match="go on with the same batch, heads, feature map"):
        attended(state=STATE, feature_map=lambda x: x.exp()[..., :2])
    assert attended(state=STATE).output.shape == (2, 4, 3, 6)


def test_autocast_casts_as_attention_does() -> None:
    with torch.autocast("cpu", torch.bfloat16):
        found = attended(causal=True, decay=0.5)
        assert found.output.dtype == torch.bfloat16
        assert found.state.sums.dtype == torch.float32
        assert attended(state=found.state).output.dtype == torch.bfloat16


def test_strict_mode_refuses_slow_forms() -> None:
    wide = {"query": Q.double(), "key": K.double(), "value": V.double()}
    step = {name: x[:, :, :1] for name, x in wide.items()}
    with hw.strict():
        for given, slow in ((wide, "chunked"), (step, "recurrent")):
            with pytest.raises(hw.BackendRefused) as caught:
                attended(**given)
            assert str(caught.value).startswith(
                "linear_attend: strict mode takes only the fast backend, 'native', and "
                f"{slow!r} would be used\n  native: it computes float32, bfloat16 and float16"
            )
            assert attended(**given, backend=slow).output.dtype == torch.float64
        with pytest.raises(hw.BackendRefused, match=r"native: a transform of torch\.func"):
            torch.vmap(lambda q: attended(query=q).output)(Q.unsqueeze(0))
        assert attended().output.dtype == torch.float32
        with hw.strict(False):
            assert attended(**wide).output.dtype == torch.float64
