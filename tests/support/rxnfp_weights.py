"""A masked-token model of chemical reactions, as its package stores it, and its words."""

import re
from pathlib import Path
from typing import Any

import torch
import transformers

from headwise.cli.demo_models import DemoModel
from headwise.cli.fetch import Member

_FOLDER = "rxnfp/models/transformers/bert_pretrained"
_WORD = re.compile(r"\[[^\]]+\]|Br|Cl|>>|%\d\d|.")

RXNFP = DemoModel(
    name="rxnfp-bert-pretrained",
    package="rxnfp==0.1.0",
    members=tuple(
        Member(f"{_FOLDER}/{name}", sha256)
        for name, sha256 in (
            (
                "config.json",
                "024d89cb6056e146e066ebbcd9d565d6968d53e82953570a8b110b26495d7d4b",
            ),
            (
                "pytorch_model.bin",
                "50a6ed263d33ae759affa82c1e85554cc5ea9f56145f5c7fb39b6c25d4356437",
            ),
            (
                "vocab.txt",
                "399868a653e85549ce150af4a1f6cd2776240c6a3d951ced2120565f00f027fd",
            ),
        )
    ),
)


def reaction_model(folder: Path) -> Any:
    """Load the model with both of its heads, with eager attention."""
    config = transformers.BertConfig.from_json_file(folder / "config.json")
    config._attn_implementation = "eager"
    model: Any = transformers.BertForPreTraining(config)
    stored = torch.load(folder / "pytorch_model.bin", weights_only=True, map_location="cpu")
    lost = model.load_state_dict(stored, strict=False)
    assert lost.missing_keys == ["cls.predictions.decoder.bias"]  # tied to cls.predictions.bias
    assert not lost.unexpected_keys
    return model.eval()


def numbers_of(folder: Path, text: str) -> list[int]:
    """Return the numbers of the words of a reaction or of special tokens, written as SMILES."""
    words = (folder / "vocab.txt").read_text().splitlines()
    return [words.index(word) for word in _WORD.findall(text)]
