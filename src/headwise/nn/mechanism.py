"""How a layer mixes tokens: the protocol that mechanisms follow, and what they are asked."""

from typing import TYPE_CHECKING, Any, NamedTuple, Protocol, runtime_checkable

from torch import Tensor, nn

from headwise._dims import Key, Query, Value
from headwise.nn.schemes import joined_bias
from headwise.ops.softmax.settle_bias import Bias
from headwise.patterns import KeyMask, Pattern

if TYPE_CHECKING:
    from headwise.nn.attention import MultiHeadAttention

# The objects behind the names that people know mechanisms by.
_KNOWN_AS = {
    "linear": "LinearAttention",
    "performer": "RandomFeatures",
    "favor+": "RandomFeatures",
    "linformer": "LowRank",
}


class AttentionCall(NamedTuple):
    """What one call of a layer asks of its mechanism; a mechanism refuses what it cannot do.

    The batch is always there for a mechanism; it is 1 where the layer was given one sample.

    Attributes:
        query: (batch, q_heads, q_len, head_dim), placed by the layer's positions.
        key: (batch, kv_heads, kv_len, head_dim), likewise.
        value: (batch, kv_heads, kv_len, value_dim).
        pattern: Who may attend to whom: the layer's pattern, the call's, and ``mask``.
        kv_mask: (batch, kv_len), ``True`` = real token. It is no part of ``pattern``. Of a call
            with a state it has the new keys alone, as ``key`` has.
        bias: Numbers added to the scores, or an object of ``headwise.positions``.
        softcap: Cap of the scores.
        sinks: (q_heads,) scores of the sinks.
        dropout_p: Share of weights to drop; 0 outside training.
        q_offset: Absolute position of the first query; ``None`` = the last query stands beside
            the last key.
        kv_offset: Absolute position of the first key.
    """

    query: Query
    key: Key
    value: Value
    pattern: Pattern | None = None
    kv_mask: Tensor | None = None
    bias: Bias | None = None
    softcap: float | None = None
    sinks: Tensor | None = None
    dropout_p: float = 0.0
    q_offset: int | Tensor | None = None
    kv_offset: int | Tensor = 0

    @property
    def allowed(self) -> Pattern | None:
        """Who may attend to whom, padding included."""
        if self.kv_mask is None:
            return self.pattern
        padding = KeyMask(self.kv_mask)
        return padding if self.pattern is None else self.pattern & padding

    def keywords(self) -> dict[str, Any]:
        """Return what ``headwise.attend`` takes by name, under its names."""
        return {
            "bias": self.bias,
            "softcap": self.softcap,
            "sinks": self.sinks,
            "dropout_p": self.dropout_p,
            "q_offset": self.q_offset,
            "kv_offset": self.kv_offset,
        }


class Step(NamedTuple):
    """What a mechanism returns: (batch, q_heads, q_len, value_dim), and the state after it."""

    output: Tensor
    state: object


class Cost(NamedTuple):
    """What a call of a mechanism takes: operations, bytes read and written, and how they grow."""

    flops: int
    bytes: int
    formula: str


class ChosenForm(NamedTuple):
    """Which form of a mechanism would run a call.

    Attributes:
        name: Its name.
        cost: Under which name ``costs`` has what it takes in such a call.
        refusals: Why faster forms would not run, by name.
    """

    name: str
    cost: str
    refusals: dict[str, tuple[str, ...]]


class LayerSettings(NamedTuple):
    """What every call of a layer asks of its mechanism.

    Attributes:
        pattern: The layer's pattern.
        bias: Its positions, where they are added to the scores.
        softcap: Cap of the scores.
        sinks: Whether each head has a sink.
        dropout: Share of weights to drop in training.
    """

    pattern: Pattern | None
    bias: Bias | None
    softcap: float | None
    sinks: bool
    dropout: float


@runtime_checkable
class Mechanism(Protocol):
    """Mixes the tokens of a layer in another way than softmax attention; pass it as ``mechanism=``.

    A layer that is given a mechanism with a method ``fit`` calls it with its sizes, ``q_heads``,
    ``kv_heads``, ``head_dim`` and ``value_dim``, by name; before that a method ``check_layer``, so
    that it can refuse what every call would ask, with ``pattern``, ``bias``, ``softcap``, ``sinks``
    and ``dropout`` in one ``LayerSettings``. An ``nn.Module`` that follows the protocol has its
    parameters in the layer's state dict and is called as a module, hooks included. Of any other
    object ``forward`` is called. One that computes in several forms may say what they take,
    ``costs`` with the arguments of ``cost``, a dictionary, and which would run, ``form(call)``, a
    ``ChosenForm``; ``explain`` shows both.
    """

    def forward(self, call: AttentionCall, state: object = None) -> Step:
        """Return the output, and the state that stands for all keys up to now.

        Args:
            call: What is asked; with ``state``, its keys are the new ones alone.
            state: What ``state`` or the step before returned; ``None`` without one. A layer gives
                one where it has a cache, in which it keeps what the step returned.

        Returns:
            A ``Step`` whose output has the dtype of the query; under ``torch.autocast`` it may have
            another.
        """
        ...

    def state(self, call: AttentionCall) -> object:
        """Return the state before the first token of ``call``; ``None`` for a mechanism without.

        A mechanism without a state is given all keys and values in every call, those of the
        cache included.
        """
        ...

    def cost(
        self, q_len: int, kv_len: int, *, q_heads: int, kv_heads: int, head_dim: int, value_dim: int
    ) -> Cost:
        """Say what one sample of a call of these sizes takes."""
        ...

    def reference(self, call: AttentionCall) -> Tensor:
        """Return the output by the definition, in plain PyTorch, however slow."""
        ...


def take_mechanism(
    mechanism: object, layer: "MultiHeadAttention", *, sinks: bool
) -> Mechanism | None:
    """Return what was given as ``mechanism=`` if it follows the protocol, and refuse it if not.

    Where it has methods ``check_layer`` and ``fit``, it is told about the layer.
    """
    if mechanism is None:
        return None
    checked = _checked(mechanism)
    check = getattr(checked, "check_layer", None)
    if callable(check):
        bias = joined_bias(layer.positions, None)
        check(LayerSettings(layer.pattern, bias, layer.softcap, sinks, layer.dropout))
    fit = getattr(checked, "fit", None)
    if callable(fit):
        fit(
            q_heads=layer.num_heads,
            kv_heads=layer.num_kv_heads,
            head_dim=layer.d_k,
            value_dim=layer.value_dim,
        )
    return checked


def _checked(mechanism: object) -> Mechanism:
    if isinstance(mechanism, str):
        raise TypeError(f"MultiHeadAttention: {_of_that_name(mechanism)}")
    wanted = ("forward", "state", "cost", "reference")
    absent = [name for name in wanted if not _has(mechanism, name)]
    if isinstance(mechanism, Mechanism) and not isinstance(mechanism, type) and not absent:
        return mechanism
    lacks = f"it has no {', '.join(absent)}" if absent else "it is a class, not an object"
    raise TypeError(
        "MultiHeadAttention: mechanism must follow headwise.nn.Mechanism, "
        f"got {mechanism!r}: {lacks}\n"
        "  hint: write these methods, or leave mechanism out for softmax attention"
    )


def _has(mechanism: object, name: str) -> bool:
    """Say whether there is such a method; every ``nn.Module`` has a ``forward`` that only fails."""
    method = getattr(mechanism, name, None)
    return callable(method) and getattr(method, "__func__", None) is not nn.Module.forward


def _of_that_name(name: str) -> str:
    import headwise.nn

    known = _KNOWN_AS.get(name.lower())
    start = f"mechanism must be an object, got the name {name!r}\n  hint: "
    if known is None:
        return (
            f"{start}pass an object that follows headwise.nn.Mechanism; softmax attention is "
            "mechanism=None"
        )
    if hasattr(headwise.nn, known):
        return f"{start}pass headwise.nn.{known}(…)"
    return f"{start}the object is headwise.nn.{known}, which this version does not have"
