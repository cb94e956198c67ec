"""What a call of some sizes would cost, without its tensors."""

import torch
from torch import Tensor

from headwise.ops.softmax.api import explained
from headwise.ops.softmax.plan import Plan
from headwise.ops.softmax.settle import Extras, settle
from headwise.patterns.base import Pattern


def explain_sizes(  # noqa: PLR0913
    batch: int,
    q_heads: int,
    kv_heads: int,
    q_len: int,
    kv_len: int,
    head_dim: int,
    value_dim: int | None = None,
    *,
    pattern: Pattern | None = None,
    dtype: torch.dtype = torch.float32,
    backward: bool = False,
    backend: str = "auto",
) -> Plan:
    """Say how ``attend`` would run inputs of these sizes on the CPU, and what that costs.

    What ``explain`` says of tensors, without allocating them. Their numbers are taken to be of
    ordinary size.

    Args:
        batch: Samples.
        q_heads: Query heads.
        kv_heads: Key/value heads; must divide ``q_heads``.
        q_len: Queries; the last one stands beside the last key.
        kv_len: Keys.
        head_dim: Width of a query and a key.
        value_dim: Width of a value; ``None`` = ``head_dim``.
        pattern: Which pairs may meet; ``None`` = all.
        dtype: Element type.
        backward: Count the gradients of query, key and value as well.
        backend: As in ``attend``.

    Returns:
        A ``Plan``, as ``explain`` returns it.

    Raises:
        ShapeError: Head counts that do not divide.
        PatternError: A pattern that does not fit the sizes.

    Example:
        >>> from headwise.patterns import parse
        >>> pattern = parse("causal & window(511, 0)")
        >>> plan = explain_sizes(1, 12, 12, 65_536, 65_536, 64, pattern=pattern)
        >>> f"{plan.live_fraction:.2%}", plan.complexity
        ('0.78%', 'time O(q_len · 512 · head_dim), memory O(q_len + kv_len)')
    """
    number = torch.zeros((), dtype=dtype, device="cpu").requires_grad_(backward)

    def stand_in(heads: int, length: int, width: int | None) -> Tensor:
        return number.expand(batch, heads, length, head_dim if width is None else width)

    extras = Extras(None, None, None, None, 0.0, None, 0)
    tensors = (
        stand_in(q_heads, q_len, None),
        stand_in(kv_heads, kv_len, None),
        stand_in(kv_heads, kv_len, value_dim),
    )
    with torch.set_grad_enabled(backward):
        call = settle("explain", *tensors, pattern, extras, False)
        # One query and key speak for all; looking at all numbers would spell the tensors out.
        query, key, value = (tensor[:1, :, :1] for tensor in tensors)
        return explained(call, call._replace(query=query, key=key, value=value), backend)
