"""Softmax attention through the compiled kernels."""

from torch import Tensor

from headwise.ops.softmax import in_parts, launch, operators
from headwise.ops.softmax.call import Call, Computed
from headwise.ops.softmax.differentiable import Attend, AttendPlainly
from headwise.ops.softmax.dropout import draw_seed
from headwise.ops.softmax.launch import Added, Rules
from headwise.ops.watchers import is_transformed, is_watched
from headwise.patterns.base import Pattern
from headwise.patterns.spelling import spell


def run(call: Call) -> Computed:
    """Return output and log-sum-exp; the call must have passed ``refusals.native``."""
    return in_parts.run(call, _attend)


def _attend(call: Call) -> Computed:
    query, key, value = call.query, call.key, call.value
    table, lowest = (None, 0) if call.distances is None else call.distances
    added = Added(
        call.bias,
        call.slopes,
        table,
        None if call.sinks is None else call.sinks.float(),
        draw_seed() if call.dropout_p > 0.0 else None,
    )
    rules = Rules(
        call.pattern,
        (),
        call.places,
        lowest,
        call.scale,
        0.0 if call.softcap is None else call.softcap,
        call.dropout_p,
    )
    if is_transformed():
        return _joined(call, *_transformed(query, key, value, added, rules))
    found: tuple[Tensor, Tensor | None]
    if is_watched(query, key, value, *added):
        found = operators.attend(query, key, value, added, rules)
    elif call.wants_gradient:
        found = AttendPlainly.apply(query, key, value, *added, rules)  # type: ignore[no-untyped-call]
    else:
        found = launch.forward(query, key, value, added, rules, want_lse=call.want_lse)
    return _joined(call, *found)


def _joined(call: Call, output: Tensor, lse: Tensor | None) -> Computed:
    """Return the log-sum-exp in one part, where it is wanted; the backward needs two."""
    return Computed(output, lse.sum(-1) if call.want_lse and lse is not None else None)


def _transformed(
    query: Tensor, key: Tensor, value: Tensor, added: Added, rules: Rules
) -> tuple[Tensor, Tensor]:
    """Run under a transform, which must see the tensors of the pattern, too."""
    tensors: list[Tensor] = []
    if isinstance(rules.pattern, Pattern):
        text, numbers, tensors = spell(rules.pattern)
        rules = rules._replace(pattern=text, numbers=numbers)
    found: tuple[Tensor, Tensor]
    found = Attend.apply(query, key, value, *added, rules, *tensors)  # type: ignore[no-untyped-call]
    return found
