"""Longformer and BigBird of one attention's width or more, random, for long documents."""

import ctypes
import gc
import json
import sys
from pathlib import Path
from typing import Any

import torch
import transformers
from torch import nn

from benchmarks.peak_memory import kilobytes
from headwise import hf

FAMILIES: dict[str, tuple[Any, dict[str, Any]]] = {
    "longformer": (transformers.LongformerConfig, {"attention_window": 512, "sep_token_id": 2}),
    "big_bird": (transformers.BigBirdConfig, {"attention_type": "block_sparse"}),
}


def long_model(name: str, *, width: int = 768, layers: int = 2, tokens: int = 4096) -> Any:
    """Build a model whose scores differ enough to tell one pattern from another."""
    config, numbers = FAMILIES[name]
    torch.manual_seed(5)
    build: Any = transformers.AutoModel.from_config
    model = build(
        config(
            vocab_size=30_522,
            hidden_size=width,
            num_attention_heads=width // 64,
            intermediate_size=4 * width,
            num_hidden_layers=layers,
            max_position_embeddings=tokens + 2,
            **numbers,
        ),
        add_pooling_layer=False,
    )
    for label, part in model.named_modules():
        if isinstance(part, nn.Linear) and ("query" in label or "key" in label):
            nn.init.normal_(part.weight, std=(2 / width) ** 0.5)
    return model.eval()


def main() -> None:
    """Print the peaks of an accelerated layer, in MB over what was there: NAME LENGTH …."""
    name, *lengths = sys.argv[1:]
    model = hf.accelerate(long_model(name, width=192, layers=1, tokens=max(map(int, lengths))))
    found = {}
    for length in (2048, *map(int, lengths)):  # the first sets up what stays
        ids = torch.randint(5, 30_000, (1, length))
        gc.collect()
        ctypes.CDLL(None).malloc_trim(0)
        Path("/proc/self/clear_refs").write_text("5")
        before = kilobytes("VmRSS")
        with torch.inference_mode():
            model(ids)
        found[length] = (kilobytes("VmHWM") - before) * 1024 / 1e6
    sys.stdout.write(json.dumps([found[int(length)] for length in lengths]))


if __name__ == "__main__":
    main()
