"""Linear attention for users: checks, defaults, the choice of a form, the names of results."""

from collections.abc import Callable
from typing import NamedTuple

from torch import Tensor
from torch.compiler import is_compiling
from torch.utils._pytree import _register_namedtuple

from headwise import _native, _strict
from headwise._dims import Key, Query, Value
from headwise._forks import alone_after_fork
from headwise.errors import BackendRefused
from headwise.ops.linear import chunked, native, recurrent, reference, sums
from headwise.ops.linear.call import LinearCall
from headwise.ops.linear.settle import Asked, settle
from headwise.ops.linear.settle_state import restored
from headwise.ops.linear.state import LinearState
from headwise.ops.softmax.slow import refuse_slow


class _Form(NamedTuple):
    refusals: Callable[[LinearCall], list[str]]
    run: sums.Form


def _takes_every_call(call: LinearCall) -> list[str]:
    return []


_FORMS = {
    "native": _Form(native.refusals, native.linear_sums),
    "chunked": _Form(_takes_every_call, chunked.linear_sums),
    "recurrent": _Form(_takes_every_call, recurrent.linear_sums),
}


class LinearAttended(NamedTuple):
    """The output of linear attention, and the state that stands for all keys up to now."""

    output: Tensor
    state: LinearState


# As for the state: a saved graph may return one.
_register_namedtuple(LinearAttended, serialized_type_name="headwise.ops.LinearAttended")


def linear_attend(
    query: Query,
    key: Key,
    value: Value,
    *,
    feature_map: object,
    causal: bool = False,
    kv_mask: Tensor | None = None,
    decay: float | Tensor | None = None,
    normalize: bool = True,
    state: LinearState | None = None,
    backend: str = "auto",
) -> LinearAttended:
    """Weigh values by products of features of queries and keys, in time linear in the length.

    The weight of key ``j`` for query ``i`` is ``f(q_i) · f(k_j) * decay ** (i - j)``, over all keys
    or, ``causal``, those up to ``i``; the output is ``sum(weight * value) / sum(weight)``
    ("Transformers are RNNs", Katharopoulos et al., 2020). Queries and keys are not scaled: that is
    the feature map's business. Query head ``h`` reads key/value head
    ``h // (q_heads // kv_heads)``.

    Args:
        query: (batch…, q_heads, q_len, head_dim), any strides. Three dimensions are one sample;
            further leading dimensions are allowed.
        key: (batch…, kv_heads, kv_len, head_dim); ``kv_heads`` must divide ``q_heads``.
        value: (batch…, kv_heads, kv_len, value_dim).
        feature_map: ``"elu"`` (elu + 1), ``"relu"``, ``"squared_relu"``, ``"softmax"`` over the
            features, ``"identity"`` (with ``normalize=False``), an object with a method
            ``features`` such as ``headwise.nn.RandomFeatures``, or any module or function that
            works on the last dimension.
        causal: Whether later keys are hidden. The last query stands beside the last key; with more
            queries than keys the first ones see the state alone.
        kv_mask: (batch, kv_len), (kv_len,) for one sample, ``True`` = real token, padding on any
            side. Padded keys are in no sum, and NaN in them stays out; the tokens still count as
            steps of ``decay``.
        decay: What is left of a token one step later, above 0 and at most 1: a number, or one for
            each key/value head, (kv_heads,), with a gradient. Only where ``causal``. Numbers in a
            tensor cannot be checked while a call is compiled, exported, or under ``torch.func``:
            hold them in range there. In a compiled or exported call its gradient is rounded more
            coarsely the longer the call is; a plain call counts 256 tokens at a time.
        normalize: Whether to divide by the sum of the weights.
        state: The state that an earlier call returned; its tokens stand right before the first of
            this one. Gradients flow through it.
        backend: ``"native"`` (the compiled kernel, on the CPU), ``"chunked"`` (plain PyTorch on any
            device, with derivatives of any order), ``"recurrent"`` (token by token) and
            ``"reference"`` (weights spelled out) run or refuse; ``"auto"`` takes the fastest that
            does not refuse. On the CPU that is slow where it is not ``"native"``, and an error in
            strict mode (``headwise.strict``).

    Returns:
        ``LinearAttended(output, state)``: (batch…, q_heads, q_len, value_dim) in the dtype of
        ``query``, summed in float32 or wider; and the state after the last key. A query whose
        weights sum to 0 gets zeros: one that sees no key, and one whose weights are all smaller
        than the sums' dtype holds. A row that sees a number that is not finite gets NaN.

    Raises:
        ShapeError: Sizes or head counts that do not fit; nothing is broadcast.
        DtypeError: Different or unsuitable dtypes or devices.
        PatternError: A ``kv_mask`` that does not fit.
        ValueError: A decay out of range or without ``causal``, an unknown name.
        BackendRefused: A named backend that will not take the call, or a slow form in strict mode,
            with every reason.
        TypeError: A feature map or state that is none, a flag that is no truth value.

    Example:
        >>> import torch, headwise as hw
        >>> q, kv = torch.ones(1, 4, 3, 8), torch.ones(1, 2, 3, 8)
        >>> first = hw.linear_attend(q, kv, kv, feature_map="elu", causal=True)
        >>> then = hw.linear_attend(q, kv, kv, feature_map="elu", causal=True, state=first.state)
        >>> then.output.shape, tuple(then.state.sums.shape)
        (torch.Size([1, 4, 3, 8]), (1, 2, 8, 8))
    """
    asked = Asked(feature_map, causal, kv_mask, decay, normalize, state)
    call = settle("linear_attend", query, key, value, asked)
    output, after = _run("linear_attend", call, backend)
    output = output.to(call.value.dtype).reshape(*query.shape[:-1], value.shape[-1])
    return LinearAttended(output, restored(after, key.shape[:-3]))


@alone_after_fork
def _run(caller: str, call: LinearCall, backend: str) -> tuple[Tensor, LinearState]:
    if backend not in ("auto", "reference", *_FORMS):
        names = ", ".join(repr(name) for name in ("auto", *_FORMS, "reference"))
        raise ValueError(f"{caller}: unknown backend {backend!r}\n  hint: choose one of {names}")
    if backend == "auto":
        backend = fastest_form(call)
        if backend != "native" and call.query.is_cpu and _strict.here:
            raise refuse_slow(caller, "native", backend, native.refusals(call))
        if _native.kernels is None and not is_compiling():
            _native.warn_once()
    elif backend == "reference":
        return reference.run(call)
    elif reasons := _FORMS[backend].refusals(call):
        lines = "\n".join(f"  {backend}: {reason}" for reason in reasons)
        raise BackendRefused(
            f"{caller}: the backend {backend!r} will not take this call\n{lines}\n"
            '  hint: backend="auto" takes one that can'
        )
    return sums.run(call, _FORMS[backend].run)


def fastest_form(call: LinearCall) -> str:
    """Name the form for a call; a chunk of one token is a detour."""
    if not native.refusals(call):
        return "native"
    is_step = call.key.shape[2] == 1 and call.query.shape[2] == 1
    return "recurrent" if is_step else "chunked"
