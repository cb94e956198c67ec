"""The weights that linear attention amounts to, for those who want to look at them."""

from torch import Tensor

from headwise._dims import Key, Query, Weights
from headwise._forks import alone_after_fork
from headwise.ops.linear import reference
from headwise.ops.linear.settle import Asked, settle
from headwise.ops.softmax.selection import Selection, pick

_CALLER = "linear_attention_weights"


def linear_attention_weights(  # noqa: PLR0913 (those of linear_attend)
    query: Query,
    key: Key,
    *,
    feature_map: object,
    causal: bool = False,
    kv_mask: Tensor | None = None,
    decay: float | Tensor | None = None,
    normalize: bool = True,
    rows: Selection = None,
    heads: Selection = None,
) -> Weights:
    """Return the weights that ``linear_attend`` gives to values, which it never spells out.

    Memory and time follow what is asked for: ``rows × heads × kv_len``.

    Args:
        query: As in ``linear_attend``, like all arguments that are not named here.
        key: As in ``linear_attend``.
        feature_map: As in ``linear_attend``.
        causal: As in ``linear_attend``.
        kv_mask: As in ``linear_attend``.
        decay: As in ``linear_attend``.
        normalize: As in ``linear_attend``; rows then sum to 1, or to 0 where nothing is seen.
        rows: The queries wanted: indices, a slice or a boolean tensor (q_len,); ``None`` = all.
        heads: The query heads wanted, likewise; ``None`` = all.

    Returns:
        (batch…, heads, rows, kv_len) in the dtype of ``query``: zero at pairs that do not meet.

    Raises:
        IndexError: A row or head that does not exist; otherwise as ``linear_attend``.
    """
    asked = Asked(feature_map, causal, kv_mask, decay, normalize, None)
    call = settle(_CALLER, query, key, key, asked)
    which = (("rows", rows, query.shape[-2]), ("heads", heads, query.shape[-3]))
    chosen = [pick(_CALLER, *one) for one in which]
    found = alone_after_fork(reference.weights)(call, *chosen).to(query.dtype)
    return found if query.ndim == 4 else found.reshape(*query.shape[:-3], *found.shape[1:])
