"""Softmax attention through torch's FlexAttention, compiled for CUDA.

Its results are tested on the CPU, through the same code; on a GPU it has not been seen yet.
"""

from collections.abc import Callable
from functools import cache, lru_cache
from typing import TYPE_CHECKING, Any, TypeAlias

import torch
from torch import Tensor

from headwise.ops.softmax.call import Call, Computed
from headwise.patterns.base import Pattern
from headwise.patterns.flex_leaves import Reader, reader
from headwise.patterns.grid import Grid
from headwise.patterns.to_flex import block_mask

if TYPE_CHECKING:
    from torch.nn.attention.flex_attention import BlockMask

Kernel: TypeAlias = Callable[..., Any]
ScoreMod: TypeAlias = Callable[[Tensor, Tensor, Tensor, Tensor, Tensor], Tensor]

# Every pattern, dtype and way of adding to the scores is compiled on its own.
_KINDS_OF_CALLS = 512

_SMALL = 1 << 20  # bytes of a pattern whose block mask is kept


def run(call: Call) -> Computed:
    """Return output and log-sum-exp; the call must have passed ``refusals.flex``."""
    return through(compiled(), call)


def through(kernel: Kernel, call: Call) -> Computed:
    """Run a call through ``kernel``, which takes the arguments of torch's ``flex_attention``."""
    from torch.nn.attention.flex_attention import AuxRequest

    mask = None
    if call.pattern is not None:
        mask = _block_mask(call.pattern, call.places, call.query.device)
    found = kernel(
        call.query,
        call.key,
        call.value,
        score_mod=_score_mod(call),
        block_mask=mask,
        scale=call.scale,
        enable_gqa=call.group > 1,
        return_aux=AuxRequest(lse=True) if call.want_lse else None,
    )
    return Computed(found[0], found[1].lse) if call.want_lse else Computed(found, None)


@cache
def compiled(compiler: str = "inductor") -> Kernel:
    """Return torch's ``flex_attention`` as a compiler makes it, anew for every kind of call."""
    from torch._dynamo import config
    from torch.nn.attention.flex_attention import flex_attention

    # Without a full graph it would go on uncompiled, with every score spelled out.
    built = torch.compile(flex_attention, backend=compiler, fullgraph=True)
    settings = {
        "recompile_limit": _KINDS_OF_CALLS,
        "accumulated_recompile_limit": _KINDS_OF_CALLS,
        # Inductor cannot carry a scale or a softcap that changes.
        "specialize_float": True,
    }

    def kernel(*args: Any, **kwargs: Any) -> Any:  # noqa: ANN401
        with config.patch(settings):
            return built(*args, **kwargs)

    return kernel


def _block_mask(pattern: Pattern, places: tuple[Grid, ...], device: torch.device) -> "BlockMask":
    # Layers and heads share small patterns; large ones are seldom met twice.
    make = _kept if pattern.nbytes < _SMALL else block_mask
    # A mask first met in inference serves training, too.
    with torch.inference_mode(False):
        return make(pattern, places, (None, None), device, 128)


@lru_cache(maxsize=64)
def _kept(
    pattern: Pattern,
    places: tuple[Grid, ...],
    sizes: tuple[None, None],
    device: torch.device,
    block: int,
) -> "BlockMask":
    return block_mask(pattern, places, sizes, device, block)


def _score_mod(call: Call) -> ScoreMod | None:
    """Return what softcap and bias make of a score that is scaled already."""
    cap, added = call.softcap, _added(call)
    if cap is None:
        return added
    if added is None:
        return lambda score, b, h, q, k: cap * torch.tanh(score / cap)
    return lambda score, b, h, q, k: added(cap * torch.tanh(score / cap), b, h, q, k)


def _added(call: Call) -> ScoreMod | None:
    device = call.query.device
    if call.bias is not None:
        bias = reader(call.bias.detach(), device)
        return lambda score, b, h, q, k: score + bias(b, h, q, k)
    if call.slopes is not None:
        slope, gap = reader(call.slopes, device), _gaps(call.places, 0, device)
        return lambda score, b, h, q, k: score - slope(h) * gap(b, q, k).abs()
    if call.distances is not None:
        table = reader(call.distances.table.detach(), device)
        column = _gaps(call.places, call.distances.lowest, device)
        return lambda score, b, h, q, k: score + table(h, column(b, q, k))
    return None


def _gaps(places: tuple[Grid, ...], lowest: int, device: torch.device) -> Reader:
    """Return what tells how far a query stands behind a key, counted from ``lowest``."""
    shifts = [place.q_offset - place.kv_offset - lowest for place in places]
    start = reader(torch.tensor(shifts, dtype=torch.int64, device="cpu"), device)
    return lambda b, q, k: q - k + start(b)
