"""Saved programs and packages run where nothing but headwise is imported."""

import subprocess
import sys
from pathlib import Path

import pytest
import torch

from tests.export.layers import Layers, given
from tests.export.sessions import OPEN

READ = """
import sys, torch
if sys.argv[2]:
    import headwise
x, real, wanted = torch.load(sys.argv[1] + "/given.pt")
program = {load}(sys.argv[1] + "/program.pt2")
found = ({call})(x, real)
for name, output in wanted.items():
    torch.testing.assert_close(found[name][real], output[real])
"""
PROGRAM = READ.format(load="torch.export.load", call="program.module()")
PACKAGE = READ.format(load="torch._inductor.aoti_load_package", call="program")


NAMES = ("window", "causal linear")


def ended(program: str, folder: Path, imported: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", program, str(folder), imported],
        capture_output=True,
        text=True,
        check=False,
        timeout=300,
    )


def exported(folder: Path) -> torch.export.ExportedProgram:
    with torch.no_grad():
        program = torch.export.export(
            Layers(*NAMES).eval(), given(3, 7), dynamic_shapes={"x": OPEN, "real": OPEN}
        )
        x, real = given(2, 13)
        torch.save((x, real, Layers(*NAMES).eval()(x, real)), folder / "given.pt")
    return program


@pytest.mark.slow
def test_a_saved_program(tmp_path: Path) -> None:
    torch.export.save(exported(tmp_path), tmp_path / "program.pt2")
    with_headwise = ended(PROGRAM, tmp_path, "yes")
    assert with_headwise.returncode == 0, with_headwise.stderr
    without = ended(PROGRAM, tmp_path, "")
    assert without.returncode != 0
    assert "torch.ops.headwise." in without.stderr
    assert "not registered" in without.stderr


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
def test_a_package_of_aotinductor(tmp_path: Path) -> None:
    torch._inductor.aoti_compile_and_package(
        exported(tmp_path),
        package_path=str(tmp_path / "program.pt2"),
        inductor_configs={"aot_inductor.compile_wrapper_opt_level": "O0"},
    )
    with_headwise = ended(PACKAGE, tmp_path, "yes")
    assert with_headwise.returncode == 0, with_headwise.stderr
    without = ended(PACKAGE, tmp_path, "")
    assert without.returncode != 0
    assert "Could not find schema for headwise::" in without.stderr
