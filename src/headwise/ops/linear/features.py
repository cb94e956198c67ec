"""Feature maps: what linear attention multiplies in place of queries and keys."""

from collections.abc import Callable
from typing import NamedTuple, Protocol, TypeAlias, runtime_checkable

from torch import Tensor, nn
from typing_extensions import override

from headwise._checks import refuse_dtypes, refuse_shapes

FeatureRule: TypeAlias = Callable[[Tensor], Tensor]


class Features(NamedTuple):
    """Features of the tokens of a call, with a factor for each token taken out.

    Attributes:
        values: (…, heads, length, features).
        log_gain: (…, heads, length), natural log of what each row of ``values`` must still be
            multiplied by; ``None`` = 1. It carries no gradient: the whole of it is in ``values``.
    """

    values: Tensor
    log_gain: Tensor | None = None


@runtime_checkable
class FeatureMap(Protocol):
    """A map from queries and keys to features, for ``linear_attend(feature_map=)``."""

    def features(self, x: Tensor, *, is_query: bool, normalize: bool) -> Features:
        """Return the features of queries or keys.

        Args:
            x: (…, heads, length, head_dim).
            is_query: Whether they are queries.
            normalize: Whether weights are divided by their sum. A positive factor of a query then
                cancels and may be left out, and the factors of keys may be taken out as
                ``log_gain``; without it the features are wanted as they are, with no gain.
        """
        ...


@runtime_checkable
class _Mechanism(Protocol):
    """What a layer may be made with, see ``headwise.nn.Mechanism``; told by its methods."""

    def cost(self, *sizes: int, **named: int) -> object: ...
    def reference(self, call: object) -> Tensor: ...


class _Named:
    """A map of one line, known by a name."""

    def __init__(self, name: str, rule: FeatureRule) -> None:
        self.name, self.rule = name, rule

    def features(self, x: Tensor, *, is_query: bool, normalize: bool) -> Features:
        return Features(self.rule(x))

    def asked_by(self, caller: str) -> "_Named":
        """Return the map that names its caller where it refuses."""
        return self

    def __repr__(self) -> str:
        return f"<feature map {self.name!r}>"


class _Identity(_Named):
    """Queries and keys as they are; only for sums that are not divided."""

    def __init__(self, caller: str) -> None:
        super().__init__("identity", lambda x: x)
        self.caller = caller

    @override
    def asked_by(self, caller: str) -> "_Named":
        return _Identity(caller)

    @override
    def features(self, x: Tensor, *, is_query: bool, normalize: bool) -> Features:
        if normalize:
            raise ValueError(
                f"{self.caller}: the feature map 'identity' has no normalised form, for products "
                "of queries and keys may be negative and their sum 0; got normalize=True\n"
                "  hint: pass normalize=False, or a map with positive features such as 'elu'"
            )
        return Features(x)


class _Applied:
    """Any module or function on the last dimension."""

    def __init__(self, given: FeatureRule, caller: str) -> None:
        self.given, self.caller = given, caller

    def features(self, x: Tensor, *, is_query: bool, normalize: bool) -> Features:
        values = self.given(x)
        if not isinstance(values, Tensor):
            raise TypeError(
                f"{self.caller}: feature_map must return a tensor, got {type(values).__name__}\n"
                "  hint: a module of several results needs a method `features`, see "
                "headwise.ops.FeatureMap"
            )
        if values.shape[:-1] != x.shape[:-1]:
            raise refuse_shapes(
                self.caller,
                "feature_map must work on the last dimension alone and keep the others",
                "return (…, heads, length, features)",
                given=x,
                returned=values,
            )
        if not values.is_floating_point():
            raise refuse_dtypes(
                self.caller,
                "feature_map must return floating-point numbers",
                "convert them with .to(x.dtype)",
                given=x,
                returned=values,
            )
        return Features(values.to(x.dtype))

    def __repr__(self) -> str:
        return repr(self.given)


def _elu(x: Tensor) -> Tensor:
    """Return ``elu(x) + 1`` as exp(x) below 0 and 1 + x above: nothing cancels."""
    return x.clamp(max=0.0).exp() + x.relu()


NAMED: dict[str, _Named] = {
    "elu": _Named("elu", _elu),
    "relu": _Named("relu", lambda x: x.relu()),
    "squared_relu": _Named("squared_relu", lambda x: x.relu().square()),
    "softmax": _Named("softmax", lambda x: x.softmax(-1)),
    "identity": _Identity("linear_attend"),
}

_RANDOM = ("favor", "favor+", "performer", "random", "random_features")


def as_feature_map(given: object, caller: str) -> FeatureMap:
    """Return the feature map that was meant: by a name, an object, or a module; or refuse it.

    Args:
        given: A name, an object with a method ``features``, or a module or function that works on
            the last dimension.
        caller: Who asks.

    Raises:
        ValueError: A name that is none.
        TypeError: Anything else.
    """
    if isinstance(given, str):
        return _by_name(given, caller)
    if isinstance(given, type):
        raise TypeError(
            f"{caller}: feature_map must be an object, got the class {given.__name__}\n"
            f"  hint: {given.__name__}(…) makes one"
        )
    # A submodule that happens to be called `features` makes no map of the module around it.
    if isinstance(given, FeatureMap) and not isinstance(given.features, nn.Module):
        return given
    if isinstance(given, _Mechanism):
        name = type(given).__name__
        raise TypeError(
            f"{caller}: feature_map must be a map of queries and keys, got the mechanism {name}\n"
            f"  hint: a layer takes it as mechanism={name}(…); here pass what makes features, such "
            "as 'elu' or headwise.nn.RandomFeatures(count)"
        )
    if callable(given):
        return _Applied(given, caller)
    raise TypeError(
        f"{caller}: feature_map must be a name, an object with a method `features`, or a module, "
        f"got {type(given).__name__}\n  hint: the names are {_names()}"
    )


def _by_name(name: str, caller: str) -> FeatureMap:
    if name in NAMED:
        return NAMED[name].asked_by(caller)
    hint = f"the names are {_names()}; random features are headwise.nn.RandomFeatures(count)"
    if name.lower() in _RANDOM:
        hint = "pass headwise.nn.RandomFeatures(count), an object: its random numbers are kept"
    raise ValueError(
        f"{caller}: feature_map has the name of no feature map, got {name!r}\n  hint: {hint}"
    )


def _names() -> str:
    return ", ".join(repr(name) for name in NAMED)
