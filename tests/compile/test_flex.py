"""FlexAttention compiled: compilers can follow every pattern, and need not do so at every step."""

import subprocess
import sys
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch._dynamo.testing import CompileCounter
from torch.nn.attention.flex_attention import flex_attention

import headwise as hw
from headwise.ops.softmax import flex, reference
from headwise.ops.softmax.call import Call
from headwise.ops.softmax.settle import Extras, settle
from headwise.patterns import Pattern, PerHead, bigbird, longformer
from headwise.positions import Alibi
from tests.support.budget import assert_within_budget
from tests.support.oracle import attention
from tests.support.shapes import Sizes, inputs

# torch's own modules warn when the first graph is built.
pytestmark = [
    pytest.mark.filterwarnings("ignore:`torch.jit:DeprecationWarning"),
    pytest.mark.filterwarnings("ignore:.*[Dd]istutils"),
    pytest.mark.slow,
]

SIZES = Sizes(2, 2, 2, 37, 53, 16, 32)
FLAGS = torch.rand(2, 53, generator=torch.Generator().manual_seed(0)) < 0.6
PATTERNS: list[Pattern] = [
    hw.Full(),
    hw.Causal(),
    hw.Window(3, 5) | hw.Window(9, 9, 3),
    hw.Strided(7) & ~hw.patterns.Fixed(5),
    hw.Lengths((4, 50), (3, 37)) & hw.Prefix((9, 60)),
    hw.KeyMask(FLAGS),
    hw.Dense(FLAGS[:, None, None]),
    hw.Documents(torch.arange(53) // 20),
    hw.GlobalTokens(FLAGS) & hw.BlockWindow(8, 1, 1),
    hw.patterns.Tiles([[2, 0], [1, 2]], 32, FLAGS[:1, :32].expand(1, 32, 32)),
    bigbird(4),
    longformer(8, [0, 20]),
    PerHead([hw.Causal(), hw.Window(1, 1), hw.Causal(), hw.Prefix((1, 2))]),
]


@pytest.fixture(autouse=True)
def _forgetful() -> Iterator[None]:
    torch._dynamo.reset()
    with torch.no_grad():
        yield
    torch._dynamo.reset()


def settled(pattern: Pattern, sizes: Sizes = SIZES, **extras: Any) -> Call:
    defaults = Extras(None, None, None, None, 0.0, None, 0)
    return settle("attend", *inputs(sizes), pattern, defaults._replace(**extras), False)


def test_every_pattern_in_one_process() -> None:
    """More kinds of calls than torch's compiler makes of one function unless it is told to."""
    for pattern in PATTERNS:
        call = settled(pattern, softcap=2.0, bias=Alibi(SIZES.heads))
        found, wanted = flex.through(flex.compiled("eager"), call), reference.run(call)
        torch.testing.assert_close(found.output, wanted.output)


@pytest.mark.parametrize(
    "pattern", [hw.Causal() & hw.Window(20, 0) | hw.Lengths((4, 50)), bigbird(4)], ids=["", "drawn"]
)
def test_in_full_for_the_cpu(pattern: Pattern) -> None:
    """The one full compiler that can be asked here; what it writes is for this processor."""
    found = flex.run(settled(pattern))
    given_, visible = inputs(SIZES), pattern.dense(SIZES.q_len, SIZES.kv_len)
    exact, plain = attention(*given_, visible), attention(*given_, visible, dtype=torch.float32)
    assert_within_budget(found.output, exact=exact.output, plain=plain.output, label="inductor")
    assert found.lse is None


def test_another_scale_and_softcap() -> None:
    for scale, softcap in ((0.2, 2.0), (0.3, 3.0)):
        call = settled(hw.Causal(), scale=scale, softcap=softcap)
        found, wanted = flex.run(call), reference.run(call)
        torch.testing.assert_close(found.output, wanted.output)


def test_the_next_step_of_a_decoder_is_not_compiled_anew() -> None:
    counter = CompileCounter()
    kernel = torch.compile(flex_attention, backend=counter, fullgraph=True)
    compiled = []
    for step in range(4):
        length = 100 + step
        real = torch.ones(2, length, dtype=torch.bool)
        for pattern in (hw.Causal(), hw.Causal() & hw.KeyMask(real), hw.Lengths((length, 50))):
            call = settled(pattern, SIZES._replace(q_len=1, kv_len=length))
            found, wanted = flex.through(kernel, call), reference.run(call)
            torch.testing.assert_close(found.output, wanted.output)
        compiled.append(counter.frame_count)
    assert compiled[1:] == [compiled[1]] * 3


def test_importing_brings_no_compiler() -> None:
    program = (
        "import sys, headwise; assert not {'torch._dynamo', 'torch._inductor'} & set(sys.modules)"
    )
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", program], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
