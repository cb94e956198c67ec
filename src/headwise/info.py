"""What this installation is and what it can do, for people and for bug reports."""

import platform
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

import torch

from headwise import _native
from headwise._settings import models_folder
from headwise.ops import explain
from headwise.ops.projection import Projection, explain_linear
from headwise.ops.projection.choice import FEW_ROWS

_SAID = {
    "rows": "headwise",
    "onednn": "oneDNN without copies of weights",
    "onednn, packed": "oneDNN with packed weights",
    "torch": "torch",
}


@dataclass(frozen=True)
class Info:
    """An account of this installation.

    Attributes:
        headwise: Version of headwise.
        torch: Version of torch.
        python: Version of Python.
        transformers: Version of transformers; ``None`` where it is not installed.
        platform: Operating system and machine type.
        cpu: The processor's name for itself.
        isa: Instruction set that the native kernels use; ``None`` without them.
        isas: Instruction sets of the native kernels that run on this machine.
        threads: Threads that torch, and so headwise, is set to.
        backends: For every backend and kind of call, why it will not take that call; an empty
            tuple where it will.
        projections: What linear maps run on in inference, by dtype, for one row, few and many:
            ``"rows"``, ``"onednn"``, ``"onednn, packed"`` or ``"torch"``.
        models: Folder where fetched models are kept.
    """

    headwise: str
    torch: str
    python: str
    transformers: str | None
    platform: str
    cpu: str
    isa: str | None
    isas: tuple[str, ...]
    threads: int
    backends: dict[str, dict[str, tuple[str, ...]]]
    projections: dict[str, tuple[str, str, str]]
    models: str

    def __str__(self) -> str:
        chosen = self.isa or "no compiled kernels"
        lines = [
            f"headwise      {self.headwise}",
            f"torch         {self.torch}",
            f"python        {self.python}",
            f"transformers  {self.transformers or 'not installed'}",
            f"machine       {self.cpu}, {self.platform}",
            f"instructions  {chosen} (here: {', '.join(self.isas) or 'none'})",
            f"threads       {self.threads}",
            f"models        {self.models}",
            *self._projections(),
            "backends",
        ]
        for name, calls in self.backends.items():
            lines += [
                f"  {name:<12}{line}" if n == 0 else f"{'':14}{line}"
                for n, line in enumerate(_verdict(calls))
            ]
        return "\n".join(lines)

    def _projections(self) -> list[str]:
        lines = []
        for n, (dtype, (one, few, many)) in enumerate(self.projections.items()):
            words = "" if one == few else f"{_SAID[one]} for 1 row, "
            words += "" if few == many else f"{_SAID[few]} up to {FEW_ROWS} rows, then "
            lines.append(f"{'' if n else 'projections':<14}{dtype}: {words}{_SAID[many]}")
        return lines


def info() -> Info:
    """Gather versions, instruction sets, threads, backends, and where models are kept.

    Returns:
        An ``Info``; ``str(info())`` is what ``headwise info`` prints.
    """
    return Info(
        headwise=_version("headwise") or "not installed (run from its sources)",
        torch=torch.__version__,
        python=platform.python_version(),
        transformers=_version("transformers"),
        platform=f"{platform.system()} {platform.machine()}",
        cpu=_cpu_name(),
        isa=_native.isa(),
        isas=tuple(_native.available()),
        threads=torch.get_num_threads(),
        backends=_backends(),
        projections=_projections(),
        models=str(models_folder()),
    )


def _verdict(calls: dict[str, tuple[str, ...]]) -> list[str]:
    """Word what a backend takes and why it takes no more, a reason for all kinds said once."""
    taken = [kind for kind, reasons in calls.items() if not reasons]
    always = set.intersection(*(set(reasons) for reasons in calls.values()))
    lines = ["takes " + ", ".join(taken)] if taken else []
    lines += [f"not usable: {reason}" for reason in sorted(always)]
    return lines + [
        f"not {kind}: {reason}"
        for kind, reasons in calls.items()
        for reason in reasons
        if reason not in always
    ]


def _backends() -> dict[str, dict[str, tuple[str, ...]]]:
    """Ask every backend about a small call of each kind that people make."""
    kinds = {
        "float32": torch.zeros(1, 2, 3, 16),
        "bfloat16": torch.zeros(1, 2, 3, 16, dtype=torch.bfloat16),
        "float16": torch.zeros(1, 2, 3, 16, dtype=torch.float16),
        "gradients": torch.zeros(1, 2, 3, 16, requires_grad=True),
    }
    if torch.cuda.is_available():
        kinds["CUDA"] = torch.zeros(1, 2, 3, 16, device="cuda")
    found: dict[str, dict[str, tuple[str, ...]]] = {}
    with torch.enable_grad():
        for kind, tensor in kinds.items():
            for name, reasons in explain(tensor, tensor, tensor).refusals.items():
                found.setdefault(name, {})[kind] = tuple(reasons)
    return found


def _projections() -> dict[str, tuple[str, str, str]]:
    """Ask about linear maps of each dtype and few and many rows, where no gradient is wanted."""
    found: dict[str, tuple[str, str, str]] = {}
    with torch.no_grad():
        for dtype in (torch.float32, torch.bfloat16, torch.float16):
            weight = torch.zeros(64, 256, dtype=dtype)
            one, few, many = (
                _way(explain_linear(torch.zeros(rows, 256, dtype=dtype), weight))
                for rows in (1, FEW_ROWS, 256)
            )
            found[str(dtype).removeprefix("torch.")] = (one, few, many)
    return found


def _way(found: Projection) -> str:
    return f"{found.library}, packed" if found.packed else found.library


def _cpu_name() -> str:
    described = Path("/proc/cpuinfo")
    if described.is_file():
        for line in described.read_text().splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    return platform.processor() or platform.machine()


def _version(package: str) -> str | None:
    try:
        return version(package)
    except PackageNotFoundError:
        return None
