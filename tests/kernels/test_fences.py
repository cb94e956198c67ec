"""Kernels forwards and backwards between pages that cannot be touched, results included."""

import os
import subprocess
import sys

import pytest

from tests.support.paths import ISAS

PROGRAM = """
import ctypes, itertools, math, mmap, os, sys
import torch
import headwise as hw
from headwise import _native
from headwise.patterns.grid import grids
from headwise.patterns.lowering import lower

PAGE = mmap.PAGESIZE
libc = ctypes.CDLL(None, use_errno=True)
K = _native.kernels
rooms = {}


def fenced(tensor, at_end):
    'Copy a tensor to memory whose neighbouring pages cannot be touched.'
    pages = -(-tensor.nbytes // PAGE)
    kept = rooms.setdefault(pages, [])
    if kept:
        room = kept.pop()
    else:
        room = mmap.mmap(-1, (pages + 2) * PAGE)
        start = ctypes.addressof(ctypes.c_char.from_buffer(room))
        for page in (0, pages + 1):
            assert libc.mprotect(ctypes.c_void_p(start + page * PAGE), PAGE, 0) == 0
    used.append((pages, room))
    offset = PAGE + (pages * PAGE - tensor.nbytes if at_end else 0)
    copy = torch.frombuffer(room, dtype=tensor.dtype, count=tensor.numel(), offset=offset)
    return copy.view(tensor.shape).copy_(tensor)


def call(place, q_len, kv_len, head_dim, value_dim, dtype, pattern, kind):
    'Run the three kernels on tensors that place() puts somewhere; return all results.'
    torch.manual_seed(0)
    query = place(torch.randn(2, 4, q_len, head_dim).to(dtype))
    key = place(torch.randn(2, 2, kv_len, head_dim).to(dtype))
    value = place(torch.randn(2, 2, kv_len, value_dim).to(dtype))
    d_output = place(torch.randn(2, 4, q_len, value_dim).to(dtype))
    d_lse = place(torch.randn(2, 4, q_len))
    lse = place(torch.full((2, 4, q_len, 2), math.nan))
    output = place(d_output * math.nan)
    d_query = place(torch.full(query.shape, math.nan))
    d_key, d_value = place(key * math.nan), place(value * math.nan)
    bias = slopes = table = shifts = sinks = d_sinks = d_bias = d_table = None
    softcap, dropout_p = 0.0, 0.0
    if kind == 'bias':
        own = place(torch.randn(1, 4, 1, kv_len))
        bias, d_bias = own.expand(2, 4, q_len, kv_len), place(own * math.nan)
    elif kind == 'table':
        table = place(torch.randn(4, q_len + kv_len - 1))
        shifts = place(torch.full((2,), kv_len - 1))
        d_table = place(table * math.nan)
    elif kind == 'all':
        slopes, shifts = place(torch.rand(4)), place(torch.full((1,), kv_len - q_len))
        sinks, d_sinks = place(torch.randn(4)), place(torch.full((4,), math.nan))
        softcap, dropout_p = 3.0, 0.25
    tiles = None
    if pattern is not None:
        layout = lower(pattern, grids(q_len, kv_len, None, 0))
        if layout is not None:
            parts = (layout.which, layout.starts, layout.entries, layout.bitmaps)
            tiles = K.LiveTiles(*(place(part) if part.numel() else part for part in parts))
    added = (bias, slopes, table, shifts, sinks)
    rest = (*added, softcap, dropout_p, 77, tiles, 0.3, 2)
    K.attend(query, key, value, output, lse, *rest)
    given = (d_output, d_lse, query, key, value, output, lse)
    K.attend_backward(*given, d_query, d_key, d_value, d_sinks, *rest)
    results = [output, lse, d_query, d_key, d_value]
    if d_bias is not None or d_table is not None:
        K.bias_backward(*given, d_bias, d_table, *rest)
    return results + [t for t in (d_sinks, d_bias, d_table) if t is not None]


sizes = [(1, 3), (5, 129), (16, 47), (17, 1), (47, 127), (49, 130), (97, 261)]
dims = [(1, 1), (7, 5), (16, 16), (19, 33), (40, 24), (65, 3)]
dtypes = [torch.float32, torch.bfloat16, torch.float16]
patterns = [None, hw.Causal(), hw.Window(9, 4)]
kinds = ['none', 'bias', 'table', 'all']
cases = list(itertools.product(sizes, dims, dtypes, patterns, kinds))
step = 1 if os.environ.get('HEADWISE_THOROUGH') else 29
used = []
with _native.use_isa(sys.argv[1]):
    for (q_len, kv_len), (head_dim, value_dim), dtype, pattern, kind in cases[::step]:
        case = (q_len, kv_len, head_dim, value_dim, dtype, pattern, kind)
        print(case, file=sys.stderr, flush=True)
        wanted = call(lambda tensor: tensor.clone(), *case)
        for at_end in (True, False):
            found = call(lambda tensor: fenced(tensor, at_end), *case)
            for one, two in zip(found, wanted, strict=True):
                assert one.isfinite().logical_or(one == -math.inf).all(), 'left unwritten'
                assert torch.equal(one, two)
            del found, one, two
            for pages, room in used:
                rooms[pages].append(room)
            used.clear()
print("within bounds", flush=True)
os._exit(0)
"""


@pytest.mark.parametrize("isa", ISAS)
def test_nothing_is_touched_past_either_end(isa: str) -> None:
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, isa],
        env={**os.environ, "OMP_NUM_THREADS": "2"},
        capture_output=True,
        text=True,
        check=False,
        timeout=600,
    )
    assert done.stdout == "within bounds\n", f"exit code {done.returncode}\n{done.stderr[-2000:]}"
