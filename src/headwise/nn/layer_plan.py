"""What a call of a layer would cost: its attention, and each of its projections."""

from dataclasses import dataclass, field

from torch import Tensor, nn

from headwise.nn.mechanism import AttentionCall, ChosenForm, Cost, Mechanism
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
        forms: What each form of a mechanism takes that has several (a method ``costs``), by name.
        form: Which of them would run the call (a method ``form``), and why not a faster one.
    """

    attention: Plan | Cost
    projections: dict[str, Projection]
    packed_bytes: int
    forms: dict[str, Cost] = field(default_factory=dict)
    form: ChosenForm | None = None

    def __str__(self) -> str:
        lines = []
        if isinstance(self.attention, Cost):
            lines.append(f"mechanism   {_worded(self.attention)} a sample")
            lines += [f"  {name:<10}{_worded(cost)}" for name, cost in self.forms.items()]
            lines += _chosen(self.form)
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
    packed = sum(each.packed_bytes for each in found.values())
    if mechanism is None:
        taken = explain(call.query, call.key, call.value, call.allowed, **call.keywords())
        return LayerPlan(taken, found, packed)
    sizes = _sizes(call)
    costs = getattr(mechanism, "costs", None)
    forms = costs(**sizes) if callable(costs) else {}
    choose = getattr(mechanism, "form", None)
    if not forms or not callable(choose):
        return LayerPlan(mechanism.cost(**sizes), found, packed, forms)
    form = choose(call)
    return LayerPlan(forms[form.cost], found, packed, forms, form)


def _sizes(call: AttentionCall) -> dict[str, int]:
    (q_heads, q_len, head_dim), (kv_heads, kv_len, value_dim) = (
        tensor.shape[-3:] for tensor in (call.query, call.value)
    )
    return {
        "q_len": q_len,
        "kv_len": kv_len,
        "q_heads": q_heads,
        "kv_heads": kv_heads,
        "head_dim": head_dim,
        "value_dim": value_dim,
    }


def _chosen(form: ChosenForm | None) -> list[str]:
    if form is None:
        return []
    lines = [f"{'form':<12}{form.name}"]
    for way, reasons in form.refusals.items():
        lines += [f"{f'not {way}':<12}{reason}" for reason in reasons]
    return lines


def _worded(cost: Cost) -> str:
    return f"{cost.formula}; {scaled(cost.flops, 'FLOP')}, {scaled(cost.bytes, 'B')}"
