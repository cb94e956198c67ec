"""ONNX files run by onnxruntime, with tensors of torch on both sides."""

from collections.abc import Sequence
from typing import Any

import onnxruntime  # type: ignore[import-untyped]
import torch
from torch import Tensor, nn
from torch.export import Dim

import headwise as hw

OPEN = {0: Dim.DYNAMIC, 1: Dim.DYNAMIC}


class Session:
    """A model in ONNX, on the CPU."""

    def __init__(self, program: Any) -> None:
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = 2
        self.nodes = [node.op_type for node in program.model_proto.graph.node]
        self._session = onnxruntime.InferenceSession(
            program.model_proto.SerializeToString(), options, ["CPUExecutionProvider"]
        )

    def __call__(self, *given: Tensor) -> list[Tensor]:
        names = [wanted.name for wanted in self._session.get_inputs()]
        fed = {name: part.numpy() for name, part in zip(names, given, strict=True)}
        return [torch.from_numpy(found) for found in self._session.run(None, fed)]


def session(
    model: nn.Module, args: Sequence[Tensor], shapes: Any = None, *, optimize: bool = False
) -> Session:
    """Export a model and open the result; optimizing takes torch as long as all the rest."""
    made = hw.export.onnx(model.eval(), tuple(args), dynamic_shapes=shapes, optimize=optimize)
    return Session(made)
