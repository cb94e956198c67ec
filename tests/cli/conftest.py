"""Tiny model folders with random weights, and the commands run as a user types them."""

from pathlib import Path

import huggingface_hub
import pytest
import torch
import transformers

from tests.cli import folders


@pytest.fixture(autouse=True)
def _no_hub(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_OFFLINE", True)
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    monkeypatch.setenv("HEADWISE_MODELS", str(tmp_path / "models"))


@pytest.fixture(scope="session")
def writer(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A Llama that writes bytes, with grouped heads and a context of 97 tokens."""
    torch.manual_seed(1)
    config = transformers.LlamaConfig(**folders.LLAMA)
    model = transformers.LlamaForCausalLM(config)
    # Random weights of the usual size give the same token over and over.
    model.lm_head.weight.data.mul_(50)
    return folders.save(model, tmp_path_factory.mktemp("writer"))


@pytest.fixture(scope="session")
def reader(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A BERT that reads bytes, at most 97 of them."""
    torch.manual_seed(2)
    model = transformers.BertModel(transformers.BertConfig(**folders.BERT))
    return folders.save(model, tmp_path_factory.mktemp("reader"))
