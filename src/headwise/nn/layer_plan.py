"""What a call of a layer would cost: its attention, and each of its projections."""

from dataclasses import dataclass

from torch import Tensor, nn

from headwise.nn.mechanism import AttentionCall, Cost, Mechanism
from headwise.nn.projection import explain_projection
from headwise.ops import Plan, explain
from headwise.ops.projection import Projection
from headwise.ops.softmax.plan import scaled

_SAID = {
    "rows": "headwise's kernel for few rows",
    "onednn": "oneDNN",
    "torch": "torch.nn.functional.linear",
}

# Of which refusals a reader wants to know, by what runs.
_WORTH_SAYING = {"rows": (), "onednn": ("packed",), "torch": ("rows", "onednn")}


@dataclass(frozen=True)
class LayerPlan:
    """How a layer would run a call.

    Attributes:
        attention: The plan of its attention; of another mechanism, what it says it takes.
        projections: For every projection by name, on what it runs and why not otherwise.
        packed_bytes: What packed copies of its weights take now, in bytes.
    """

    attention: Plan | Cost
    projections: dict[str, Projection]
    packed_bytes: int

    def __str__(self) -> str:
        lines = []
        if isinstance(self.attention, Cost):
            flops, moved, formula = self.attention
            takes = f"{scaled(flops, 'FLOP')}, {scaled(moved, 'B')}"
            lines.append(f"mechanism   {formula}; {takes} a sample")
        else:
            lines.append(str(self.attention))
        for found, names in self._alike():
            packed = ", weights packed" if found.packed else ""
            who = "projections" if len(names) == len(self.projections) else " ".join(names)
            lines.append(f"{who:<12}{_SAID[found.library]}{packed}")
            lines += [
                f"{f'not {way}':<12}{reason}"
                for way, reasons in found.refusals.items()
                for reason in reasons
                if way in _WORTH_SAYING[found.library]
            ]
        lines.append(f"packed      {scaled(self.packed_bytes, 'B')} of copies of weights")
        return "\n".join(lines)

    def _alike(self) -> list[tuple[Projection, list[str]]]:
        """Gather the projections that run in the same way."""
        groups: list[tuple[Projection, list[str]]] = []
        for name, found in self.projections.items():
            plain = found._replace(packed_bytes=0)
            names = next((names for known, names in groups if known == plain), None)
            if names is None:
                groups.append((plain, [name]))
            else:
                names.append(name)
        return groups


def plan_layer(
    call: AttentionCall,
    mechanism: Mechanism | None,
    projections: dict[str, tuple[nn.Module, Tensor]],
) -> LayerPlan:
    """Gather the plan of a call, from tensors that stand for those it would have.

    Args:
        call: What the mechanism would be asked.
        mechanism: The layer's; ``None`` = softmax attention.
        projections: Each projection and its input.
    """
    found = {name: explain_projection(layer, x) for name, (layer, x) in projections.items()}
    return LayerPlan(
        _attention(call, mechanism), found, sum(each.packed_bytes for each in found.values())
    )


def _attention(call: AttentionCall, mechanism: Mechanism | None) -> Plan | Cost:
    if mechanism is not None:
        return mechanism.cost(
            call.query.shape[-2],
            call.key.shape[-2],
            q_heads=call.query.shape[-3],
            kv_heads=call.key.shape[-3],
            head_dim=call.query.shape[-1],
            value_dim=call.value.shape[-1],
        )
    return explain(call.query, call.key, call.value, call.allowed, **call.keywords())
