"""Exported programs with every operator of headwise spelled out in what ONNX has."""

import re
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from operator import getitem
from typing import Any

import torch
from torch.export import ExportedProgram
from torch.fx import GraphModule, Node

from headwise.errors import BackendRefused, PatternError
from headwise.export.attention import attend
from headwise.export.linear import linear_sums, running_max

_DIFFERENCE = re.compile(r"size\(\).*\(-1\).*size\(\).* == -?(\d+)$")


def for_onnx(program: ExportedProgram) -> ExportedProgram:
    """Return an exported program that ``torch.onnx.export`` can write.

    Attention becomes ONNX's own operator ``Attention``, of opset 23, with the pattern as a boolean
    mask that the graph computes for the lengths it sees; where the operator's meaning depends on
    who reads it (a softcap together with a mask), and for sinks, attention is spelled out
    in products and exponentials, as linear attention always is. A query that may look nowhere
    gives 0, and numbers in keys that no query sees stay out. What is computed in 16 bits is summed
    in float32.

    A number that is not finite in a key that some queries see reaches the others, too: ONNX adds
    its masks.

    Args:
        program: What ``torch.export.export`` made of a module in ``eval()``. It stays as it is.

    Raises:
        PatternError: A pattern or an offset that holds for one length, in a program that leaves it
            open.
        BackendRefused: Dropout, or a derivative of attention.
        TypeError: No exported program.

    Example:
        >>> import headwise as hw
        >>> layer = hw.MultiHeadAttention(8, 2, pattern=hw.Causal()).eval()
        >>> program = torch.export.export(layer, (torch.ones(1, 3, 8),))
        >>> spelled = for_onnx(program)
        >>> [node.args[1] for node in spelled.graph.nodes if "onnx" in str(node.target)]
        ['Attention']
    """
    if not isinstance(program, ExportedProgram):
        raise TypeError(
            f"headwise.export.for_onnx: program must be an ExportedProgram, got "
            f"{type(program).__name__}\n"
            "  hint: torch.export.export(model, args) makes one; headwise.export.onnx takes models"
        )
    _refuse_fixed_offsets(program)
    table: dict[Any, Callable[..., Any]] = {
        torch.ops.headwise.attend.default: partial(attend, with_lse=_asks_for_lse(program)),
        torch.ops.headwise.linear_sums.default: linear_sums,
        # The scales of random features need it, and ONNX has none.
        torch.ops.aten.cummax.default: running_max,
    }
    with quiet():
        found: ExportedProgram = program.run_decompositions(table)
    left = {str(node.target) for node in _nodes(found) if "headwise." in str(node.target)}
    if left:
        raise BackendRefused(
            f"headwise.export.for_onnx: ONNX has nothing for {', '.join(sorted(left))}\n"
            "  hint: export the forward pass of model.eval(), under torch.no_grad()"
        )
    return found


@contextmanager
def quiet() -> Iterator[None]:
    """Keep back a warning about how torch copies a tree of its own."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "`isinstance.treespec", FutureWarning)
        yield


def _nodes(program: ExportedProgram) -> Iterator[Node]:
    """Go through the nodes of a program and of the graphs inside it."""
    for module in program.graph_module.modules():
        if isinstance(module, GraphModule):
            yield from module.graph.nodes


def _refuse_fixed_offsets(program: ExportedProgram) -> None:
    """Refuse an offset taken from open lengths: torch fixed it, and the check is not in a file."""
    fixed = {found[1] for guard in program._guards_code if (found := _DIFFERENCE.search(guard))}
    for node in _nodes(program):
        if node.target is torch.ops.headwise.attend.default:
            held: Any = node.args[11:13]
            starts = [start for starts in held for start in starts]
            for offset in starts:
                if isinstance(offset, int) and str(abs(offset)) in fixed:
                    raise PatternError(
                        f"headwise.export: the offset {offset} is the difference of two lengths "
                        f"that this graph leaves open, q_offset and kv_offset are {starts}\n"
                        "  hint: leave q_offset out where queries stand at the end of the keys, or "
                        "export at one length"
                    )


def _asks_for_lse(program: ExportedProgram) -> bool:
    """Say whether anything follows from the second result of an attention."""
    for node in _nodes(program):
        if node.target is not torch.ops.headwise.attend.default:
            continue
        for user in node.users:
            if user.target is not getitem or (user.args[1] == 1 and user.users):
                return True
    return False
