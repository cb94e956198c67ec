"""Give a model that is made of torch's layers another attention, in the middle of its training.

An nn.TransformerEncoder learns to recall notes. Then every nn.MultiheadAttention inside it is
replaced by hw.nn.TorchMultiheadAttention, which takes over the parameters: the outputs stay what
they were, the optimizer goes on, and the state dict has the same names. A copy keeps torch's layers
to compare with; the two are timed in turns, so that what disturbs the machine disturbs both.

The default takes about ten seconds on two quiet cores.

    python examples/swap_attention.py
    python examples/swap_attention.py --width 256 --layers 4
"""

# ruff: noqa: T201

import argparse
import copy
import json
import time
from collections.abc import Callable
from statistics import median
from typing import Any

import torch
from recall_task import Recall
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

import headwise as hw

VOCABULARY = 256


def swap(model: nn.Module) -> list[str]:
    """Replace torch's attention layers in place; return the names of those that were found."""
    found = [name for name, part in model.named_modules() if type(part) is nn.MultiheadAttention]
    for name in found:
        theirs: Any = model.get_submodule(name)
        model.set_submodule(name, hw.nn.TorchMultiheadAttention.from_torch(theirs))
    return found


class Reader(nn.Module):
    """Answers at every question, from all bytes at once; there is nothing of headwise in it."""

    def __init__(self, width: int, heads: int, layers: int, task: Recall) -> None:
        super().__init__()
        self.told = task.told
        self.bytes = nn.Embedding(VOCABULARY, width)
        self.places = nn.Parameter(0.02 * torch.randn(task.length, width))
        layer = nn.TransformerEncoderLayer(
            width, heads, 4 * width, dropout=0.0, batch_first=True, norm_first=True
        )
        self.encoder = nn.TransformerEncoder(layer, layers, enable_nested_tensor=False)
        self.head = nn.Linear(width, VOCABULARY)

    def forward(self, ids: Tensor) -> Tensor:
        """Return the scores of every byte as the answer, (batch, 256, questions)."""
        x = self.encoder(self.bytes(ids) + self.places)
        scores: Tensor = self.head(x[:, self.told :]).mT
        return scores


def main() -> None:
    """Train, swap, compare, train on, print."""
    options = read_options()
    torch.manual_seed(options.seed)
    generator = torch.Generator().manual_seed(options.seed)
    task = Recall(block=options.block)
    model = Reader(options.width, options.heads, options.layers, task)
    optimizer = torch.optim.AdamW(model.parameters(), lr=options.lr)

    def learn() -> list[float]:
        losses = []
        for _ in range(options.steps):
            loss = loss_of(model, *task.batch(options.batch, generator))
            optimizer.zero_grad()
            torch.autograd.backward(loss)
            optimizer.step()
            losses.append(loss.item())
        return losses

    before = learn()
    kept = copy.deepcopy(model)
    swapped = swap(model)
    batch = task.batch(options.batch, generator)
    found: dict[str, Any] = {
        "swapped": swapped,
        "largest_difference": difference(kept, model, batch[0]),
        "milliseconds": clocked({"torch": kept, "headwise": model}, *batch, options.rounds),
        "losses": before + learn(),
    }
    print(json.dumps(found) if options.json else summary(found))


def loss_of(model: nn.Module, ids: Tensor, answers: Tensor) -> Tensor:
    """Return the mean surprise, in nats, at the answers."""
    return cross_entropy(model(ids), answers)


def difference(one: nn.Module, other: nn.Module, ids: Tensor) -> float:
    """Return the largest gap between the outputs, as a share of the largest output.

    It is looked for in training and in inference, where torch's layer takes another way.
    """
    gaps: list[float] = []
    for training in (True, False):
        with torch.set_grad_enabled(training):
            outputs = one.train(training)(ids), other.train(training)(ids)
        gap = (outputs[0] - outputs[1]).abs().max() / outputs[0].abs().max()
        gaps.append(gap.item())
    return max(gaps)


def clocked(
    models: dict[str, nn.Module], ids: Tensor, answers: Tensor, rounds: int
) -> dict[str, dict[str, float]]:
    """Return the median milliseconds of each model for what people do with it."""

    def infer(model: nn.Module) -> None:
        with torch.no_grad():
            model.eval()(ids)

    def train(model: nn.Module) -> None:
        torch.autograd.backward(loss_of(model.train(), ids, answers))
        model.zero_grad()

    doing: dict[str, Callable[[nn.Module], None]] = {"inference": infer, "training": train}
    taken: dict[str, dict[str, list[float]]] = {
        what: {name: [] for name in models} for what in doing
    }
    for number in range(rounds + 1):
        for what, run in doing.items():
            for name, model in models.items():
                started = time.perf_counter()
                run(model)
                if number:  # the first round warms up
                    taken[what][name].append(1e3 * (time.perf_counter() - started))
    return {
        what: {name: median(times) for name, times in by_name.items()}
        for what, by_name in taken.items()
    }


def summary(found: dict[str, Any]) -> str:
    """Return what was found as lines for people."""
    losses, half = found["losses"], len(found["losses"]) // 2
    lines = [
        f"replaced: {', '.join(found['swapped'])}",
        f"outputs differ by at most {found['largest_difference']:.1e} of the largest",
        "",
        f"{'milliseconds':<14}{'torch':>10}{'headwise':>10}{'ratio':>8}",
    ]
    for what, times in found["milliseconds"].items():
        torchs, ours = times["torch"], times["headwise"]
        lines.append(f"{what:<14}{torchs:>10.2f}{ours:>10.2f}{ours / torchs:>8.2f}")
    told = (
        f"{losses[0]:.3f} at first, {losses[half - 1]:.3f} after {half} steps with torch's layers"
    )
    return "\n".join([*lines, "", f"loss {told}, {losses[-1]:.3f} after {half} with headwise's"])


def read_options() -> argparse.Namespace:
    """Return the options."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    for name, default, meaning in (
        ("steps", 60, "training steps, before the swap and again after it"),
        ("batch", 8, "samples in a step"),
        ("block", 16, "bytes in a block of the task; a sample has twenty"),
        ("width", 64, "width of the model"),
        ("heads", 4, "attention heads"),
        ("layers", 2, "layers of the encoder"),
        ("rounds", 10, "rounds of the clock"),
        ("seed", 0, "of weights and samples"),
    ):
        parser.add_argument(
            f"--{name}", type=int, default=default, help=f"{meaning} (default {default})"
        )
    parser.add_argument("--lr", type=float, default=1e-3, help="learning rate (default 0.001)")
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    options = parser.parse_args()
    for name in ("steps", "batch", "block", "width", "heads", "layers", "rounds"):
        if getattr(options, name) < 1:
            parser.error(f"--{name} must be at least 1, got {getattr(options, name)}")
    if options.width % options.heads:
        parser.error(f"--heads must divide --width, got {options.heads} and {options.width}")
    return options


if __name__ == "__main__":
    main()
