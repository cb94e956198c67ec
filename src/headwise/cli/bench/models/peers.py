"""The same model in other runtimes, where they are installed."""

import contextlib
import importlib
import importlib.util
import io
import logging
import re
import tempfile
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from typing_extensions import override

from headwise.cli.bench.models.work import Work, numbers
from headwise.cli.failures import first_line

_COLOURS = re.compile(r"\x1b\[[\d;]*m")
Run = Callable[[], Tensor]


@dataclass(frozen=True)
class Peer:
    """Another runtime.

    Attributes:
        name: What it is called.
        needs: The packages that it takes.
        build: Turns a module and its inputs into a call of the runtime.
    """

    name: str
    needs: tuple[str, ...]
    build: Callable[["Positional", tuple[Tensor, ...]], Run]

    @property
    def missing(self) -> list[str]:
        """The packages that are not installed."""
        return [name for name in self.needs if importlib.util.find_spec(name) is None]


class Positional(nn.Module):
    """A model that takes its inputs one after the other, and returns what is compared."""

    def __init__(self, model: Any, names: tuple[str, ...]) -> None:
        super().__init__()
        self.model, self._names = model, names
        self.train(False)

    @override
    def forward(self, *inputs: Tensor) -> Tensor:
        return numbers(self.model(**dict(zip(self._names, inputs, strict=True))))


def ready(peer: Peer, model: Any, work: Work) -> Run | str:
    """Return the call of another runtime, or the reason why there is none.

    Args:
        peer: The runtime.
        model: A model of transformers, as it was.
        work: What it is given.
    """
    if peer.missing:
        return f"{', '.join(peer.missing)} not installed"
    try:
        with _quiet():
            wrapped = Positional(model, tuple(work.tensors))
            run = peer.build(wrapped, tuple(work.tensors.values()))
            run()
            return run
    except Exception as failure:
        return f"the model cannot be brought there: {_COLOURS.sub('', first_line(failure))}"


def _onnxruntime(module: Positional, inputs: tuple[Tensor, ...]) -> Run:
    runtime: Any = importlib.import_module("onnxruntime")
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "model.onnx"
        torch.onnx.export(module, inputs, file, dynamo=True, verbose=False)
        options = runtime.SessionOptions()
        options.intra_op_num_threads = torch.get_num_threads()
        # So that its waiting threads do not take the processor from whoever is next.
        options.add_session_config_entry("session.force_spinning_stop", "1")
        session = runtime.InferenceSession(file, options, providers=["CPUExecutionProvider"])
    names = [taken.name for taken in session.get_inputs()]
    given = dict(zip(names, (tensor.numpy() for tensor in inputs), strict=False))
    return lambda: torch.from_numpy(session.run(None, given)[0])


def _openvino(module: Positional, inputs: tuple[Tensor, ...]) -> Run:
    runtime: Any = importlib.import_module("openvino")
    settings = {
        "INFERENCE_NUM_THREADS": torch.get_num_threads(),
        "INFERENCE_PRECISION_HINT": "f32",
        "PERFORMANCE_HINT": "LATENCY",
    }
    converted = runtime.convert_model(module, example_input=inputs)
    compiled = runtime.Core().compile_model(converted, "CPU", settings)
    given = [tensor.numpy() for tensor in inputs]
    return lambda: torch.from_numpy(compiled(given)[0])


PEERS = (
    Peer("onnxruntime", ("onnxruntime", "onnx", "onnxscript"), _onnxruntime),
    Peer("openvino", ("openvino",), _openvino),
)


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """Keep exporters, which say a lot, from saying it."""
    before = logging.root.manager.disable
    logging.disable(logging.CRITICAL)
    try:
        with (
            warnings.catch_warnings(),
            contextlib.redirect_stdout(io.StringIO()),
            contextlib.redirect_stderr(io.StringIO()),
        ):
            warnings.simplefilter("ignore")
            yield
    finally:
        logging.disable(before)
