"""How a layer uses each kind of ``headwise.positions``."""

from math import prod
from typing import TypeAlias

from torch import Tensor

from headwise.errors import CacheError, ShapeError
from headwise.nn.places import Offset, Places, per_sample
from headwise.ops.softmax.settle_bias import Bias
from headwise.positions import Alibi, Learned, RelativeBias, Rotary, Sinusoidal

Scheme: TypeAlias = Rotary | Alibi | RelativeBias | Sinusoidal | Learned


def check_scheme(scheme: object, *, num_heads: int, head_dim: int, widths: tuple[int, ...]) -> None:
    """Refuse what is no position scheme, or does not fit a layer of these sizes."""
    if scheme is None:
        return
    if not isinstance(scheme, Scheme):
        raise TypeError(
            "MultiHeadAttention: positions must be an object of headwise.positions, "
            f"got {scheme!r}\n"
            f"  hint: pass headwise.positions.Rotary({head_dim}), Alibi({num_heads}), "
            "RelativeBias, Sinusoidal or Learned"
        )
    if isinstance(scheme, Rotary):
        _agree(scheme, "head_dim", scheme.head_dim, head_dim)
    elif isinstance(scheme, Alibi | RelativeBias):
        _agree(scheme, "num_heads", scheme.num_heads, num_heads)
    else:
        _agree(scheme, "d_model", scheme.d_model, _one_width(scheme, widths))


def reads_padding(scheme: Scheme | None) -> bool:
    """Say whether a scheme tells apart where a sample begins, or how long it is.

    For the others it is the distance between two tokens that counts, whatever stands before them.
    """
    if isinstance(scheme, Rotary):
        return scheme.depends_on_length
    return is_added(scheme)


def is_added(scheme: Scheme | None) -> bool:
    """Say whether a scheme is added to the inputs of the layer."""
    return isinstance(scheme, Sinusoidal | Learned)


def added_to(scheme: Scheme | None, x: Tensor, offset: int | Tensor) -> Tensor:
    """Return inputs of the layer with the positions that are added there."""
    if not isinstance(scheme, Sinusoidal | Learned):
        return x
    found: Tensor = scheme(x, per_sample(offset, prod(x.shape[:-2])))
    return found


def turned(scheme: Scheme | None, q: Tensor, k: Tensor, places: Places) -> tuple[Tensor, Tensor]:
    """Return queries and keys, rotated where the positions are a rotation."""
    if not isinstance(scheme, Rotary):
        return q, k
    samples = prod(q.shape[:-3])
    at_query, at_key, length = (per_sample(place, samples) for place in places)
    return scheme(q, at_query, length=length), scheme(k, at_key, length=length)


def joined_bias(scheme: Scheme | None, bias: Bias | None) -> Bias | None:
    """Return the bias of a call: its own, or the layer's positions."""
    if not isinstance(scheme, Alibi | RelativeBias):
        return bias
    if bias is None:
        return scheme
    raise ValueError(
        f"MultiHeadAttention: bias= was given, and the layer's positions are a bias already: "
        f"{type(scheme).__name__}\n"
        "  hint: a call has one bias; make the layer without positions and pass the sum, "
        "spelled out"
    )


def check_growth(scheme: Scheme | None, length: Offset, new: int) -> None:
    """Refuse new tokens behind cached keys that were turned by other frequencies.

    Args:
        scheme: The layer's positions.
        length: Tokens of the whole sequence, for all samples or for each.
        new: How many of them the call brings.
    """
    if not isinstance(scheme, Rotary) or not scheme.depends_on_length:
        return
    for after in length.tolist() if isinstance(length, Tensor) else [length]:
        before = after - new
        if before > 0 and not scheme.turns_alike(before, after):
            raise CacheError(
                "MultiHeadAttention: frequencies depend on the length of the sequence, and the "
                f"{before} keys in the cache were turned for another length than {after}\n"
                "  hint: fix them with positions=rotary.at_length(…), the longest length"
            )


def _one_width(scheme: Sinusoidal | Learned, widths: tuple[int, ...]) -> int:
    if len(set(widths)) > 1:
        kind = type(scheme).__name__
        raise ShapeError(
            f"MultiHeadAttention: {kind} positions are added to inputs of one width, got "
            f"d_model={widths[0]} and kv_dim={widths[1]}\n"
            f"  hint: make the layer without positions, and add to each input a {kind} of its "
            "width before the call"
        )
    return widths[0]


def _agree(scheme: object, name: str, has: int, wanted: int) -> None:
    if has != wanted:
        kind = type(scheme).__name__
        sizes = f"{scheme.max_length}, {wanted}" if isinstance(scheme, Learned) else wanted
        raise ShapeError(
            f"MultiHeadAttention: positions must have the layer's {name}, got {kind} of {has} and "
            f"{wanted}\n  hint: make it with {kind}({sizes}, …)"
        )
