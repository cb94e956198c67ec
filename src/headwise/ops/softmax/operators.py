"""The native kernels as operators of torch, for graphs: compiled, exported, or watched by a mode.

A graph carries tensors, numbers and text only, so a pattern arrives in the form of
``patterns.spelling`` and is lowered when the operator runs, for the sizes it then sees.
"""

from collections.abc import Callable, Sequence
from typing import Any, TypeAlias

import torch
from torch import Tensor
from torch.library import Library

from headwise.ops.softmax import launch
from headwise.ops.softmax.gradients import of_inputs, refuse_second
from headwise.ops.softmax.launch import Added, Given, Rules
from headwise.patterns.base import Pattern
from headwise.patterns.grid import Grid
from headwise.patterns.spelling import spell

_ADDED = "Tensor? bias, Tensor? slopes, Tensor? table, Tensor? sinks, Tensor? seed"
_RULES = (
    "Tensor[]? tensors, str? pattern, SymInt[]? numbers, SymInt[] q_offsets, SymInt[] kv_offsets, "
    "SymInt lowest, float scale, float softcap, float dropout_p"
)
_GIVEN = "Tensor query, Tensor key, Tensor value"
_GRADIENTS = f"Tensor d_output, Tensor? d_lse, {_GIVEN}, Tensor output, Tensor lse"

Kernel: TypeAlias = Callable[..., Any]
Argument: TypeAlias = Any  # of an operator; its schema says which
Context: TypeAlias = Any  # of autograd

_library = Library("headwise", "DEF")  # type: ignore[no-untyped-call]


def attend(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    added: Added,
    rules: Rules,
    tensors: Sequence[Tensor] = (),
) -> tuple[Tensor, Tensor]:
    """Return output and log-sum-exp through the operator."""
    found: tuple[Tensor, Tensor] = torch.ops.headwise.attend.default(
        query, key, value, *added, *_flat(rules, tensors)
    )
    return found


def attend_backward(
    d_output: Tensor,
    d_lse: Tensor | None,
    given: Given,
    added: Added,
    rules: Rules,
    tensors: Sequence[Tensor],
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Return the gradients of query, key, value and sinks through the operator."""
    found: tuple[Tensor, Tensor, Tensor, Tensor] = torch.ops.headwise.attend_backward.default(
        d_output, d_lse, *given, *added, *_flat(rules, tensors)
    )
    return found


def attend_bias_backward(
    d_output: Tensor,
    d_lse: Tensor | None,
    given: Given,
    added: Added,
    rules: Rules,
    tensors: Sequence[Tensor],
) -> Tensor:
    """Return the gradient of the bias or the table through the operator."""
    found: Tensor = torch.ops.headwise.attend_bias_backward.default(
        d_output, d_lse, *given, *added, *_flat(rules, tensors)
    )
    return found


def _flat(rules: Rules, tensors: Sequence[Tensor]) -> tuple[object, ...]:
    pattern, numbers = rules.pattern, rules.numbers
    if isinstance(pattern, Pattern):
        pattern, numbers, tensors = spell(pattern)
    return (
        # AOTInductor hands an empty list on as none at all.
        list(tensors) or None,
        pattern,
        list(numbers) or None,
        [place.q_offset for place in rules.places],
        [place.kv_offset for place in rules.places],
        *rules[3:],
    )


def _gathered(
    query: Tensor, key: Tensor, rest: Argument
) -> tuple[Added, Rules, tuple[Tensor, ...]]:
    """Undo ``_flat``, with the lengths that the tensors have when the operator runs."""
    *added, tensors, pattern, numbers, q_offsets, kv_offsets, lowest, scale, softcap, share = rest
    sizes = query.shape[2], key.shape[2]
    places = tuple(Grid(*sizes, *place) for place in zip(q_offsets, kv_offsets, strict=True))
    rules = Rules(pattern, tuple(numbers or ()), places, lowest, scale, softcap, share)
    return Added(*added), rules, tuple(tensors or ())


def _attend(query: Tensor, key: Tensor, value: Tensor, *rest: Argument) -> tuple[Tensor, Tensor]:
    output, lse = launch.forward(query, key, value, *_gathered(query, key, rest))
    assert lse is not None
    return output, lse


def _attend_backward(
    d_output: Tensor, d_lse: Tensor | None, *rest: Argument
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    given = Given(*rest[:5])
    return launch.backward(d_output, d_lse, given, *_gathered(given.query, given.key, rest[5:]))


def _attend_bias_backward(d_output: Tensor, d_lse: Tensor | None, *rest: Argument) -> Tensor:
    given = Given(*rest[:5])
    return launch.bias_backward(
        d_output, d_lse, given, *_gathered(given.query, given.key, rest[5:])
    )


def _sized(query: Tensor, key: Tensor, value: Tensor, *rest: Argument) -> tuple[Tensor, Tensor]:
    return launch.like(query, value.shape[3]), launch.lse_like(query)


def _backward_sized(
    d_output: Tensor, d_lse: Tensor | None, *rest: Argument
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    given = Given(*rest[:5])
    d_key, d_value = (launch.like(tensor, tensor.shape[3]) for tensor in (given.key, given.value))
    d_sinks = launch.sinks_like(given.query, rest[8])
    return given.query.new_empty(given.query.shape), d_key, d_value, d_sinks


def _bias_backward_sized(d_output: Tensor, d_lse: Tensor | None, *rest: Argument) -> Tensor:
    return launch.added_like(Added(*rest[5:10]))


def _declare(name: str, arguments: str, results: str, run: Kernel, sized: Kernel) -> None:
    """Declare an operator, what it runs on the CPU, and what it gives where nothing has data."""
    schema = f"{name}({arguments}) -> {results}"
    _library.define(schema, tags=(torch.Tag.pt2_compliant_tag,))  # type: ignore[no-untyped-call]
    _library.impl(name, run, "CPU")  # type: ignore[no-untyped-call]
    torch.library.register_fake(f"headwise::{name}", sized, lib=_library)


def _keep(ctx: Context, inputs: tuple[Any, ...], output: tuple[Tensor, Tensor]) -> None:
    ctx.set_materialize_grads(False)
    ctx.listed, ctx.rest = inputs[8] is not None, inputs[9:]
    ctx.save_for_backward(*inputs[:3], *output, *inputs[3:8], *(inputs[8] or ()))


def _derive(ctx: Context, d_output: Tensor | None, d_lse: Tensor | None) -> tuple[Any, ...]:
    saved = ctx.saved_tensors
    tensors = list(saved[10:]) if ctx.listed else None

    def run(of_added: bool, d_output: Tensor) -> tuple[Tensor, ...]:
        known = (d_output, d_lse, *saved[:10], tensors, *ctx.rest)
        if of_added:
            return (torch.ops.headwise.attend_bias_backward.default(*known),)
        return torch.ops.headwise.attend_backward.default(*known)  # type: ignore[no-any-return]

    found = of_inputs(ctx.needs_input_grad, d_output, d_lse, saved[3], run)
    # torch takes any empty list for one of tensors, and wants a list back for it.
    nothing: list[object] = [
        [] if isinstance(part, Sequence) and not len(part) else None for part in ctx.rest
    ]
    return (*found, None if tensors is None else [None] * len(tensors), *nothing)


def _refuse(ctx: Context, *gradients: Tensor) -> None:
    raise refuse_second()


_declare(
    "attend",
    f"{_GIVEN}, {_ADDED}, {_RULES}",
    "(Tensor output, Tensor lse)",
    _attend,
    _sized,
)
_declare(
    "attend_backward",
    f"{_GRADIENTS}, {_ADDED}, {_RULES}",
    "(Tensor d_query, Tensor d_key, Tensor d_value, Tensor d_sinks)",
    _attend_backward,
    _backward_sized,
)
_declare(
    "attend_bias_backward",
    f"{_GRADIENTS}, {_ADDED}, {_RULES}",
    "Tensor",
    _attend_bias_backward,
    _bias_backward_sized,
)
torch.library.register_autograd("headwise::attend", _derive, setup_context=_keep, lib=_library)
for _name in ("attend_backward", "attend_bias_backward"):
    torch.library.register_autograd(f"headwise::{_name}", _refuse, lib=_library)
