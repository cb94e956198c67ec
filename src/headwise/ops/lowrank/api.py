"""Low-rank attention for users: checks, defaults, the projections, softmax attention."""

from torch import Tensor

from headwise._dims import Key, Output, Query, Value
from headwise._forks import alone_after_fork
from headwise.ops.lowrank import reference
from headwise.ops.lowrank.call import LowRankCall
from headwise.ops.lowrank.padding import cleared
from headwise.ops.lowrank.project import project_length
from headwise.ops.lowrank.settle import settle
from headwise.ops.softmax.api import run
from headwise.ops.softmax.settle import Extras
from headwise.ops.softmax.settle import settle as settle_softmax

_CALLER = "lowrank_attend"


def lowrank_attend(
    query: Query,
    key: Key,
    value: Value,
    key_projection: Tensor,
    value_projection: Tensor,
    *,
    kv_mask: Tensor | None = None,
    scale: float | None = None,
    backend: str = "auto",
) -> Output:
    """Attend to ``rank`` mixtures of the keys instead of to all of them.

    Computes ``softmax(scale * query @ (E @ key)^T) @ (F @ value)`` per head, where ``E`` is
    ``key_projection`` and ``F`` is ``value_projection`` ("Linformer", Wang et al., 2020). Time and
    memory grow with ``length · rank``. Query head ``h`` reads key/value head
    ``h // (q_heads // kv_heads)``, which is not copied.

    Every projected key holds something of all tokens. So there is no causal form, no pattern and
    no bias between pairs of tokens: ``linear_attend(…, causal=True)`` and ``attend`` with
    ``Causal()`` and a ``Window`` are cheap and causal.

    Args:
        query: What is looked for, (batch…, q_heads, q_len, head_dim), any strides. Three
            dimensions are one sample; further leading dimensions are allowed.
        key: What is offered, (batch…, kv_heads, kv_len, head_dim).
        value: What is returned for each key; its last dimension may differ from the key's.
        key_projection: (rank, length) for all heads, or (kv_heads, rank, length), in the dtype of
            ``key``. Inputs shorter than ``length`` use its first ``kv_len`` columns.
        value_projection: Likewise, with the same rank.
        kv_mask: (batch, kv_len), ``True`` = real token. Padded keys and values are set to 0 before
            the projection, so padding at the end of a sample changes nothing and NaN there stays
            out. The ``rank`` projected keys all stay in the softmax, also those that a short
            sample leaves small: their scores are near 0, not hidden.
        scale: Multiplier of the scores. ``None`` means ``head_dim ** -0.5``.
        backend: What attends to the projected keys, as in ``attend``; ``"reference"`` also
            projects by the definition.

    Returns:
        (batch…, q_heads, q_len, value_dim) in the dtype of ``query``; zeros for a sample without
        a real key.

    Raises:
        ShapeError: Sizes or head counts that do not fit, or more keys than columns.
        DtypeError: Different or unsuitable dtypes or devices.
        PatternError: A ``kv_mask`` of another shape.
        BackendRefused: A named backend that will not take the call, as in ``attend``.

    Example:
        >>> import torch, headwise as hw
        >>> q, kv = torch.randn(2, 4, 100, 8), torch.randn(2, 2, 100, 8)
        >>> shared = torch.randn(16, 128) / 128**0.5
        >>> hw.lowrank_attend(q, kv, kv, shared, shared).shape
        torch.Size([2, 4, 100, 8])
    """
    call = settle(_CALLER, (query, key, value), (key_projection, value_projection), kv_mask, scale)
    output = _computed(call, backend)
    return output if query.ndim == 4 else output.reshape(*query.shape[:-1], value.shape[-1])


@alone_after_fork
def _computed(call: LowRankCall, backend: str) -> Tensor:
    if backend == "reference":
        return reference.run(call)
    key, value = cleared(call.key, call.value, call.padded)
    keys = project_length(call.key_projection, key)
    values = project_length(call.value_projection, value)
    extras = Extras(None, call.scale, None, None, 0.0, None, 0)
    attended = settle_softmax(_CALLER, call.query, keys, values, None, extras, False)
    return run(_CALLER, attended, backend).output
