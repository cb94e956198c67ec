"""Children of a fork, data loaders and several Python threads compute the same, and never hang."""

import os
import subprocess
import sys
import threading
from pathlib import Path

import torch
from torch import Tensor

import headwise as hw
from tests.support.budget import assert_same_bits
from tests.support.shapes import Inputs, Sizes, inputs

LIMIT = 60  # seconds after which a child counts as hanging

FORKED = """
import os, signal
import torch
import headwise as hw

torch.set_num_threads(2)
torch.manual_seed(0)
DTYPES = (torch.float32, torch.bfloat16)


# Everything that torch itself makes stands before the fork.
PREPARED = []
for dtype in DTYPES:
    given = [t.to(dtype).requires_grad_() for t in torch.randn(3, 2, 4, 300, 64).unbind(0)]
    turned = given[0].detach().mT.contiguous().mT
    bias = torch.zeros(300, 300, requires_grad=True)
    PREPARED.append((given, turned, bias, torch.randn(2, 4, 300, 64).to(dtype)))
PADDED = torch.ones(2, 300, dtype=torch.bool)
PADDED[1, 200:] = False
SQUARE = torch.rand(300, 300) < 0.7
FLAGS = SQUARE.float()


def forward():
    for given, turned, bias, _ in PREPARED:
        yield hw.attend(*given, hw.Causal() & hw.KeyMask(PADDED), backend="native")
        yield hw.attend(turned, *given[1:], backend="native")
        both = hw.Dense(SQUARE) | hw.Dense(FLAGS)
        yield hw.attend(*given, both, bias=bias, dropout_p=0.1, backend="native")


def backward(outputs):
    for (given, _, bias, upstream), output in zip(PREPARED, outputs[2::3]):
        yield from torch.autograd.grad(output, [*given, bias], upstream)


def bits(tensors):
    return [t.detach().view(torch.int16).numpy().tobytes() for t in tensors]


state = torch.get_rng_state()
outputs = list(forward())
before = bits(outputs)
child = os.fork()
if child == 0:
    signal.alarm(30)
    torch.set_rng_state(state)
    again = list(forward())
    with open(os.environ["FOUND"], "wb") as file:
        file.writelines(bits(backward(again)))
    os._exit(0 if bits(again) == before and torch.get_num_threads() == 2 else 3)
code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
assert code == 0, code
with open(os.environ["FOUND"], "rb") as file:
    assert file.read() == b"".join(bits(backward(outputs)))
print("the same in the child")
"""

LOADED = """
import torch
from torch.utils.data import DataLoader, Dataset
import headwise as hw


class Attended(Dataset):
    def __len__(self):
        return 8

    def __getitem__(self, index):
        x = torch.full((2, 70, 16), float(index)) + torch.arange(70).view(-1, 1)
        return hw.attend(x, x, x, hw.Causal(), backend="native")


if __name__ == "__main__":
    torch.set_num_threads(2)
    data = Attended()
    wanted = torch.stack([data[index] for index in range(8)])
    for method in ("fork", "spawn"):
        loader = DataLoader(data, batch_size=2, num_workers=2, multiprocessing_context=method)
        assert torch.equal(torch.cat(list(loader)), wanted), method
    print("the same in workers")
"""


def run(program: str, *arguments: str, **environment: str) -> str:
    done = subprocess.run(
        [sys.executable, *arguments, program],
        env={**os.environ, "OMP_NUM_THREADS": "2", **environment},
        capture_output=True,
        text=True,
        check=False,
        timeout=LIMIT,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_a_forked_child(tmp_path: Path) -> None:
    assert run(FORKED, "-c", FOUND=str(tmp_path / "found")) == "the same in the child\n"


def test_workers_of_a_data_loader(tmp_path: Path) -> None:
    program = tmp_path / "loaded.py"
    program.write_text(LOADED, encoding="utf-8")
    assert run(str(program)) == "the same in workers\n"


def test_several_python_threads_at_once() -> None:
    """Each lowers patterns, attends, and derives; all get the bits of a thread alone."""
    calls = [inputs(Sizes(1, 2, 2, q_len, 300, 32, 32), seed=q_len) for q_len in (1, 3, 97, 130)]

    def work(given: Inputs, window: int) -> list[Tensor]:
        learned = Inputs(*(part.clone().requires_grad_() for part in given))
        pattern = hw.Window(window, 5) & hw.KeyMask(torch.ones(300))
        output = hw.attend(*learned, pattern, backend="native")
        return [output, *torch.autograd.grad(output.square().sum(), learned)]

    wanted = [work(given, window) for window in (9, 70) for given in calls]
    found: dict[int, list[list[Tensor]]] = {}

    def worker(number: int) -> None:
        torch.set_num_threads(2)
        found[number] = [work(given, window) for window in (9, 70) for given in calls]

    workers = [threading.Thread(target=worker, args=(number,)) for number in range(4)]
    for thread in workers:
        thread.start()
    for thread in workers:
        thread.join(LIMIT)
    assert len(found) == len(workers)
    for results in found.values():
        for result, right in zip(results, wanted, strict=True):
            for one, other in zip(result, right, strict=True):
                assert_same_bits(one, other)
