"""Models as ONNX files."""

from collections.abc import Sequence
from importlib import import_module
from os import PathLike
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any

import torch
from torch import nn
from torch.export import ExportedProgram

from headwise.export.graph import for_onnx, quiet

if TYPE_CHECKING:
    from torch.onnx import ONNXProgram

_FIRST_OPSET = 23


def onnx(  # noqa: PLR0913
    model: nn.Module | ExportedProgram,
    args: tuple[Any, ...] = (),
    path: str | PathLike[str] | None = None,
    *,
    kwargs: dict[str, Any] | None = None,
    dynamic_shapes: Any = None,  # noqa: ANN401
    input_names: Sequence[str] | None = None,
    output_names: Sequence[str] | None = None,
    opset_version: int = _FIRST_OPSET,
    optimize: bool = True,
) -> "ONNXProgram":
    """Write a model with attention of headwise to an ONNX file.

    Arguments and result are those of ``torch.onnx.export``; ``for_onnx`` says what attention
    becomes. The file is written beside ``path`` and renamed when it is whole. Weights lie in a
    second file, ``path`` with ``.data`` after it, which belongs to the first.

    Args:
        model: A module in ``eval()``, or what ``torch.export.export`` made of one.
        args: Example inputs, positional. None with an exported program.
        path: Where the file goes; ``None`` = only return the program.
        kwargs: Example inputs by name.
        dynamic_shapes: Which sizes stay open, as ``torch.export.export`` takes them. All others
            are those of the examples.
        input_names: Names of the inputs in the file; ``None`` = those of the arguments.
        output_names: Names of the outputs in the file.
        opset_version: Version of ONNX, 23 or newer.
        optimize: Whether constants are folded and what is not needed is left out.

    Returns:
        The program that was written.

    Raises:
        ImportError: onnx or onnxscript is not installed.
        ValueError: A model in training mode, an older opset, examples with an exported program.
        PatternError: A pattern that holds for one length, in a program that leaves it open.
        BackendRefused: Dropout, or a derivative of attention.

    Example:
        >>> import headwise as hw
        >>> layer = hw.MultiHeadAttention(8, 2, pattern=hw.Causal()).eval()
        >>> made = hw.export.onnx(layer, (torch.ones(1, 3, 8),))
        >>> [node.op_type for node in made.model_proto.graph.node].count("Attention")
        1
    """
    for package in ("onnx", "onnxscript"):
        try:
            import_module(package)
        except ImportError as missing:
            raise ImportError(
                f"headwise.export.onnx needs {package} ({missing})\n"
                "  hint: pip install 'headwise[export]'"
            ) from missing
    if opset_version < _FIRST_OPSET:
        raise ValueError(
            f"headwise.export.onnx: opset_version must be at least {_FIRST_OPSET}, the first with "
            f"Attention, got {opset_version}\n  hint: leave it out"
        )
    program = for_onnx(_exported(model, args, kwargs, dynamic_shapes))
    with quiet():
        written = torch.onnx.export(
            program,
            dynamo=True,
            verbose=False,
            input_names=input_names,
            output_names=output_names,
            opset_version=opset_version,
            optimize=optimize,
        )
    assert written is not None
    if path is not None:
        _save(written, Path(path))
    return written


def _exported(
    model: nn.Module | ExportedProgram,
    args: tuple[Any, ...],
    kwargs: dict[str, Any] | None,
    dynamic_shapes: Any,  # noqa: ANN401
) -> ExportedProgram:
    if isinstance(model, ExportedProgram):
        if args or kwargs or dynamic_shapes:
            raise ValueError(
                "headwise.export.onnx: an exported program has its inputs and shapes already, got "
                "others\n  hint: give args, kwargs and dynamic_shapes to torch.export.export"
            )
        return model
    if model.training:
        raise ValueError(
            f"headwise.export.onnx: the model must not be in training mode, got "
            f"{type(model).__name__} in it\n  hint: model.eval()"
        )
    with torch.no_grad():
        return torch.export.export(model, args, kwargs, dynamic_shapes=dynamic_shapes)


def _save(written: "ONNXProgram", path: Path) -> None:
    """Write both files into a folder beside ``path``, and move them when they are whole."""
    with TemporaryDirectory(dir=path.parent, prefix=f".{path.name}.") as folder:
        written.save(Path(folder) / path.name, external_data=True)
        files = sorted(Path(folder).iterdir(), key=lambda file: file.name == path.name)
        for file in files:
            file.replace(path.parent / file.name)
