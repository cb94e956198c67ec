"""A Longformer-style model trains on one long document in little memory."""

import subprocess
import sys

import pytest

# 4 layers of 8 heads, 512 wide, over 16,384 tokens: the masks alone would be 34 GB of float32.
PROGRAM = """
import resource

import torch
from torch import nn

import headwise as hw


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.attention = hw.nn.LongformerAttention(512, 8, window=512)
        self.feedforward = nn.Sequential(nn.Linear(512, 2048), nn.GELU(), nn.Linear(2048, 512))
        self.norms = nn.ModuleList([nn.LayerNorm(512), nn.LayerNorm(512)])

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = x + self.attention(self.norms[0](x), [0, 1])
        return x + self.feedforward(self.norms[1](x))


torch.manual_seed(0)
length = 16_384
tokens = torch.randint(0, 256, (1, length))
embedding, head = nn.Embedding(256, 512), nn.Linear(512, 256)
model = nn.Sequential(embedding, *(Block() for _ in range(4)), head)
optimizer = torch.optim.AdamW(model.parameters(), 1e-3)
losses = []
for _ in range(2):
    loss = nn.functional.cross_entropy(model(tokens).flatten(0, 1), tokens.flatten())
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    losses.append(loss.item())
assert losses[1] < losses[0], losses
print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e6)
"""


@pytest.mark.slow
def test_16384_tokens_train_in_under_four_gigabytes() -> None:
    ran = subprocess.run(
        [sys.executable, "-c", PROGRAM], capture_output=True, text=True, check=False
    )
    assert ran.returncode == 0, ran.stderr
    assert float(ran.stdout) < 4.0
