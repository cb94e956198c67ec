"""Text and sound out of Debian packages, by name, version and sha256; nothing is installed."""

import hashlib
import subprocess
import tempfile
from dataclasses import dataclass
from pathlib import Path

from headwise._settings import models_folder


@dataclass(frozen=True)
class Package:
    """A package that holds data alone.

    Attributes:
        name: Its name.
        version: The only version wanted.
        sha256: Of the file that ``apt-get download`` brings.
    """

    name: str
    version: str
    sha256: str


WORDNET = Package(
    "wordnet-base", "1:3.0-37", "61060d960f9ada8fa120872312eccd3ecebfbab8c4579e4f5a74e1cf67620752"
)
PROMPT_TEXTS = Package(
    "asterisk-core-sounds-en",
    "1.6.1-1",
    "973e797d28e37fa6ca3c0a9d6fa717e77cf1268ae916bf09fd3503113cdffa50",
)
PROMPT_SOUNDS = Package(
    "asterisk-core-sounds-en-wav",
    "1.6.1-1",
    "2be3ea287d83299d143815fa804f11179a75b7affd4a758b98b55f5afc18a35d",
)


def unpacked(package: Package) -> Path:
    """Return the folder with the files of a package, downloaded on first use.

    The folder is renamed at the end, so that it is whole or absent.
    """
    place = models_folder() / f"{package.name}-{package.version.replace(':', '-')}"
    if not place.is_dir():
        place.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(prefix=f".{place.name}-", dir=place.parent) as work:
            _download(f"{package.name}={package.version}", work)
            (file,) = Path(work).glob("*.deb")
            found = hashlib.sha256(file.read_bytes()).hexdigest()
            assert found == package.sha256, f"{file.name} is not the expected file: {found}"
            _run("unpacked", "dpkg-deb", "-x", file.name, folder=work)
            (Path(work) / "unpacked").rename(place)
    return place


def _download(wanted: str, folder: str) -> None:
    """Download a package, with lists of our own where the system's are missing or too old."""
    done = _ran("apt-get", "download", wanted, folder=folder)
    if done.returncode:
        own = [f"-oDir::State::Lists={folder}/lists", f"-oDir::Cache={folder}/cache"]
        for place in ("lists/partial", "cache/archives/partial"):
            (Path(folder) / place).mkdir(parents=True)
        _run("update", "apt-get", *own, folder=folder)
        _run(wanted, "apt-get", *own, "download", folder=folder)


def _run(last: str, *command: str, folder: str) -> None:
    done = _ran(*command, last, folder=folder)
    assert done.returncode == 0, f"{' '.join(command)} {last} failed: {done.stderr.strip()}"


def _ran(*command: str, folder: str) -> "subprocess.CompletedProcess[str]":
    return subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)
