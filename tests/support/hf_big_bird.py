"""Tiny BigBird models with random weights, and what to give them."""

from typing import Any

import torch
import transformers
from torch import Tensor, nn

BLOCK, RANDOM, VOCAB = 4, 2, 61
# Up to so many tokens the models turn to full attention.
SHORT = (5 + 2 * RANDOM) * BLOCK


def tiny(kind: Any = transformers.BigBirdModel, training: bool = False, **changes: Any) -> Any:
    numbers = {
        "vocab_size": VOCAB,
        "hidden_size": 24,
        "num_attention_heads": 3,
        "num_hidden_layers": 2,
        "intermediate_size": 40,
        "block_size": BLOCK,
        "num_random_blocks": RANDOM,
        "max_position_embeddings": 128,
        "hidden_dropout_prob": 0.0,
        "attention_probs_dropout_prob": 0.0,
    }
    with torch.random.fork_rng():
        torch.manual_seed(7)
        model = kind(transformers.BigBirdConfig(**{**numbers, **changes}))
        for weight in model.parameters():
            nn.init.normal_(weight, std=0.3)
    return model.train(training)


def tiny_pegasus(training: bool = False, **changes: Any) -> Any:
    numbers = {
        "vocab_size": VOCAB,
        "d_model": 24,
        "encoder_layers": 2,
        "decoder_layers": 2,
        "encoder_attention_heads": 3,
        "decoder_attention_heads": 3,
        "encoder_ffn_dim": 40,
        "decoder_ffn_dim": 40,
        "block_size": BLOCK,
        "num_random_blocks": RANDOM,
        "max_position_embeddings": 128,
        "dropout": 0.0,
        "attention_dropout": 0.0,
    }
    with torch.random.fork_rng():
        torch.manual_seed(7)
        config = transformers.BigBirdPegasusConfig(**{**numbers, **changes})
        model = transformers.BigBirdPegasusForConditionalGeneration(config)
        for weight in model.parameters():
            nn.init.normal_(weight, std=0.3)
    return model.train(training)


def tokens(length: int, padding: str = "none") -> dict[str, Tensor]:
    mask = torch.ones(2, length, dtype=torch.long)
    if padding == "right":
        mask[1, length - 6 :] = 0
    if padding == "scattered":
        mask[0, :3] = mask[1, [0, 20, length - 1]] = 0
    return {"input_ids": torch.randint(3, VOCAB, (2, length)), "attention_mask": mask}
