"""Kernels read and write what they are given, and nothing beside it."""

import os
import subprocess
import sys
import threading

import pytest
import torch

import headwise as hw
from tests.support.budget import assert_same_bits
from tests.support.paths import ISAS, Path, on_native
from tests.support.shapes import Inputs, Sizes, inputs

FENCED = """
import ctypes, mmap, os, sys
import torch
import headwise as hw
from headwise import _native

PAGE = mmap.PAGESIZE
libc = ctypes.CDLL(None, use_errno=True)
kept = []


def fenced(tensor, at_end):
    'Copy a tensor to memory whose neighbouring pages cannot be touched.'
    pages = -(-tensor.nbytes // PAGE)
    room = mmap.mmap(-1, (pages + 2) * PAGE)
    start = ctypes.addressof(ctypes.c_char.from_buffer(room))
    offset = PAGE + (pages * PAGE - tensor.nbytes if at_end else 0)
    count = tensor.numel()
    copy = torch.frombuffer(room, dtype=tensor.dtype, count=count, offset=offset)
    copy = copy.view(tensor.shape)
    copy.copy_(tensor)
    for page in (0, pages + 1):
        assert libc.mprotect(ctypes.c_void_p(start + page * PAGE), PAGE, 0) == 0
    kept.append(room)
    return copy


with _native.use_isa(sys.argv[1]):
    for q_len in (1, 5, 47, 50, 97):
        for kv_len in (1, 3, 127, 129, 261):
            for head_dim, value_dim in ((1, 1), (7, 5), (16, 16), (19, 23), (33, 65)):
                query = torch.randn(1, 2, q_len, head_dim)
                key = torch.randn(1, 1, kv_len, head_dim)
                given = [query, key, torch.randn(1, 1, kv_len, value_dim)]
                bias = torch.randn(q_len, kv_len)
                for keywords in ({}, {"bias": bias}):
                    wanted = hw.attend(*given, hw.Causal(), backend="native", **keywords)
                    for at_end in (True, False):
                        walled = [fenced(tensor, at_end) for tensor in given]
                        own = {name: fenced(b, at_end) for name, b in keywords.items()}
                        found = hw.attend(*walled, hw.Causal(), backend="native", **own)
                        assert torch.equal(found, wanted)
print("within bounds", flush=True)
os._exit(0)
"""

FORKED = """
import os, sys
import torch
import headwise as hw
from headwise import _native

torch.set_num_threads(2)
torch.manual_seed(0)
query, key, value = torch.randn(3, 2, 4, 97, 300).unbind(0)
with _native.use_isa(sys.argv[1]):
    wanted = hw.attend(query, key, value, hw.Causal(), backend="native")
    few = hw.attend(query[:, :, :3], key, value, backend="native")
    child = os.fork()
    if child == 0:
        found = hw.attend(query, key, value, hw.Causal(), backend="native")
        again = hw.attend(query[:, :, :3], key, value, backend="native")
        fresh = hw.Window(60, 7) & hw.KeyMask(torch.ones(2, 97))  # not lowered before the fork
        hw.attend(query, key, value, fresh, backend="native")
        same = found.numpy().tobytes() == wanted.numpy().tobytes()
        os._exit(0 if same and again.numpy().tobytes() == few.numpy().tobytes() else 3)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
print("the same in the child")
"""


def run(program: str, isa: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", program, isa],
        env={**os.environ, "OMP_NUM_THREADS": "2"},
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
    )


@pytest.mark.parametrize("isa", ISAS)
def test_nothing_is_read_past_either_end(isa: str) -> None:
    done = run(FENCED, isa)
    assert done.stdout == "within bounds\n", f"exit code {done.returncode}\n{done.stderr}"


@pytest.mark.parametrize("isa", ISAS)
def test_a_forked_child_computes_the_same_without_hanging(isa: str) -> None:
    done = run(FORKED, isa)
    assert done.stdout == "the same in the child\n", f"exit code {done.returncode}\n{done.stderr}"


@on_native
def test_memory_that_is_not_aligned(path: Path) -> None:
    given = inputs(Sizes(1, 2, 2, 50, 140, 16, 16))
    with path.taken() as backend:
        wanted = hw.attend(*given, hw.Causal(), backend=backend)
        for shift in (1, 2, 3, 5):
            moved = []
            for tensor in given:
                room = torch.empty(tensor.numel() + shift)
                moved.append(room[shift:].view(tensor.shape).copy_(tensor))
            assert_same_bits(hw.attend(*Inputs(*moved), hw.Causal(), backend=backend), wanted)


@on_native
def test_inputs_are_left_as_they_were(path: Path) -> None:
    given = inputs(Sizes(1, 2, 2, 50, 140, 16, 16))
    copies = [t.clone() for t in given]
    with path.taken() as backend:
        hw.attend(*given, hw.Causal(), bias=torch.zeros(50, 140), scale=-1.0, backend=backend)
    for before, after in zip(copies, given, strict=True):
        assert_same_bits(after, before)


@on_native
def test_the_output_lies_as_the_query_does(path: Path) -> None:
    """Joining heads after attention is free where the query came from a layer."""
    given = inputs(Sizes(2, 3, 1, 7, 7, 8, 8))
    inside = Inputs(*(t.transpose(1, 2).contiguous().transpose(1, 2) for t in given))
    with path.taken() as backend:
        output = hw.attend(*inside, backend=backend)
        wanted = hw.attend(*given, backend=backend)
    assert output.transpose(1, 2).is_contiguous()
    assert_same_bits(output, wanted)


@on_native
def test_several_python_threads_at_once(path: Path) -> None:
    calls = [inputs(Sizes(1, 2, 2, q_len, 300, 32, 32), seed=q_len) for q_len in (1, 3, 97, 130)]
    found: dict[int, list[torch.Tensor]] = {}
    with path.taken() as backend:
        wanted = [hw.attend(*given, hw.Causal(), backend=backend) for given in calls]

        def work(number: int) -> None:
            torch.set_num_threads(path.threads)
            found[number] = [
                hw.attend(*given, hw.Causal(), backend=backend) for _ in range(5) for given in calls
            ]

        workers = [threading.Thread(target=work, args=(number,)) for number in range(3)]
        for worker in workers:
            worker.start()
        for worker in workers:
            worker.join()
    for outputs in found.values():
        for output, right in zip(outputs, wanted * 5, strict=True):
            assert_same_bits(output, right)
    assert len(found) == 3
