"""Layers with padding and open sizes, as ONNX files and as exported programs."""

from pathlib import Path

import onnx
import onnxruntime  # type: ignore[import-untyped]
import pytest
import torch
from torch.export import ExportedProgram

import headwise as hw
from tests.export.layers import Layers, given
from tests.export.sessions import OPEN, Session

SIZES = [(3, 7), (1, 13), (2, 31)]


@pytest.fixture(scope="module")
def program() -> ExportedProgram:
    shapes = {"x": OPEN, "real": OPEN}
    with torch.no_grad():
        return torch.export.export(Layers().eval(), given(3, 7), dynamic_shapes=shapes)


@pytest.fixture(scope="module")
def exported(program: ExportedProgram) -> Session:
    return Session(hw.export.onnx(program, optimize=False))


@pytest.mark.parametrize(("batch", "length"), SIZES)
def test_onnx_gives_the_numbers_of_eager(exported: Session, batch: int, length: int) -> None:
    x, real = given(batch, length)
    with torch.no_grad():
        wanted = Layers().eval()(x, real)
    for (name, output), found in zip(wanted.items(), exported(x, real), strict=True):
        assert output[real].isfinite().all(), name
        torch.testing.assert_close(found[real], output[real], rtol=1e-4, atol=1e-5, msg=name)


@pytest.mark.parametrize(("batch", "length"), SIZES)
def test_programs_give_the_numbers_of_eager(
    program: ExportedProgram, batch: int, length: int
) -> None:
    x, real = given(batch, length)
    with torch.no_grad():
        wanted, found = Layers().eval()(x, real), program.module()(x, real)
    for name, output in wanted.items():
        torch.testing.assert_close(found[name][real], output[real])


def test_operators_stay_in_the_program(program: ExportedProgram) -> None:
    called = [str(node.target) for node in program.graph.nodes if "headwise" in str(node.target)]
    assert called.count("headwise.attend.default") == 2
    assert called.count("headwise.linear_sums.default") == 2


def test_files_are_whole_or_not_there(tmp_path: Path) -> None:
    layer, x = hw.MultiHeadAttention(8, 2, pattern=hw.Causal()).eval(), torch.randn(1, 3, 8)
    path = tmp_path / "layer.onnx"
    hw.export.onnx(layer, (x,), path, input_names=["x"], output_names=["y"])
    assert sorted(file.name for file in tmp_path.iterdir()) == ["layer.onnx", "layer.onnx.data"]
    onnx.checker.check_model(path)
    assert onnx.load(path).opset_import[0].version == 23
    (found,) = onnxruntime.InferenceSession(path).run(["y"], {"x": x.numpy()})
    torch.testing.assert_close(torch.from_numpy(found), layer(x).detach())
    with pytest.raises(FileNotFoundError):
        hw.export.onnx(layer, (x,), tmp_path / "missing" / "layer.onnx")
