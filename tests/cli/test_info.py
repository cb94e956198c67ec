import json
import platform

import pytest
import torch

from headwise import _native
from headwise.info import Info, info
from headwise.ops.projection import explain_linear
from tests.cli.typed import typed


def test_it_prints_what_the_library_knows() -> None:
    result = typed("info")
    assert result.exit_code == 0
    assert result.stdout == f"{info()}\n"
    for part in (torch.__version__, platform.python_version(), "native", "sdpa", "reference"):
        assert part in result.stdout


def test_json_holds_every_field() -> None:
    found = json.loads(typed("info", "--json").stdout)
    assert set(found) == set(Info.__dataclass_fields__)
    assert found["threads"] == torch.get_num_threads()
    assert found["isas"] == list(_native.available())
    assert found["backends"]["reference"] == {
        "float32": [],
        "bfloat16": [],
        "float16": [],
        "gradients": [],
    }


def test_models_are_where_the_variable_says(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HEADWISE_MODELS", "/some/where")
    assert info().models == "/some/where"
    monkeypatch.delenv("HEADWISE_MODELS")
    assert info().models.endswith("/.cache/headwise/models")


def test_a_missing_core_is_said_once_with_its_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_native, "kernels", None)
    monkeypatch.setattr(_native, "reason", "the compiled core is missing (no such file)")
    text = str(info())
    assert "  native      not usable: the compiled core is missing (no such file)\n" in text
    assert text.count("no such file") == 1
    assert "instructions  no compiled kernels (here: none)" in text


def test_reasons_that_hold_for_some_calls_are_listed_by_call() -> None:
    shown = Info(
        *("1.2.3", "2.13.0", "3.11.7", None, "Linux x86_64", "Some CPU", "avx2"),
        isas=("scalar", "avx2"),
        threads=5,
        backends={"native": {"float32": (), "bfloat16": ("it is wide",), "gradients": ()}},
        projections={
            "float32": ("rows", "rows", "onednn, packed"),
            "bfloat16": ("torch", "torch", "torch"),
            "float16": ("torch", "rows", "onednn"),
        },
        models="/m",
    )
    assert str(shown) == (
        "headwise      1.2.3\n"
        "torch         2.13.0\n"
        "python        3.11.7\n"
        "transformers  not installed\n"
        "machine       Some CPU, Linux x86_64\n"
        "instructions  avx2 (here: scalar, avx2)\n"
        "threads       5\n"
        "models        /m\n"
        "projections   float32: headwise up to 4 rows, then oneDNN with packed weights\n"
        "              bfloat16: torch\n"
        "              float16: torch for 1 row, headwise up to 4 rows, then oneDNN without copies "
        "of weights\n"
        "backends\n"
        "  native      takes float32, gradients\n"
        "              not bfloat16: it is wide"
    )


@pytest.mark.parametrize("asked", ["packed", "unpacked", "torch"])
def test_projections_are_those_that_run(asked: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HEADWISE_PROJECTIONS", asked)
    for dtype, found in info().projections.items():
        weight = torch.zeros(64, 256, dtype=getattr(torch, dtype))
        for way, rows in zip(found, (1, 4, 256), strict=True):
            with torch.no_grad():
                runs = explain_linear(weight.new_zeros(rows, 256), weight)
            assert way == (f"{runs.library}, packed" if runs.packed else runs.library)
    if asked == "torch":
        assert "projections   float32: torch\n" in str(info())
