"""Attention that learns where to look: a query block keeps the key blocks that score best.

Each block is scored by its mean query and mean key. The best key blocks, and always the block
itself, become a pattern of tiles that the kernels attend through. What a block looks for is told by
the queries of the block before it, for its own would know bytes that are still to be guessed. So
the first block after a change of topic looks in the wrong place.

Three small decoders learn to recall notes that were read long ago, side by side: one sees
everything before it, one the blocks it chose, one a window of as many keys. The choice itself has
no gradient; it is as good as queries and keys are. At first those mean nothing, so for the first
--warm-up steps all three see everything. With inputs as short as here nothing is saved: choosing
and lowering a pattern at each call costs more than attending to everything.

The default takes about half a minute on two quiet cores.

    python examples/top_k_blocks.py
    python examples/top_k_blocks.py --top 2 --steps 600
"""

# ruff: noqa: T201

import argparse
import json
import sys
import time
from collections.abc import Callable
from typing import Any

import torch
from decoder import Decoder
from recall_task import Recall
from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    TextColumn,
    TimeRemainingColumn,
)
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

import headwise as hw

ROW_EVERY = 50
JUDGED = 32  # samples that nobody learned from

Rule = Callable[[Tensor, Tensor], hw.patterns.Pattern]


def choose(query: Tensor, key: Tensor, block: int, top: int) -> Tensor:
    """Choose ``top`` key blocks for every query block, its own among them.

    Returns:
        (batch, 1, blocks, blocks) booleans, one choice for all heads. What a row holds depends on
        nothing in its own block or after it.
    """
    batch, heads, length, width = key.shape
    blocks = -(-length // block)
    fill = (0, 0, 0, blocks * block - length)
    with torch.no_grad():
        means = [
            nn.functional.pad(tensor, fill).view(batch, heads, blocks, block, width).mean(3)
            for tensor in (query, key)
        ]
        scores = (means[0] @ means[1].mT).mean(1, keepdim=True).roll(1, 2)
        number = torch.arange(blocks)
        past = number < number.unsqueeze(1)
        kept = scores.masked_fill(~past, float("-inf")).topk(min(top, blocks) - 1).indices
        chosen = torch.zeros_like(scores, dtype=torch.bool).scatter(3, kept, True)
    return (chosen & past) | torch.eye(blocks, dtype=torch.bool)


def see_everything(query: Tensor, key: Tensor) -> hw.patterns.Pattern:
    """Let a query see all that is not after it."""
    return hw.Causal()


class PatternAttention:
    """Attends through the pattern that a rule makes of queries and keys; keeps the last one."""

    def __init__(self, rule: Rule) -> None:
        self.rule = rule
        self.pattern: hw.patterns.Pattern = hw.Full()

    def __call__(self, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        """Attend to what the rule allows."""
        self.pattern = self.rule(query, key)
        return hw.attend(query, key, value, self.pattern)


def rules(block: int, top: int) -> dict[str, Rule]:
    """Return the three ways to attend; the last two see as many keys."""
    return {
        "full": see_everything,
        "top-k": lambda query, key: (
            hw.patterns.Tiles(choose(query, key, block, top), block) & hw.Causal()
        ),
        "window": lambda query, key: hw.patterns.sliding_causal(top * block),
    }


class Training:
    """One of the trainings: a model, its optimizer, and what was measured."""

    def __init__(self, rule: Rule, task: Recall, options: argparse.Namespace) -> None:
        torch.manual_seed(options.seed)
        self.task, self.options, self.rule = task, options, rule
        self.attention = PatternAttention(see_everything)
        sizes = (options.width, options.heads, options.layers, task.length)
        self.model = Decoder(*sizes, self.attention)
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=options.lr)
        self.losses: list[float] = []
        self.seconds = 0.0

    def step(self, ids: Tensor, answers: Tensor) -> None:
        """Learn from one batch."""
        if len(self.losses) == self.options.warm_up:
            self.attention.rule, self.seconds = self.rule, 0.0
        started = time.perf_counter()
        loss = cross_entropy(self._scores(ids), answers)
        self.optimizer.zero_grad()
        torch.autograd.backward(loss)
        self.optimizer.step()
        self.seconds += time.perf_counter() - started
        self.losses.append(loss.item())

    def figures(self, ids: Tensor, answers: Tensor) -> dict[str, float]:
        """Judge the model by samples that it has not seen."""
        with torch.no_grad():
            scores = self._scores(ids)
        lost = cross_entropy(scores, answers)
        right = (scores.argmax(1) == answers).float()
        right = right.view(len(ids), self.task.asked, self.task.stretch, -1)
        heads = torch.zeros(
            len(ids), self.options.heads, ids.shape[1], self.options.width // self.options.heads
        )
        plan = hw.explain(heads, heads, heads, self.attention.pattern)
        return {
            "loss": lost.item(),
            "right answers": right.mean().item(),
            "right in first blocks": right[:, :, :1].mean().item(),
            "right in later blocks": right[:, :, 1:].mean().item(),
            "share of pairs": plan.live_fraction,
            "tiles a sample": plan.live_tiles / len(ids),
            "seconds a step": self.seconds / (len(self.losses) - self.options.warm_up),
        }

    def _scores(self, ids: Tensor) -> Tensor:
        """Return the scores of every byte as the answer, (samples, 256, questions)."""
        scores: Tensor = self.model(ids)
        return scores[:, self.task.told :].mT


def main() -> None:
    """Read the options, train, print."""
    parser, options = read_options()
    task = Recall(block=options.block)
    runs = {
        name: Training(rule, task, options)
        for name, rule in rules(options.block, options.top).items()
    }
    generator = torch.Generator().manual_seed(options.seed)
    if not options.json:
        print(f"{task.length} bytes a sample; blocks of {options.block}, {options.top} kept")
        print(row("loss at step", *runs))
    try:
        train(runs, task, options, generator)
    except KeyboardInterrupt:
        parser.exit(130, f"stopped after {len(runs['window'].losses)} steps\n")
    judged = task.batch(JUDGED, generator)
    figures = {name: run.figures(*judged) for name, run in runs.items()}
    if options.json:
        losses = {name: run.losses for name, run in runs.items()}
        print(json.dumps({"setting": vars(options), "runs": figures, "losses": losses}))
        return
    print("\n" + row(f"{JUDGED} new samples", *runs))
    for key in figures["full"]:
        print(row(key, *(f"{found[key]:.4g}" for found in figures.values())))
    print(f"\nguessing gives a loss of {torch.tensor(float(task.values)).log():.4g}")


def train(
    runs: dict[str, Training], task: Recall, options: argparse.Namespace, generator: torch.Generator
) -> None:
    """Let the trainings take turns at the same batches; print a row now and then."""
    console = Console(stderr=True)
    with Progress(
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TextColumn("steps"),
        TimeRemainingColumn(),
        console=console,
        transient=True,
        disable=not console.is_terminal,
        redirect_stdout=sys.stdout.isatty(),
    ) as progress:
        bar = progress.add_task("Training", total=options.steps)
        for step in range(1, options.steps + 1):
            batch = task.batch(options.batch, generator)
            for run in runs.values():
                run.step(*batch)
            progress.advance(bar)
            if not options.json and (step % ROW_EVERY == 0 or step in (1, options.steps)):
                print(row(step, *(f"{run.losses[-1]:.4f}" for run in runs.values())))


def row(*cells: Any) -> str:  # noqa: ANN401
    """Return cells in columns."""
    return f"{cells[0]:<22}" + "".join(f"{cell:>10}" for cell in cells[1:])


def read_options() -> tuple[argparse.ArgumentParser, argparse.Namespace]:
    """Return the parser, for its errors, and the options."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    for name, default, meaning in (
        ("steps", 250, "training steps"),
        ("warm_up", 100, "of these, how many see everything"),
        ("batch", 8, "samples in a step"),
        ("block", 16, "bytes in a block"),
        ("top", 3, "key blocks that a query block keeps, its own among them"),
        ("width", 64, "width of the model"),
        ("heads", 1, "attention heads"),
        ("layers", 1, "blocks of the model"),
        ("seed", 0, "of weights and samples"),
    ):
        parser.add_argument(
            f"--{name.replace('_', '-')}",
            type=int,
            default=default,
            help=f"{meaning} (default {default})",
        )
    parser.add_argument("--lr", type=float, default=5e-3, help="learning rate (default 0.005)")
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    options = parser.parse_args()
    for name in ("steps", "batch", "block", "top", "width", "heads", "layers"):
        if getattr(options, name) < 1:
            parser.error(f"--{name} must be at least 1, got {getattr(options, name)}")
    if not 0 <= options.warm_up < options.steps:
        parser.error(f"--warm-up must be from 0 to {options.steps - 1}, got {options.warm_up}")
    if options.width % options.heads:
        parser.error(f"--heads must divide --width, got {options.heads} and {options.width}")
    return parser, options


if __name__ == "__main__":
    main()
