"""What an export refuses, and what it says then."""

import sys
from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn
from torch.export import Dim
from typing_extensions import override

import headwise as hw
from headwise.export.graph import quiet
from headwise.patterns import Tiles

LENGTH = ({2: Dim.DYNAMIC},)


class Attend(nn.Module):
    def __init__(self, call: Callable[[Tensor], Tensor]) -> None:
        super().__init__()
        self.call = call

    @override
    def forward(self, x: Tensor) -> Tensor:
        return self.call(x)


def program(call: Callable[[Tensor], Tensor]) -> torch.export.ExportedProgram:
    x = torch.randn(1, 2, 7, 8)
    return torch.export.export(Attend(call).eval(), (x,), dynamic_shapes=LENGTH)


@pytest.mark.parametrize(
    ("pattern", "said"),
    [
        (
            hw.KeyMask([[True] * 7]),
            "KeyMask: a tensor made for one number of keys stands in a graph that leaves it open",
        ),
        (hw.Dense(torch.ones(7, 7) > 0), "Dense: a tensor made for one number of queries"),
        (Tiles(torch.ones(2, 2) > 0, 4), "Tiles: a tensor made for one number of queries"),
        (hw.RandomBlocks(2, 1, seed=0), "RandomBlocks: what is drawn follows from the length"),
    ],
)
def test_patterns_of_one_length_in_open_graphs(pattern: hw.patterns.Pattern, said: str) -> None:
    made = program(lambda x: hw.attend(x, x, x, pattern))
    with pytest.raises(hw.PatternError) as caught:
        hw.export.for_onnx(made)
    assert said in str(caught.value)
    assert "\n  hint: " in str(caught.value)
    assert "export at one length" in str(caught.value)


def test_offsets_of_open_lengths() -> None:
    """Torch makes them numbers and checks lengths; a file would not check."""

    class Last(nn.Module):
        @override
        def forward(self, x: Tensor, keys: Tensor) -> Tensor:
            return hw.attend(x, keys, keys, hw.Causal(), q_offset=keys.shape[2] - x.shape[2])

    given = torch.randn(1, 2, 5, 8), torch.randn(1, 2, 7, 8)
    made = torch.export.export(Last().eval(), given, dynamic_shapes=LENGTH * 2)
    with pytest.raises(hw.PatternError, match="the offset 2 is the difference") as caught:
        hw.export.for_onnx(made)
    assert "hint: leave q_offset out where" in str(caught.value)


def test_dropout() -> None:
    made = program(lambda x: hw.attend(x, x, x, dropout_p=0.25))
    with pytest.raises(hw.BackendRefused) as caught:
        hw.export.for_onnx(made)
    assert str(caught.value).splitlines()[:2] == [
        "headwise.export: an ONNX file cannot draw this dropout again, got dropout_p=0.25",
        "  hint: export model.eval()",
    ]


def test_a_model_in_training() -> None:
    layer = hw.MultiHeadAttention(8, 2, dropout=0.1)
    with pytest.raises(ValueError, match="must not be in training mode") as caught:
        hw.export.onnx(layer, (torch.ones(1, 3, 8),))
    assert "hint: model.eval()" in str(caught.value)


def test_what_is_no_program() -> None:
    with pytest.raises(TypeError, match="must be an ExportedProgram, got Linear") as caught:
        hw.export.for_onnx(nn.Linear(2, 2))  # type: ignore[arg-type]
    assert "headwise.export.onnx takes models" in str(caught.value)


def test_examples_beside_a_program() -> None:
    made = program(lambda x: hw.attend(x, x, x))
    with pytest.raises(ValueError, match="has its inputs and shapes already"):
        hw.export.onnx(made, (torch.ones(1),))


def test_older_opsets() -> None:
    with pytest.raises(ValueError, match="at least 23, the first with Attention, got 18"):
        hw.export.onnx(nn.Linear(2, 2).eval(), (torch.ones(1, 2),), opset_version=18)


def test_a_missing_package(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "onnxscript", None)
    with pytest.raises(ImportError, match="needs onnxscript") as caught:
        hw.export.onnx(nn.Linear(2, 2).eval(), (torch.ones(1, 2),))
    assert "pip install 'headwise[export]'" in str(caught.value)


def test_derivatives() -> None:
    class Slope(nn.Module):
        @override
        def forward(self, x: Tensor) -> Tensor:
            rules = (None, None, None, None, None, None, "Causal()", None, [0], [0], 0, 1.0, 0.0)
            output, lse = torch.ops.headwise.attend(x, x, x, *rules, 0.0)
            given = (output, None, x, x, x, output, lse)
            found: Tensor = torch.ops.headwise.attend_backward(*given, *rules, 0.0)[0]
            return found

    made = torch.export.export(Slope().eval(), (torch.randn(1, 2, 3, 8),))
    with pytest.raises(hw.BackendRefused) as caught:
        hw.export.for_onnx(made)
    assert "ONNX has nothing for headwise.attend_backward.default" in str(caught.value)
    assert "hint: export the forward pass of model.eval()" in str(caught.value)


@pytest.mark.parametrize("strict", [False, True])
def test_caches(strict: bool) -> None:
    """A cache inside a module would be left out without a word, each run starting from nothing."""

    class Decoder(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer, self.cache = hw.MultiHeadAttention(8, 2, pattern=hw.Causal()), hw.KVCache()

        @override
        def forward(self, x: Tensor) -> Tensor:
            found: Tensor = self.layer(x, cache=self.cache)
            return found

    decoder = Decoder().eval()
    with torch.no_grad(), pytest.raises(Exception, match="an exported graph holds") as caught:
        torch.export.export(decoder, (torch.randn(1, 3, 8),), strict=strict)
    assert "hint: export the call over whole sequences, without cache=" in str(caught.value)
    assert decoder.cache.length() == 0


def test_torch_alone_refuses_our_operators() -> None:
    """Without ``for_onnx`` nothing is written, rather than something else."""
    made = program(lambda x: hw.attend(x, x, x, hw.Causal()))
    with quiet(), pytest.raises(torch.onnx.errors.OnnxExporterError, match=r"headwise\.attend"):
        torch.onnx.export(made, dynamo=True, verbose=False, opset_version=23)
