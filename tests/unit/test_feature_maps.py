"""Feature maps: their numbers, their gradients, and what is refused."""

from typing import Any

import pytest
import torch
from torch import Tensor, nn

import headwise as hw
from headwise.ops.linear.features import NAMED, FeatureMap, Features, as_feature_map
from tests.support.budget import assert_same_bits, assert_within_budget

FLOATS = [torch.float64, torch.float32, torch.bfloat16, torch.float16]


def values(name: str, x: Tensor) -> Tensor:
    found = NAMED[name].features(x, is_query=True, normalize=False)
    assert found.log_gain is None
    return found.values


def test_elu_by_hand() -> None:
    x = torch.tensor([-2.0, -1.0, 0.0, 0.5, 3.0], dtype=torch.float64)
    wanted = torch.tensor([-2.0, -1.0, 0.0, 0.0, 0.0], dtype=torch.float64).exp()
    wanted[3:] = torch.tensor([1.5, 4.0])
    torch.testing.assert_close(values("elu", x), wanted, rtol=0, atol=0)


@pytest.mark.parametrize("dtype", FLOATS)
def test_elu_does_not_cancel(dtype: torch.dtype) -> None:
    """``elu(x) + 1`` loses all digits where exp(x) is below the spacing of numbers near 1."""
    x = torch.linspace(-8, 0, 101).to(dtype)
    found, exact = values("elu", x), x.double().exp()
    steps = 4 * torch.finfo(dtype).eps
    assert ((found.double() - exact).abs() <= steps * exact).all()
    # In float64 8 is not far enough below 0 for torch's form to lose anything that shows.
    if dtype != torch.float64:
        lost = (nn.functional.elu(x) + 1).double() - exact
        assert (lost.abs() > 10 * steps * exact).any()


@pytest.mark.parametrize("name", NAMED)
def test_formulas(name: str) -> None:
    rules: dict[str, Any] = {
        "elu": lambda x: nn.functional.elu(x) + 1,
        "relu": nn.functional.relu,
        "squared_relu": lambda x: nn.functional.relu(x) ** 2,
        "softmax": lambda x: x.exp() / x.exp().sum(-1, keepdim=True),
        "identity": lambda x: x,
    }
    x = torch.randn(2, 3, 5, 7)
    exact = rules[name](x.double())
    assert_within_budget(values(name, x), exact=exact, plain=rules[name](x), label=name)


@pytest.mark.parametrize("name", NAMED)
@pytest.mark.parametrize("dtype", FLOATS)
def test_dtype_stays(name: str, dtype: torch.dtype) -> None:
    assert values(name, torch.randn(3, 5).to(dtype)).dtype == dtype


@pytest.mark.parametrize("name", NAMED)
def test_gradients(name: str) -> None:
    x = torch.randn(3, 5, dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(lambda x: values(name, x), x)
    assert torch.autograd.gradgradcheck(lambda x: values(name, x), x)


def test_elu_is_smooth_at_0() -> None:
    x = torch.zeros(1, dtype=torch.float64, requires_grad=True)
    (slope,) = torch.autograd.grad(values("elu", x), x)
    assert slope.item() == 1.0


@pytest.mark.parametrize("name", sorted(set(NAMED) - {"identity"}))
def test_features_are_never_negative(name: str) -> None:
    assert (values(name, 10 * torch.randn(100, 7)) >= 0).all()


def test_names_and_objects_are_taken() -> None:
    for name, named in NAMED.items():
        assert type(as_feature_map(name, "somebody")) is type(named)
        assert repr(named) == f"<feature map {name!r}>"
        assert isinstance(named, FeatureMap)
    given = hw.nn.RandomFeatures(8)
    assert as_feature_map(given, "somebody") is given


def test_modules_and_functions_are_taken() -> None:
    x = torch.randn(2, 3, 5)
    learned = nn.Sequential(nn.Linear(5, 7), nn.Softplus())
    for given in (learned, torch.exp):
        found = as_feature_map(given, "somebody").features(x, is_query=False, normalize=True)
        assert found.log_gain is None
        assert_same_bits(found.values, given(x))


def test_a_submodule_called_features_is_no_method() -> None:
    class Tower(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.features = nn.Linear(5, 3)

        def forward(self, x: Tensor) -> Tensor:
            return torch.exp(self.features(x))

    tower, x = Tower(), torch.randn(2, 5)
    found = as_feature_map(tower, "somebody").features(x, is_query=True, normalize=True)
    assert_same_bits(found.values, tower(x))


def test_features_of_a_module_come_in_the_dtype_of_the_input() -> None:
    x = torch.randn(2, 5).bfloat16()
    found = as_feature_map(lambda x: x.float().exp(), "f").features(
        x, is_query=True, normalize=True
    )
    assert found.values.dtype == torch.bfloat16


class Loose:
    """Follows the protocol without knowing it."""

    def features(self, x: Tensor, *, is_query: bool, normalize: bool) -> Features:
        return Features(x.exp(), None)


def test_protocol_needs_no_base_class() -> None:
    given = Loose()
    assert as_feature_map(given, "somebody") is given


NAMES = "'elu', 'relu', 'squared_relu', 'softmax', 'identity'"


@pytest.mark.parametrize(
    ("given", "error", "message"),
    [
        (
            "gelu",
            ValueError,
            "f: feature_map has the name of no feature map, got 'gelu'\n"
            f"  hint: the names are {NAMES}; random features are headwise.nn.RandomFeatures(count)",
        ),
        (
            "FAVOR+",
            ValueError,
            "f: feature_map has the name of no feature map, got 'FAVOR+'\n"
            "  hint: pass headwise.nn.RandomFeatures(count), an object: its random numbers are "
            "kept",
        ),
        (
            nn.ReLU,
            TypeError,
            "f: feature_map must be an object, got the class ReLU\n  hint: ReLU(…) makes one",
        ),
        (
            3,
            TypeError,
            "f: feature_map must be a name, an object with a method `features`, or a module, "
            f"got int\n  hint: the names are {NAMES}",
        ),
    ],
)
@pytest.mark.usefixtures("plain_calls")
def test_what_is_no_map_is_refused(given: object, error: type[Exception], message: str) -> None:
    with pytest.raises(error) as caught:
        as_feature_map(given, "f")
    assert str(caught.value) == message


@pytest.mark.parametrize(
    ("given", "error", "message"),
    [
        (
            lambda x: (x, x),
            TypeError,
            "f: feature_map must return a tensor, got tuple\n"
            "  hint: a module of several results needs a method `features`, see "
            "headwise.ops.FeatureMap",
        ),
        (
            lambda x: x.sum(-2),
            hw.ShapeError,
            "f: feature_map must work on the last dimension alone and keep the others\n"
            "  given     (2, 3, 5) torch.float32 cpu\n"
            "  returned  (2, 5) torch.float32 cpu\n"
            "  hint: return (…, heads, length, features)",
        ),
        (
            lambda x: x > 0,
            hw.DtypeError,
            "f: feature_map must return floating-point numbers\n"
            "  given     (2, 3, 5) torch.float32 cpu\n"
            "  returned  (2, 3, 5) torch.bool cpu\n"
            "  hint: convert them with .to(x.dtype)",
        ),
    ],
)
@pytest.mark.usefixtures("plain_calls")
def test_what_a_map_must_not_return(given: Any, error: type[Exception], message: str) -> None:
    made = as_feature_map(given, "f")
    with pytest.raises(error) as caught:
        made.features(torch.randn(2, 3, 5), is_query=True, normalize=True)
    assert str(caught.value) == message


def test_identity_is_not_normalised() -> None:
    with pytest.raises(ValueError, match="no normalised form") as caught:
        as_feature_map("identity", "f").features(torch.randn(2, 3), is_query=True, normalize=True)
    assert str(caught.value) == (
        "f: the feature map 'identity' has no normalised form, for products of queries and keys "
        "may be negative and their sum 0; got normalize=True\n"
        "  hint: pass normalize=False, or a map with positive features such as 'elu'"
    )
