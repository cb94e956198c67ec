"""Who would compute a call of torch's ``scaled_dot_product_attention``, and why."""

from typing import NamedTuple

from torch import Tensor

from headwise.ops import Plan
from headwise.ops import explain as explain_attend
from headwise.patch.given import Given, as_computed
from headwise.patch.refusals import refusals
from headwise.patch.translate import translate


class Route(NamedTuple):
    """Who computes one call of ``scaled_dot_product_attention`` while the patch is on.

    ``refusals`` holds every reason why torch computes it itself; where there is none, ``plan`` is
    what ``headwise.explain`` says of it.
    """

    refusals: tuple[str, ...]
    plan: Plan | None

    @property
    def taken(self) -> bool:
        """Whether ``headwise.attend`` computes the call."""
        return not self.refusals

    def __str__(self) -> str:
        if self.plan is not None:
            return f"headwise.attend\n{self.plan}"
        return "\n".join(["torch's own, because:", *(f"  {reason}" for reason in self.refusals)])


def explain(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attn_mask: Tensor | None = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    *,
    scale: float | None = None,
    enable_gqa: bool = False,
) -> Route:
    """Say who would compute a call while ``sdpa`` is on, without running it.

    Args:
        query: As in ``torch.nn.functional.scaled_dot_product_attention``, like all that follow.
        key: Likewise.
        value: Likewise.
        attn_mask: Likewise.
        dropout_p: Likewise.
        is_causal: Likewise.
        scale: Likewise.
        enable_gqa: Likewise.

    Returns:
        ``Route(refusals, plan)`` with the property ``taken``; ``str()`` of it reads well. It
        speaks of this place and moment: of ``sdpa_kernel``, autocast and transforms, too.

    Example:
        >>> import torch, headwise as hw
        >>> q = torch.ones(1, 2, 3, 8)
        >>> hw.patch.explain(q, q, q, is_causal=True).taken
        True
        >>> print(hw.patch.explain(q.double(), q.double(), q.double()))
        torch's own, because:
          the dtype is torch.float64
    """
    asked = Given(query, key, value, attn_mask, dropout_p, is_causal, scale, enable_gqa)
    given = as_computed(asked)
    if reasons := refusals(given):
        return Route(tuple(reasons), None)
    call = translate(given)
    plan = explain_attend(
        *call[:4], bias=call.bias, scale=given.scale, dropout_p=given.dropout_p, q_offset=0
    )
    return Route((), plan)
