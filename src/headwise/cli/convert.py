"""Turns a GGUF file into a transformers folder with float32 weights."""

import io
from contextlib import redirect_stderr
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file

from headwise.cli.output import steps
from headwise.cli.packages import require_transformers


def gguf_to_transformers(gguf: Path, target: Path) -> None:
    """Write ``config.json``, ``model.safetensors`` and the tokenizer's files into ``target``.

    transformers reads the file but refuses to save a model that it read so; the folder is
    therefore built from the model's configuration and its numbers.

    Args:
        gguf: The file to read; its numbers may be quantised.
        target: The folder to fill; created here.

    Raises:
        Unable: transformers is not installed.
    """
    transformers = require_transformers()
    where = {"pretrained_model_name_or_path": str(gguf.parent), "gguf_file": gguf.name}
    with steps() as progress:
        task = progress.add_task("Reading the tokenizer", total=3)
        tokenizer = transformers.AutoTokenizer.from_pretrained(**where)
        progress.update(task, advance=1, description="Unpacking the weights")
        with redirect_stderr(io.StringIO()):  # where transformers would draw bars of its own
            model = transformers.AutoModelForCausalLM.from_pretrained(**where, dtype=torch.float32)
        progress.update(task, advance=1, description="Writing the folder")
        target.mkdir()
        config = model.config
        del config.quantization_config
        config.architectures = [type(model).__name__]
        save_file(_own_numbers(model), target / "model.safetensors", metadata={"format": "pt"})
        config.save_pretrained(target)
        model.generation_config.save_pretrained(target)
        tokenizer.save_pretrained(target)
        progress.advance(task)


def _own_numbers(model: Any) -> dict[str, Any]:
    """Return the state dict with every stored tensor once: tied ones are tied again on loading."""
    seen: set[int] = set()
    numbers = {}
    for name, tensor in model.state_dict().items():
        if tensor.data_ptr() not in seen:
            seen.add(tensor.data_ptr())
            numbers[name] = tensor.contiguous()
    return numbers
