"""Where a decoder looks while it writes: cross attention, measured and drawn."""

from pathlib import Path
from typing import NamedTuple

import torch
from torch import Tensor

# From little to much.
_SHADES = " .:-=+*#%@"


class Looked(NamedTuple):
    """What was written for a word, and where each phoneme of it looked.

    ``weights`` are (layers, heads, phonemes, letters), and each row sums to 1.
    """

    letters: str
    said: tuple[str, ...]
    weights: Tensor


class Measured(NamedTuple):
    """How nearly monotone a head is.

    Attributes:
        near: Share of the weights that lies at most one letter off the diagonal.
        even: What ``near`` would be if every letter had the same weight.
        onward: Share of steps whose centre of weights is not in front of that of the step before.
    """

    near: float
    even: float
    onward: float


def measure(words: list[Looked]) -> list[list[Measured]]:
    """Return the figures of each head of each layer, over all phonemes; nothing without words."""
    if not words:
        return []
    layers, heads = words[0].weights.shape[:2]
    near = torch.zeros(layers, heads, dtype=torch.float64)
    onward, even, rows, steps = torch.zeros_like(near), 0.0, 0, 0
    for word in words:
        band = beside(len(word.said), len(word.letters)).double()
        weights = word.weights.double()
        near += (weights * band).sum((2, 3))
        even += (band.mean(1)).sum().item()
        centre = weights @ torch.arange(len(word.letters), dtype=torch.float64)
        onward += (centre.diff() >= 0).sum(2)
        rows, steps = rows + len(word.said), steps + len(word.said) - 1
    return [
        [
            Measured(a / rows, even / rows, b / max(steps, 1))
            for a, b in zip(near[layer].tolist(), onward[layer].tolist(), strict=True)
        ]
        for layer in range(layers)
    ]


def steadiest(measured: list[list[Measured]]) -> tuple[int, int]:
    """Return the layer and the head that stay nearest to the diagonal."""
    places = [(layer, head) for layer, heads in enumerate(measured) for head in range(len(heads))]
    return max(places, key=lambda place: measured[place[0]][place[1]].near)


def beside(phonemes: int, letters: int) -> Tensor:
    """Say which letters lie at most one letter off the diagonal, (phonemes, letters)."""
    centre = (torch.arange(phonemes) + 0.5) / max(phonemes, 1) * letters - 0.5
    return (torch.arange(letters) - centre[:, None]).abs() <= 1.0


def drawn(word: Looked, layer: int, head: int) -> str:
    """Return the weights of a head as text: a row for each phoneme, darker for more."""
    lines = ["    " + " ".join(word.letters)]
    for phoneme, row in zip(word.said, word.weights[layer, head].tolist(), strict=True):
        shades = (_SHADES[min(int(weight * len(_SHADES)), len(_SHADES) - 1)] for weight in row)
        lines.append(f"{phoneme:<4}{' '.join(shades)}".rstrip())
    return "\n".join(lines)


def save(words: list[Looked], layer: int, head: int, path: Path) -> None:
    """Write a picture of the weights of a head for some words to a file."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(3.0 * len(words), 3.4), layout="constrained")
    for axes, word in zip(figure.subplots(1, len(words), squeeze=False)[0], words, strict=True):
        axes.imshow(word.weights[layer, head].numpy(), cmap="Blues", vmin=0.0, vmax=1.0)
        axes.set_xticks(range(len(word.letters)), list(word.letters))
        axes.set_yticks(range(len(word.said)), list(word.said))
        axes.set(title=word.letters)
    figure.suptitle(f"cross attention, layer {layer + 1}, head {head + 1}")
    figure.savefig(path, dpi=110)
