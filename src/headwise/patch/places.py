"""The places in torch that hold ``scaled_dot_product_attention``."""

import torch
from torch.jit import _builtins
from torch.nn import functional

from headwise.patch.stand_in import scaled_dot_product_attention, torchs

_NAME = "scaled_dot_product_attention"
_PLACES = (functional, torch._C._nn)


def check_places() -> None:
    """Refuse to replace what somebody else has put there."""
    for place in _PLACES:
        found = getattr(place, _NAME)
        if found is not torchs and found is not scaled_dot_product_attention:
            raise RuntimeError(
                f"patch.sdpa: {place.__name__}.{_NAME} is not torch's own function but {found!r}\n"
                "  hint: take that patch back first; this one may then go under it"
            )


def fill_places(on: bool) -> None:
    """Put the stand-in there, or torch's function back; what others put over it stays."""
    if on:
        # torch.jit.script looks functions up in a table made of these places at its first use.
        # A script calls torch's operator, whichever of the two functions it names.
        table = _builtins._get_builtin_table()  # type: ignore[no-untyped-call]
        table[id(scaled_dot_product_attention)] = f"aten::{_NAME}"
    old, new = torchs, scaled_dot_product_attention
    if not on:
        old, new = new, old
    for place in _PLACES:
        if getattr(place, _NAME) is old:
            setattr(place, _NAME, new)
