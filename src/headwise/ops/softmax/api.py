"""Softmax attention for users: checks, defaults, the choice of backend, the names of results."""

from collections.abc import Callable
from typing import NamedTuple

from torch import Tensor
from torch.compiler import is_compiling

from headwise import _native, _strict
from headwise._dims import Key, Output, Query, Sinks, Value, Weights
from headwise._forks import alone_after_fork
from headwise.errors import BackendRefused
from headwise.ops.softmax import flex, native, reference, refusals, sdpa, weights
from headwise.ops.softmax.call import Attended, Call, Computed
from headwise.ops.softmax.plan import Plan, plan
from headwise.ops.softmax.selection import Selection, cut, pick
from headwise.ops.softmax.settle import Extras, settle
from headwise.ops.softmax.settle_bias import Bias
from headwise.ops.softmax.slow import fast_backend, is_slow, refuse_slow
from headwise.ops.softmax.tally import count
from headwise.patterns.base import Pattern
from headwise.patterns.grid import Offset


class _Backend(NamedTuple):
    refusals: Callable[[Call], list[str]]
    run: Callable[[Call], Computed]


_BACKENDS = {
    "native": _Backend(refusals.native, native.run),
    "flex": _Backend(refusals.flex, flex.run),
    "sdpa": _Backend(refusals.sdpa, sdpa.run),
    "reference": _Backend(refusals.reference, reference.run),
}


def attend(
    query: Query,
    key: Key,
    value: Value,
    pattern: Pattern | None = None,
    *,
    bias: Bias | None = None,
    scale: float | None = None,
    softcap: float | None = None,
    sinks: Sinks | None = None,
    dropout_p: float = 0.0,
    q_offset: Offset | None = None,
    kv_offset: Offset = 0,
    backend: str = "auto",
) -> Output:
    """Weigh values by how well each query matches each key.

    Computes ``softmax(bias + softcap(scale * query @ key^T), over the keys that the pattern
    allows) @ value`` per head ("Attention Is All You Need", Vaswani et al., 2017), summed in
    float32 or wider. Query head ``h`` reads key/value head ``h // (q_heads // kv_heads)``, which
    is not copied.

    Args:
        query: What is looked for, (batch…, q_heads, q_len, head_dim), any strides. Three
            dimensions are one sample; further leading dimensions are allowed.
        key: What is offered; ``kv_heads`` must divide ``q_heads``.
        value: What is returned for each key; its last dimension may differ from the key's.
        pattern: Which pairs may meet; ``None`` = all. Masked numbers never reach the result,
            NaN and infinity included.
        bias: Numbers added to the scores after scale and softcap: a tensor that broadcasts to
            (batch, heads, q_len, kv_len) on any axis, where ``-inf`` means "may not attend"; or
            ``positions.Alibi`` or ``positions.RelativeBias``, read by the distance between the
            absolute positions of query and key.
        scale: Multiplier of the scores, zero and negative included. ``None`` means
            ``head_dim ** -0.5``.
        softcap: Caps scores smoothly to ``softcap * tanh(scores / softcap)``; above 0.
        sinks: One number per query head, (q_heads,): a further score that takes its share of the
            softmax and brings no value.
        dropout_p: Share of the weights set to zero, the others divided by ``1 - dropout_p``. The
            function does not know about training: layers pass 0 in ``eval()``.
        q_offset: Absolute position of the first query; an int, or one per sample (batch,).
            ``None`` puts the last query beside the last key: ``kv_offset + kv_len - q_len``.
        kv_offset: Absolute position of the first key; an int, or one per sample (batch,).
        backend: ``"native"``, ``"flex"`` (torch's FlexAttention, compiled for CUDA; not seen on a
            GPU yet), ``"sdpa"``, ``"reference"`` run or refuse; ``"auto"`` takes the first that
            does not refuse. ``explain`` tells which, and why not the others.

    Returns:
        (batch…, q_heads, q_len, value_dim) in the dtype of ``query``. A query that may attend
        nowhere gets zeros; so does every query where there is no key at all.

    Raises:
        ShapeError: Sizes or head counts that do not fit; nothing is broadcast but ``bias``.
        DtypeError: Different or unsuitable dtypes or devices.
        PatternError: A pattern that does not fit the call.
        BackendRefused: A named backend that will not take the call, or a slow path in strict mode
            (``headwise.strict``), with every reason.

    Example:
        >>> import torch, headwise as hw
        >>> q, kv = torch.ones(1, 4, 3, 8), torch.ones(1, 2, 3, 8)
        >>> hw.attend(q, kv, kv, hw.Causal()).shape
        torch.Size([1, 4, 3, 8])
    """
    extras = Extras(bias, scale, softcap, sinks, dropout_p, q_offset, kv_offset)
    call = settle("attend", query, key, value, pattern, extras, False)
    output = run("attend", call, backend).output
    return output if query.ndim == 4 else output.reshape(*query.shape[:-1], value.shape[-1])


def attend_with_lse(
    query: Query,
    key: Key,
    value: Value,
    pattern: Pattern | None = None,
    *,
    bias: Bias | None = None,
    scale: float | None = None,
    softcap: float | None = None,
    sinks: Sinks | None = None,
    dropout_p: float = 0.0,
    q_offset: Offset | None = None,
    kv_offset: Offset = 0,
    backend: str = "auto",
) -> Attended:
    """Do what ``attend`` does and return the log-sum-exp of the scores as well.

    Arguments and errors are those of ``attend``.

    Returns:
        ``Attended(output, lse)``: the output of ``attend``, and the natural log of each row's
        softmax denominator, (batch…, q_heads, q_len) in float32 or wider; ``-inf`` for a query
        that may attend nowhere.
    """
    extras = Extras(bias, scale, softcap, sinks, dropout_p, q_offset, kv_offset)
    call = settle("attend_with_lse", query, key, value, pattern, extras, True)
    output, lse = run("attend_with_lse", call, backend)
    assert lse is not None
    rows = query.shape[:-1]
    return Attended(output.reshape(*rows, value.shape[-1]), lse.reshape(rows))


def attention_weights(
    query: Query,
    key: Key,
    pattern: Pattern | None = None,
    *,
    bias: Bias | None = None,
    scale: float | None = None,
    softcap: float | None = None,
    sinks: Sinks | None = None,
    q_offset: Offset | None = None,
    kv_offset: Offset = 0,
    rows: Selection = None,
    heads: Selection = None,
) -> Weights:
    """Return the softmax weights that ``attend`` uses, for the rows and heads asked for.

    Memory and time follow what is asked for: ``rows × heads × kv_len``, not ``q_len × kv_len``.

    Args:
        query: As in ``attend``, like all arguments that are not named here.
        key: As in ``attend``.
        pattern: As in ``attend``.
        bias: As in ``attend``.
        scale: As in ``attend``.
        softcap: As in ``attend``.
        sinks: As in ``attend``; the weight of a sink is left out, so rows sum to less than 1.
        q_offset: As in ``attend``.
        kv_offset: As in ``attend``.
        rows: The queries wanted: indices, a slice or a boolean tensor (q_len,); ``None`` = all.
        heads: The query heads wanted, likewise; ``None`` = all.

    Returns:
        (batch…, heads, rows, kv_len) in the dtype of ``query``: zero at pairs that are not
        allowed, all zero for a query that may attend nowhere.

    Raises:
        IndexError: A row or head that does not exist; otherwise as ``attend``.
    """
    extras = Extras(bias, scale, softcap, sinks, 0.0, q_offset, kv_offset)
    call = settle("attention_weights", query, key, key, pattern, extras, False)
    found = _weights(
        call,
        pick("attention_weights", "rows", rows, query.shape[-2]),
        pick("attention_weights", "heads", heads, query.shape[-3]),
    )
    return found if query.ndim == 4 else found.reshape(*query.shape[:-3], *found.shape[1:])


@alone_after_fork
def _weights(call: Call, rows: list[int] | None, heads: list[int] | None) -> Tensor:
    part, allowed, which = cut(call, rows, heads)
    if weights.suits(part):
        return weights.run(part, allowed).to(call.query.dtype)
    return reference.weights(part, allowed, which).to(call.query.dtype)


def explain(
    query: Query,
    key: Key,
    value: Value,
    pattern: Pattern | None = None,
    *,
    bias: Bias | None = None,
    scale: float | None = None,
    softcap: float | None = None,
    sinks: Sinks | None = None,
    dropout_p: float = 0.0,
    q_offset: Offset | None = None,
    kv_offset: Offset = 0,
    backend: str = "auto",
) -> Plan:
    """Say how ``attend`` would run these inputs and what that costs, without running them.

    Arguments and errors are those of ``attend``, except that a named backend that refuses is
    reported in the plan and not raised.

    Returns:
        A ``Plan``: ``backend``, ``isa``, ``slow``, ``strict``, ``refusals``, ``live_fraction``,
        ``live_tiles``, ``computed_fraction``, ``flops``, ``bytes``, ``backward_flops``,
        ``backward_bytes``, ``complexity``, ``threads``, and ``expected_seconds``, for which the
        machine is measured once; ``str(plan)`` reads well.
    """
    extras = Extras(bias, scale, softcap, sinks, dropout_p, q_offset, kv_offset)
    call = settle("explain", query, key, value, pattern, extras, False)
    return explained(call, call, backend)


def explained(call: Call, witness: Call, backend: str) -> Plan:
    """Count what ``call`` costs; what backends say of ``witness``, they would say of it, too."""
    _known("explain", backend)
    reasons = {name: known.refusals(witness) for name, known in _BACKENDS.items()}
    strict = _strict.here
    if backend != "auto":
        return plan(call, None if reasons[backend] else backend, None, strict, reasons)
    chosen = next(name for name in _BACKENDS if not reasons[name])
    slow = chosen if is_slow(witness, chosen) else None
    return plan(call, None if strict and slow else chosen, slow, strict, reasons)


@alone_after_fork
def run(caller: str, call: Call, backend: str) -> Computed:
    """Compute a settled call on the backend that was asked for, or refuse."""
    _known(caller, backend)
    if backend == "auto":
        backend = next(name for name, known in _BACKENDS.items() if not known.refusals(call))
        if is_slow(call, backend) and _strict.here:
            fast = fast_backend(call)
            raise refuse_slow(caller, fast, backend, _BACKENDS[fast].refusals(call))
        if _native.kernels is None and not is_compiling():
            _native.warn_once()
    elif reasons := _BACKENDS[backend].refusals(call):
        lines = "\n".join(f"  {backend}: {reason}" for reason in reasons)
        raise BackendRefused(
            f"{caller}: the backend {backend!r} will not take this call\n{lines}\n"
            '  hint: backend="auto" takes one that can; explain(…) lists them all'
        )
    count(backend)
    return _BACKENDS[backend].run(call)


def _known(caller: str, backend: str) -> None:
    if backend != "auto" and backend not in _BACKENDS:
        names = ", ".join(repr(name) for name in ("auto", *_BACKENDS))
        raise ValueError(f"{caller}: unknown backend {backend!r}\n  hint: choose one of {names}")
