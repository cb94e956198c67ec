"""What ``explain`` says, and that ``attend`` does it."""

import pytest
import torch
from hypothesis import given
from torch.autograd import forward_ad
from torch.utils.flop_counter import FlopCounterMode

import headwise as hw
from headwise import _native
from tests.support.calls import Call, calls
from tests.support.paths import ISAS
from tests.support.shapes import Inputs, Sizes, inputs

WIDE = Sizes(1, 2, 1, 97, 257, 16, 16)
BACKENDS = ["native", "flex", "sdpa", "reference"]


@given(call=calls())
def test_the_live_fraction_is_that_of_the_mask(call: Call) -> None:
    plan = hw.explain(*call.given, call.pattern, **call.keywords)
    visible = call.visible()
    wanted = 1.0 if visible is None else visible.double().mean().item()
    assert plan.live_fraction == pytest.approx(wanted)
    pairs = wanted * call.setting.batch * call.setting.heads
    pairs *= call.setting.q_len * call.setting.kv_len
    widths = call.given.query.shape[-1] + call.given.value.shape[-1]
    assert plan.flops == pytest.approx(2 * pairs * widths)


def test_every_backend_is_asked_whatever_is_named() -> None:
    given_ = inputs()
    for name in ("auto", *BACKENDS):
        assert list(hw.explain(*given_, backend=name).refusals) == BACKENDS
    assert hw.explain(*given_, softcap=1.0, backend="sdpa").backend is None
    assert hw.explain(*given_, backend="sdpa").backend == "sdpa"
    assert hw.explain(*given_, backend="reference").backend == "reference"


@pytest.mark.parametrize("isa", ISAS)
def test_native_comes_first_and_names_its_instruction_set(isa: str) -> None:
    with _native.use_isa(isa):
        plan = hw.explain(*inputs(), hw.Causal())
    assert (plan.backend, plan.isa) == ("native", isa)
    assert plan.refusals["native"] == []


def test_other_backends_name_no_instruction_set() -> None:
    assert hw.explain(*inputs(), backend="reference").isa is None
    assert hw.explain(*inputs(), backend="sdpa").isa is None


def test_native_says_which_dtype_it_lacks() -> None:
    reasons = hw.explain(*inputs(dtype=torch.float64)).refusals["native"]
    wanted = "it computes float32, bfloat16 and float16, and the tensors are torch.float64"
    assert wanted in reasons


def test_native_says_what_it_cannot_follow() -> None:
    class Own(hw.patterns.Pattern):
        def _allows(self, q_pos: torch.Tensor, kv_pos: torch.Tensor) -> torch.Tensor:
            return kv_pos <= q_pos

    given_ = inputs()
    with forward_ad.dual_level():
        reasons = hw.explain(*given_).refusals["native"]
    assert reasons == ["it has no forward-mode derivative, and one may be wanted"]
    assert hw.explain(*given_, Own()).backend == "native"
    with FlopCounterMode(display=False):
        plan = hw.explain(*given_, Own())
    assert plan.refusals["native"] == ["a graph cannot carry a pattern of another library, Own"]

    class Marked(torch.Tensor):
        pass

    query, key, value = given_
    plan = hw.explain(query.as_subclass(Marked), key, value)
    assert plan.refusals["native"] == ["a tensor is a Marked"]


def test_sdpa_says_that_it_lets_nan_through() -> None:
    query, key, value = inputs()
    key[0, 0, 0, 0] = float("nan")
    reason = "scores may be NaN or infinite, which it lets through where they are masked"
    assert reason in hw.explain(query, key, value, hw.Causal()).refusals["sdpa"]
    assert hw.explain(query, key, value).refusals["sdpa"] == []


def test_the_reference_takes_everything() -> None:
    odd = inputs(dtype=torch.float16)
    keywords = {"softcap": 1.0, "sinks": torch.zeros(3), "dropout_p": 0.5}
    assert hw.explain(*odd, hw.Causal(), **keywords).refusals["reference"] == []  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "sizes", [Sizes(batch=0), Sizes(kv_heads=0), Sizes(q_len=0), Sizes(kv_len=0), Sizes(head_dim=0)]
)
@pytest.mark.parametrize("pattern", [None, hw.Causal(), hw.Lengths(3)])
def test_empty_sizes_can_be_explained(sizes: Sizes, pattern: hw.patterns.Pattern | None) -> None:
    plan = hw.explain(*inputs(sizes), pattern, bias=torch.zeros(()))
    assert plan.backend is not None
    assert "a size is zero" in plan.refusals["sdpa"]
    assert str(plan)


def test_the_text_reads_well() -> None:
    plan = hw.explain(*inputs(WIDE), hw.Causal(), softcap=2.0, backend="reference")
    lines = str(plan).splitlines()
    assert lines[:8] == [
        "backend     reference",
        f"strict      {'on' if plan.strict else 'off'}",
        f"threads     {torch.get_num_threads()}",
        "live pairs  81.3% of all",
        "computed    90.4% of all, in 14 tiles of 48 × 128",
        "forward     2.59 MFLOP, 90.6 kB",
        "takes       not known: limits are measured for the native kernels only",
        "grows as    time O(q_len · kv_len · head_dim), memory up to O(q_len · kv_len)",
    ]
    assert not [line for line in lines if line.startswith("not native")]
    assert "not sdpa    it has no softcap" in lines


def test_the_text_of_a_native_call() -> None:
    plan = hw.explain(*inputs(WIDE), hw.Causal() & hw.Window(15, 0))
    rows = dict(plan.rows())
    assert rows["backend"] == f"native ({_native.isa()})"
    assert rows["grows as"] == "time O(q_len · 16 · head_dim), memory O(q_len + kv_len)"
    assert rows["takes"].startswith("about ")
    assert rows["takes"].endswith("s on this machine, by its measured limits")


def test_the_text_of_a_refusing_backend() -> None:
    rows = hw.explain(*inputs(), softcap=2.0, backend="sdpa").rows()
    assert rows[0] == ("backend", "none: the backend asked for refuses")


def test_explaining_runs_nothing() -> None:
    one = inputs(Sizes(1, 1, 1, 1, 1, 4, 4))
    long = Inputs(*(t.expand(8, 3, 200_000, 4) for t in one))
    assert hw.explain(*long, hw.Causal() & hw.Window(64, 0)).live_fraction < 0.001
