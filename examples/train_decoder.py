"""Train a small decoder twice, through headwise and through torch's attention, side by side.

Both start from the same weights and read the same batches, step by step in turns, so that what
disturbs the machine disturbs both. The text is Python's own help pages unless a file is named.

    python examples/train_decoder.py
    python examples/train_decoder.py --dtype bfloat16 --context 2048 --text book.txt

With --yardstick a third one runs, through torch's own formula instead of its fast kernel: how far
torch's two ways part says how far rounding alone carries the curves apart.
"""

# ruff: noqa: T201

import argparse
import json
import sys
import time
from functools import partial
from pathlib import Path
from pydoc_data.topics import topics
from typing import Any

import torch
from attention_clock import AttentionClock
from decoder import Attention, Decoder
from rich.console import Console
from rich.progress import Progress
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.functional import scaled_dot_product_attention

import headwise as hw


def torch_formula(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
    """Attend as torch does without its fast kernel."""
    with sdpa_kernel(SDPBackend.MATH):
        return scaled_dot_product_attention(query, key, value, is_causal=True)


ROW_EVERY = 25
CONTENDERS: dict[str, Attention] = {
    "headwise": partial(hw.attend, pattern=hw.Causal()),
    "sdpa": partial(scaled_dot_product_attention, is_causal=True),
}
YARDSTICK: dict[str, Attention] = {"torch's formula": torch_formula}


class Training:
    """One of the trainings: a model, its optimizer, and what was measured."""

    def __init__(self, attention: Attention, options: argparse.Namespace) -> None:
        torch.manual_seed(options.seed)
        self.clock = AttentionClock()
        sizes = (options.width, options.heads, options.layers, options.context)
        self.model = Decoder(*sizes, self.clock.around(attention))
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=options.lr)
        self.dtype = getattr(torch, options.dtype)
        self.losses: list[float] = []
        self.seconds = 0.0

    def step(self, ids: Tensor) -> None:
        """Learn from one batch. The first step warms up and is not timed."""
        started = time.perf_counter()
        with torch.autocast("cpu", self.dtype, enabled=self.dtype != torch.float32):
            loss = self.model.loss(ids)
        self.optimizer.zero_grad()
        torch.autograd.backward(loss)
        self.optimizer.step()
        self.seconds += time.perf_counter() - started
        if not self.losses:
            self.clock.reset()
            self.seconds = 0.0
        self.losses.append(loss.item())

    def figures(self, tokens: int) -> dict[str, float]:
        """Return what was measured, for ``tokens`` in all timed steps."""
        attention = self.clock.forward + self.clock.backward
        return {
            "loss": self.losses[-1],
            "seconds": self.seconds,
            "tokens_per_second": tokens / self.seconds,
            "attention_forward_seconds": self.clock.forward,
            "attention_backward_seconds": self.clock.backward,
            "attention_seconds": attention,
            "attention_share": attention / self.seconds,
        }


def main() -> None:
    """Read the options, train, print."""
    parser, options = read_options()
    text = read_text(parser, options)
    contenders = CONTENDERS | (YARDSTICK if options.yardstick else {})
    runs = {name: Training(attention, options) for name, attention in contenders.items()}
    about = setting(options)
    if not options.json:
        print(", ".join(f"{name.replace('_', ' ')} {value}" for name, value in about.items()))
    try:
        train(runs, text, options)
    except KeyboardInterrupt:
        parser.exit(130, f"stopped after {len(runs['sdpa'].losses)} steps\n")
    result = compare(runs, options)
    print(json.dumps({"setting": about, **result}) if options.json else summary(result))


def train(runs: dict[str, Training], text: Tensor, options: argparse.Namespace) -> None:
    """Let the trainings take turns, and at going first too; print a row now and then."""
    generator = torch.Generator().manual_seed(options.seed)
    reach = torch.arange(options.context + 1)
    order = list(runs.values())
    if not options.json:
        print(row("step", *runs, "difference"))
    console = Console(stderr=True)
    # Rows printed meanwhile go above the bar, unless they go to a file.
    with Progress(
        console=console,
        transient=True,
        disable=not console.is_terminal,
        redirect_stdout=sys.stdout.isatty(),
    ) as progress:
        task = progress.add_task("Training", total=options.steps)
        for step in range(1, options.steps + 1):
            starts = torch.randint(
                len(text) - options.context, (options.batch, 1), generator=generator
            )
            for run in order:
                run.step(text[starts + reach])
            order.reverse()
            progress.advance(task)
            if not options.json and (step % ROW_EVERY == 0 or step in (1, options.steps)):
                losses = [run.losses[-1] for run in runs.values()]
                shown = (f"{loss:.6f}" for loss in losses)
                print(row(step, *shown, f"{abs(losses[0] - losses[1]):.1e}"))


def compare(runs: dict[str, Training], options: argparse.Namespace) -> dict[str, Any]:
    """Return the figures of all, and how headwise stands to sdpa."""
    tokens = (options.steps - 1) * options.batch * options.context
    found = {name: run.figures(tokens) for name, run in runs.items()}
    losses = {name: run.losses for name, run in runs.items()}
    return {
        "runs": found,
        "losses": losses,
        "largest_difference": {
            name: max(abs(a - b) for a, b in zip(curve, losses["sdpa"], strict=True))
            for name, curve in losses.items()
            if name != "sdpa"
        },
        "attention_ratio": found["headwise"]["attention_seconds"]
        / found["sdpa"]["attention_seconds"],
    }


def summary(result: dict[str, Any]) -> str:
    """Return the comparison as lines for people."""
    found = result["runs"]
    lines = ["", row("", *found, "headwise / sdpa", first=26)]
    for key in found["sdpa"]:
        figures = [figure[key] for figure in found.values()]
        shown = [f"{figure:,.4g}" if figure < 1e4 else f"{figure:,.0f}" for figure in figures]
        lines.append(row(key.replace("_", " "), *shown, f"{figures[0] / figures[1]:.3f}", first=26))
    lines += [
        f"the loss of {name} differs from that of sdpa by at most {gap:.1e}"
        for name, gap in result["largest_difference"].items()
    ]
    return "\n".join([*lines, f"attention takes {result['attention_ratio']:.2f} of sdpa's time"])


def setting(options: argparse.Namespace) -> dict[str, Any]:
    """Return what runs, and on what."""
    dtype = getattr(torch, options.dtype)
    sizes = (options.batch, options.heads, options.context, options.width // options.heads)
    heads = torch.zeros(sizes, dtype=dtype, requires_grad=True)
    plan = hw.explain(heads, heads, heads, hw.Causal())
    return {
        "layers": options.layers,
        "attention": " x ".join(map(str, sizes)),
        "dtype": options.dtype,
        "backend": plan.backend,
        "instruction_set": plan.isa,
        "threads": plan.threads,
        "torch": torch.__version__,
    }


def row(*cells: object, first: int = 6) -> str:
    """Return cells in columns."""
    return f"{cells[0]:<{first}}" + "".join(f"{cell:>16}" for cell in cells[1:])


def read_options() -> tuple[argparse.ArgumentParser, argparse.Namespace]:
    """Return the parser, for its errors, and the options."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    for name, default, meaning in (
        ("steps", 300, "training steps"),
        ("batch", 2, "samples in a step"),
        ("context", 1024, "bytes in a sample"),
        ("width", 256, "width of the model"),
        ("heads", 4, "attention heads"),
        ("layers", 4, "blocks"),
        ("seed", 0, "of weights and batches"),
    ):
        parser.add_argument(
            f"--{name}", type=int, default=default, help=f"{meaning} (default {default})"
        )
    parser.add_argument("--lr", type=float, default=1e-3, help="learning rate (default 0.001)")
    parser.add_argument("--dtype", choices=("float32", "bfloat16"), default="float32")
    parser.add_argument("--text", type=Path, help="a file to learn from, read as bytes")
    parser.add_argument("--yardstick", action="store_true", help="train a third time, see above")
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    options = parser.parse_args()
    sizes = (options.batch, options.context, options.width, options.heads, options.layers)
    if options.steps < 2 or min(sizes) < 1:
        parser.error("--steps must be at least 2, for the first is not timed; sizes at least 1")
    if options.width % options.heads:
        parser.error(f"--heads must divide --width, got {options.heads} and {options.width}")
    return parser, options


def read_text(parser: argparse.ArgumentParser, options: argparse.Namespace) -> Tensor:
    """Return the text as byte values."""
    try:
        text = options.text.read_bytes() if options.text else "\n".join(topics.values()).encode()
    except OSError as failure:
        parser.error(f"--text {options.text}: {failure.strerror}")
    if len(text) <= options.context:
        parser.error(f"the text has {len(text)} bytes, and --context {options.context} needs more")
    return torch.tensor(list(text))


if __name__ == "__main__":
    main()
