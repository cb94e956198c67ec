"""A decoder with another attention in every layer: trained, saved, loaded, and asked to go on.

It learns to count up and down between two numbers; the layers look through a window, carry a state,
and see everything.

    python examples/own_model.py
    python examples/own_model.py --steps 400 --layers "window(7, 0)" linear
"""

# ruff: noqa: T201

import argparse
import tempfile

import torch
from torch import Tensor
from transformers import AutoModelForCausalLM

import headwise as hw

NUMBERS = 16


def counts(rows: int, length: int) -> Tensor:
    """Return rows that count up and down, each from a place of its own, (rows, length)."""
    turns = torch.cat((torch.arange(NUMBERS), torch.arange(NUMBERS - 2, 0, -1)))
    starts = torch.randint(len(turns), (rows, 1))
    return turns[(starts + torch.arange(length)) % len(turns)]


def configuration(layers: list[str]) -> hw.models.HeadwiseConfig:
    """Return a decoder with a pattern, a mechanism or all tokens in each layer."""
    mechanisms = [layer if layer == "linear" else None for layer in layers]
    patterns = [None if layer in ("linear", "full") else layer for layer in layers]
    return hw.models.llama(
        vocab_size=NUMBERS,
        d_model=32,
        num_layers=len(layers),
        num_heads=4,
        num_kv_heads=2,
        hidden_dim=64,
        pattern=patterns,
        mechanism=mechanisms,
    )


def train(model: torch.nn.Module, steps: int) -> list[float]:
    """Return the loss of every step."""
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    losses = []
    for _ in range(steps):
        ids = counts(16, 40)
        loss = model.train()(ids, labels=ids).loss
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses


def main() -> None:
    """Train, save, load and generate."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--steps", type=int, default=150)
    parser.add_argument("--layers", nargs="+", default=["window(7, 0)", "linear", "full"])
    asked = parser.parse_args()
    if asked.steps < 1:
        parser.error(f"--steps must be at least 1, got {asked.steps}")
    torch.manual_seed(0)
    model = hw.models.HeadwiseForCausalLM(configuration(asked.layers))
    losses = train(model, asked.steps)
    print(f"loss {losses[0]:.3f} to {losses[-1]:.3f} in {asked.steps} steps")
    hw.models.register()
    with tempfile.TemporaryDirectory() as folder:
        model.save_pretrained(folder)
        loaded = AutoModelForCausalLM.from_pretrained(folder)
    begun = counts(1, 12)
    went_on = loaded.generate(begun, max_new_tokens=20, do_sample=False)[0, 12:]
    print("begun  ", *begun[0].tolist())
    print("went on", *went_on.tolist())


if __name__ == "__main__":
    main()
