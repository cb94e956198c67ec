"""Says of every attention module of a model whether headwise serves it, and if not, why.

And, in a line each, which of the layers around them are accelerated, and what leaves padding out.
"""

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple
from weakref import WeakKeyDictionary

from torch import nn

from headwise.hf.accelerate import parts
from headwise.hf.accelerated.families import fast_class_of
from headwise.hf.accelerated.swap import is_fast, refusal_of
from headwise.hf.conversion.converted import Converted, about_conversion, is_waiting
from headwise.hf.families import attends_itself, named_attention, uses_interface
from headwise.hf.implementation import kept_configs
from headwise.hf.linear_layers import lines_about_layers, own_class
from headwise.hf.padding_lines import lines_about_padding
from headwise.hf.requirement import require_module
from headwise.nn import MultiHeadAttention, TorchMultiheadAttention

# What is to be said of the mask that a module met last; the attention function keeps it.
notes: "WeakKeyDictionary[nn.Module, str]" = WeakKeyDictionary()


class Row(NamedTuple):
    """One attention module.

    Attributes:
        name: Where it stands in the model.
        kind: Name of its class, that of the other library where it is accelerated.
        served: Whether headwise computes its attention.
        reason: Why not, or what to know about it; may be empty.
    """

    name: str
    kind: str
    served: bool
    reason: str


@dataclass(frozen=True)
class Report:
    """The attention modules of a model, in the order of the model.

    Attributes:
        model: Name of its class.
        rows: One for each attention module; the report counts and runs over them.
        layers: Lines about linear layers, and about others that have a faster class.
        padding: Lines about layers in stacks, whether padding goes through them, and why.
    """

    model: str
    rows: tuple[Row, ...]
    layers: tuple[str, ...] = ()
    padding: tuple[str, ...] = ()

    def __iter__(self) -> Iterator[Row]:
        return iter(self.rows)

    def __len__(self) -> int:
        return len(self.rows)

    def __str__(self) -> str:
        served = sum(row.served for row in self.rows)
        lines = [f"{self.model}: headwise serves {served} of {len(self.rows)} attention modules"]
        alike = Counter((row.kind, row.served, row.reason) for row in self.rows)
        for (kind, is_served, reason), count in alike.items():
            names = [row.name for row in self.rows if row[1:] == (kind, is_served, reason)]
            where = names[0] if count == 1 else f"{names[0]} … {names[-1]}"
            state = "served" if is_served else "left  "
            lines.append(f"  {state}  {count} {kind} ({where})" + (f": {reason}" if reason else ""))
        return "\n".join([*lines, *(f"  {line}" for line in (*self.layers, *self.padding))])


def report(model: nn.Module) -> Report:
    """List every attention module of ``model``: served by headwise, or left, and why.

    A module counts as attention if its code asks transformers' attention interface or computes a
    softmax of products itself, if its class is named so and holds no other attention, or if it is
    torch's or headwise's own layer. Before ``accelerate`` the report says what that would change,
    and afterwards what it did, which calls an accelerated module hands to the code that it
    replaces, and what was left. For layers in stacks it says whether padding goes through them: why
    ``accelerate(model, unpad=True)`` cannot leave it out, or which calls it does so in.

    Raises:
        TypeError: Something that is no module.

    Example:
        >>> import headwise as hw, torch
        >>> layer = torch.nn.TransformerEncoderLayer(8, 2)
        >>> print(hw.hf.report(layer))
        TransformerEncoderLayer: headwise serves 0 of 1 attention modules
          left    1 MultiheadAttention (self_attn): torch's own layer; hf.accelerate(model) takes it
          linear layers: 2 left: hf.accelerate(model) takes them
        >>> print(hw.hf.report(hw.hf.accelerate(layer)))
        TransformerEncoderLayer: headwise serves 1 of 1 attention modules
          served  1 MultiheadAttention (self_attn)
          linear layers: 2 accelerated
    """
    require_module("report", model)
    rows = []
    configs: dict[str, object] = {}
    kept = kept_configs(model)
    inside: set[str] = set()
    for name, module in model.named_modules():
        if isinstance(module, Converted) or name.rpartition(".")[0] in inside:
            inside.add(name)
            continue
        outer = configs.get(name.rpartition(".")[0]) if name else None
        configs[name] = getattr(module, "config", None) or outer
        row = _row(name or "the model", module, configs[name], id(configs[name]) in kept)
        if row is not None:
            rows.append(row)
    lines = lines_about_layers(list(parts(model)))
    padding = lines_about_padding(model, notes)
    return Report(type(model).__name__, tuple(rows), tuple(lines), tuple(padding))


def _row(name: str, module: nn.Module, config: object, is_kept: bool) -> Row | None:
    kind = own_class(module)
    if kind.__module__.startswith("headwise."):
        known = issubclass(kind, MultiHeadAttention | TorchMultiheadAttention)
        return Row(name, kind.__name__, True, "") if known else None
    if is_fast(module):
        reason = notes.get(module, "") or _handed_over(type(module))
        return Row(name, kind.__name__, True, reason) if _is_attention(module, kind) else None
    if uses_interface(kind):
        return _asking(name, module, config, is_kept)
    if not _is_attention(module, kind):
        return None
    torchs = isinstance(module, nn.MultiheadAttention)
    reason = "torch's own layer" if torchs else "attends by its own code"
    fast = fast_class_of(module)
    if fast is not None:
        refused = refusal_of(module, fast)
        reason += f", left: {refused}" if refused else "; hf.accelerate(model) takes it"
    return Row(name, kind.__name__, False, reason)


def _asking(name: str, module: nn.Module, config: object, is_kept: bool) -> Row:
    """Return the row of a module that asks transformers' interface."""
    kind = own_class(module)
    used = getattr(config, "_attn_implementation", None)
    about = about_conversion(module)
    if is_waiting(module):
        return Row(name, kind.__name__, False, about)
    if used == "headwise":
        said = (about, notes.get(module, ""))
        return Row(name, kind.__name__, True, "; ".join(filter(None, said)))
    way = "; model.set_attn_implementation('headwise') changes that"
    if is_kept:
        way = ", and other parts of its model attend by their own code; hf.accelerate(model) "
        way += "takes it where it can take all of them"
    state = f"its attn_implementation is {used!r}{way}"
    return Row(name, kind.__name__, False, f"{about}, but {state}" if about else state)


def _is_attention(module: nn.Module, kind: type) -> bool:
    inner = any(named_attention(own_class(part)) for part in module.modules() if part is not module)
    return attends_itself(kind) or (named_attention(kind) and not inner)


def _handed_over(fast: type) -> str:
    calls = getattr(fast, "hands_over", "")
    return f"{calls} run the code of its own class" if calls else ""
