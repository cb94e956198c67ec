"""Says of every attention module of a model whether headwise serves it, and if not, why."""

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple
from weakref import WeakKeyDictionary

from torch import nn

from headwise.hf.families import attends_itself, named_attention, uses_interface

# What is to be said of the mask that a module met last; the attention function keeps it.
notes: "WeakKeyDictionary[nn.Module, str]" = WeakKeyDictionary()


class Row(NamedTuple):
    """One attention module.

    Attributes:
        name: Where it stands in the model.
        kind: Name of its class.
        served: Whether headwise computes its attention.
        reason: Why not, or what to know about it; may be empty.
    """

    name: str
    kind: str
    served: bool
    reason: str


@dataclass(frozen=True)
class Report:
    """The attention modules of a model, in the order of the model."""

    model: str
    rows: tuple[Row, ...]

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
        return "\n".join(lines)


def report(model: nn.Module) -> Report:
    """List every attention module of ``model``: served by headwise, or left, and why.

    A module counts as attention if its code asks transformers' attention interface or computes a
    softmax of products itself, if its class is named so and holds no other attention, or if it is
    torch's or headwise's own layer.

    Example:
        >>> import headwise as hw, torch
        >>> print(hw.hf.report(torch.nn.TransformerEncoderLayer(8, 2)))
        TransformerEncoderLayer: headwise serves 0 of 1 attention modules
          left    1 MultiheadAttention (self_attn): torch's own layer
    """
    rows = []
    configs: dict[str, object] = {}
    for name, module in model.named_modules():
        outer = configs.get(name.rpartition(".")[0]) if name else None
        configs[name] = getattr(module, "config", None) or outer
        row = _row(name or "the model", module, configs[name])
        if row is not None:
            rows.append(row)
    return Report(type(model).__name__, tuple(rows))


def _row(name: str, module: nn.Module, config: object) -> Row | None:
    kind: type = type(module)
    if kind.__module__.startswith("headwise."):
        known = kind.__name__ in ("MultiHeadAttention", "TorchMultiheadAttention")
        return Row(name, kind.__name__, True, "") if known else None
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
    if isinstance(module, nn.MultiheadAttention):
        return Row(name, kind.__name__, False, "torch's own layer")
    inner = any(named_attention(type(part)) for part in module.modules() if part is not module)
    if attends_itself(kind) or (named_attention(kind) and not inner):
        return Row(name, kind.__name__, False, "attends by its own code")
    return None
