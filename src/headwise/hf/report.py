"""Says of every attention module of a model whether headwise serves it, and if not, why.

And, in a line each, which of the layers around them are accelerated.
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
from headwise.hf.families import attends_itself, named_attention, uses_interface
from headwise.hf.linear_layers import lines_about_layers, own_class

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
    """

    model: str
    rows: tuple[Row, ...]
    layers: tuple[str, ...] = ()

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
        return "\n".join([*lines, *(f"  {line}" for line in self.layers)])


def report(model: nn.Module) -> Report:
    """List every attention module of ``model``: served by headwise, or left, and why.

    A module counts as attention if its code asks transformers' attention interface or computes a
    softmax of products itself, if its class is named so and holds no other attention, or if it is
    torch's or headwise's own layer. Before ``accelerate`` the report says what that would change,
    and afterwards what it did, which calls an accelerated module hands to the code that it
    replaces, and what was left.

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
    rows = []
    configs: dict[str, object] = {}
    for name, module in model.named_modules():
        outer = configs.get(name.rpartition(".")[0]) if name else None
        configs[name] = getattr(module, "config", None) or outer
        row = _row(name or "the model", module, configs[name])
        if row is not None:
            rows.append(row)
    lines = lines_about_layers(list(parts(model)))
    return Report(type(model).__name__, tuple(rows), tuple(lines))


def _row(name: str, module: nn.Module, config: object) -> Row | None:
    kind = own_class(module)
    if kind.__module__.startswith("headwise."):
        known = kind.__name__ in ("MultiHeadAttention", "TorchMultiheadAttention")
        return Row(name, kind.__name__, True, "") if known else None
    if is_fast(module):
        reason = notes.get(module, "") or _handed_over(type(module))
        return Row(name, kind.__name__, True, reason) if _is_attention(module, kind) else None
    if uses_interface(kind):
        used = getattr(config, "_attn_implementation", None)
        if used == "headwise":
            return Row(name, kind.__name__, True, notes.get(module, ""))
        return Row(
            name,
            kind.__name__,
            False,
            f"its attn_implementation is {used!r}; "
            "model.set_attn_implementation('headwise') changes that",
        )
    if not _is_attention(module, kind):
        return None
    torchs = isinstance(module, nn.MultiheadAttention)
    reason = "torch's own layer" if torchs else "attends by its own code"
    fast = fast_class_of(module)
    if fast is not None:
        refused = refusal_of(module, fast)
        reason += f", left: {refused}" if refused else "; hf.accelerate(model) takes it"
    return Row(name, kind.__name__, False, reason)


def _is_attention(module: nn.Module, kind: type) -> bool:
    inner = any(named_attention(own_class(part)) for part in module.modules() if part is not module)
    return attends_itself(kind) or (named_attention(kind) and not inner)


def _handed_over(fast: type) -> str:
    calls = getattr(fast, "hands_over", "")
    return f"{calls} run the code of its own class" if calls else ""
