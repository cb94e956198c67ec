"""The self-attention that Longformer brought, as its own family and LED have it: one call of it."""

from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from headwise.hf.accelerated.linear import FastLinear, is_heard
from headwise.hf.accelerated.refusals import other_numbers
from headwise.hf.report import notes
from headwise.nn.chosen_tokens import ChosenTokens, chosen_tokens
from headwise.nn.projection import PLAIN_LINEAR
from headwise.ops import attend
from headwise.patterns import Documents, KeyMask, Lengths, Pattern, Window

# Up to this share of the width of a head, global tokens are so few that projecting keys and values
# for them costs more than attending to the hidden states themselves.
_FEW = 2

HANDED_OVER = (
    "calls for attention weights, in float64, off the CPU, or followed by a transform or torch.jit"
)
WHOLE_HANDED_OVER = (
    f"{HANDED_OVER}, with masks of other numbers than 0 and 1, or around layers that are left,"
)


class Kinds(NamedTuple):
    """What transformers tells its attention of the tokens, each thing twice.

    ``mask`` (batch, length) holds 0 for local tokens, negative numbers for padding and positive
    ones for global tokens; ``padding`` and ``chosen`` are booleans of the same size, and
    ``any_chosen`` says whether any of the latter is ``True``.
    """

    mask: Tensor | None
    padding: Tensor | None
    chosen: Tensor | None
    any_chosen: bool | None


@torch.compiler.disable(  # type: ignore[no-untyped-call, untyped-decorator]
    reason="how many tokens are global decides sizes"
)
def forward(
    module: Any, theirs: Callable[..., Any], x: Tensor, kinds: Kinds, weights: bool
) -> tuple[Tensor, ...]:
    """Attend for one module, or let transformers' own code do it where we must.

    Args:
        module: A ``LongformerSelfAttention`` or one with its members.
        theirs: Its own forward, which takes whole windows alone.
        x: Hidden states, (batch, length, width), of any length.
        kinds: What the tokens are.
        weights: Whether the attention weights are wanted.
    """
    left = why_left(x.device, x.dtype, weights) or _disagreement(x, kinds)
    if left is not None:
        notes[module] = f"the last call ran transformers' own code: {left}"
        found: tuple[Tensor, ...] = theirs(x, *kinds, weights)
        return found
    notes.pop(module, None)
    assert kinds.mask is not None
    return (_attended(module, x, kinds.mask),)


def why_left(device: torch.device, dtype: torch.dtype, weights: bool) -> str | None:
    """Say why a call must be left to transformers; ``None`` where it need not be."""
    if weights:
        return "it asked for attention weights, which have the shape of the window there"
    return other_numbers(device, dtype)


def kinds_of(
    real: Tensor | None, chosen: Tensor | None, given: Tensor, dtype: torch.dtype
) -> Kinds | None:
    """Say what the tokens of a model's call are; ``None`` where only transformers can tell.

    Args:
        real: ``attention_mask`` of the call: 1 = real, 0 = padding.
        chosen: ``global_attention_mask``: 1 = global, 0 = local.
        given: The tokens or what embeds them, (batch, length, …).
        dtype: What the model computes in.
    """
    size = given.shape[:2]
    if any(flags is not None and flags.shape != size for flags in (real, chosen)):
        return None
    ones = torch.ones(size, dtype=torch.long, device=given.device)
    merged = (ones if real is None else real) * (ones if chosen is None else chosen + 1)
    local, both = merged == 1, merged == 2
    if not bool((local | both | (merged == 0)).all()):
        return None
    numbers = torch.finfo(dtype)
    mask = torch.full(size, numbers.min, dtype=dtype, device=given.device)
    mask = mask.masked_fill(local, 0.0).masked_fill(both, numbers.max)
    return Kinds(mask, mask < 0, both, bool(both.any()))


def wanted(
    config: Any, weights: bool | None, states: bool | None, named: bool | None
) -> tuple[bool, bool, bool]:
    """Return whether a model's call asks for weights, hidden states, and a result with names."""
    return (
        config.output_attentions if weights is None else weights,
        config.output_hidden_states if states is None else states,
        config.return_dict if named is None else named,
    )


def _disagreement(x: Tensor, kinds: Kinds) -> str | None:
    """Say what is wrong where a call says two things of a token, or none."""
    if kinds.mask is None or kinds.padding is None or kinds.mask.shape != x.shape[:2]:
        return "it says not of every token whether it is padding"
    alike = torch.equal(kinds.mask < 0, kinds.padding)
    if kinds.any_chosen:
        alike = alike and kinds.chosen is not None and torch.equal(kinds.mask > 0, kinds.chosen)
    else:
        alike = alike and not bool((kinds.mask > 0).any())
    return None if alike else "its arguments disagree on which tokens are padding or global"


def _attended(module: Any, x: Tensor, mask: Tensor) -> Tensor:
    """Return what every head gives every token, (batch, length, width); nothing to padding."""
    real = None if bool((mask >= 0).all()) else mask >= 0
    chosen = chosen_tokens(mask > 0, real, x)
    dropout_p = float(module.dropout) if module.training else 0.0
    q, k, v = (_heads(module, made(x)) for made in (module.query, module.key, module.value))
    pattern = _local(module.one_sided_attn_window_size, chosen, real)
    local = attend(q, k, v, pattern, dropout_p=dropout_p).transpose(1, 2)
    if chosen is not None:
        places, slots = (chosen.sample, chosen.place), (chosen.sample, chosen.slot)
        asking = x.new_zeros(len(x), chosen.slots, x.shape[-1]).index_put(slots, x[places])
        found = _of_global(module, asking, x, _seen_by_global(chosen, real), dropout_p)
        local = local.index_put(places, found[slots])
    output: Tensor = local.flatten(2)
    return output


def _local(side: int, chosen: ChosenTokens | None, real: Tensor | None) -> Pattern:
    """Say what real local tokens see; the rows of all others stay empty."""
    seen: Pattern = Window(side, side)
    if chosen is None:
        return seen if real is None else seen & Documents(real.long() - 1)
    local = ~chosen.flags if real is None else real & ~chosen.flags
    keys = torch.ones_like(local) if real is None else real
    return (seen | KeyMask(chosen.flags)) & Documents(local.long() - 1, keys.long() - 1)


def _seen_by_global(chosen: ChosenTokens, real: Tensor | None) -> Pattern:
    """Say what global tokens see; a sample that has fewer leaves its last rows empty."""
    seen: Pattern = Lengths(chosen.flags.shape[1], chosen.flags.sum(1))
    return seen if real is None else seen & KeyMask(real)


def _of_global(
    module: Any, asking: Tensor, x: Tensor, pattern: Pattern, dropout_p: float
) -> Tensor:
    """Return what the heads give global tokens, (batch, tokens, heads, dim).

    A score ``q · (W x + b)`` is ``(W^T q) · x`` and a number that is the same for every key, and a
    mean of ``W x + b`` is ``W`` of a mean, and ``b``. So few tokens attend to the hidden states,
    which are one head of keys and values for all of theirs.
    """
    q = _heads(module, module.query_global(asking))
    if not _few(module, asking, x, dropout_p):
        k, v = (_heads(module, made(x)) for made in (module.key_global, module.value_global))
        seen: Tensor = attend(q, k, v, pattern, q_offset=0, dropout_p=dropout_p)
        return seen.transpose(1, 2)
    sizes = (module.num_heads, module.head_dim)
    to_k, to_v = (
        made.weight.unflatten(0, sizes) for made in (module.key_global, module.value_global)
    )
    hidden = x.unsqueeze(1)
    mean = attend(q @ to_k, hidden, hidden, pattern, scale=module.head_dim**-0.5, q_offset=0)
    # The bias of the keys has no part in the result, and a gradient all the same: zeros.
    unused = module.key_global.bias - module.key_global.bias
    bias = (module.value_global.bias + unused).unflatten(0, sizes)
    found: Tensor = (mean @ to_v.mT).transpose(1, 2) + bias
    return found


def _few(module: Any, asking: Tensor, x: Tensor, dropout_p: float) -> bool:
    """Say whether global tokens attend to the hidden states, without keys and values."""
    return (
        asking.shape[1] * _FEW <= module.head_dim
        and not dropout_p
        and not torch.is_autocast_enabled(x.device.type)
        and all(_plain(made, x) for made in (module.key_global, module.value_global))
    )


def _plain(module: nn.Module, x: Tensor) -> bool:
    """Say whether a projection is its weight and bias and nothing else."""
    if type(module) not in (*PLAIN_LINEAR, FastLinear) or "forward" in vars(module):
        return False
    return not is_heard(module) and module.weight.dtype == x.dtype


def _heads(module: Any, x: Tensor) -> Tensor:
    """Return (batch, length, width) as (batch, heads, length, dim)."""
    split: Tensor = x.view(*x.shape[:2], module.num_heads, module.head_dim)
    return split.transpose(1, 2)
