"""What a plan counts: work, bytes, growth, and the time that follows from measured limits."""

import time

import pytest
import torch

import headwise as hw
from headwise import _limits, _native
from headwise._limits import Rates
from headwise.ops import explain_sizes
from headwise.ops.softmax.growth import keys_seen
from headwise.ops.softmax.plan import scaled
from headwise.patterns import Pattern, parse
from tests.support.shapes import Sizes, inputs

LONG = Sizes(1, 2, 2, 480, 640, 32, 16)

GROWTH = {
    "full": "kv_len",
    "causal": "kv_len/2",
    "window(3, 4)": "8",
    "window(3, 4, dilation=2)": "8",
    "window(none, 4)": "(4 + kv_len/2)",
    "window(none, none, dilation=3)": "kv_len/3",
    "block_window(8, 1, 2)": "32",
    "block_window(8, none, 0)": "kv_len/2",
    "strided(16)": "(31 + kv_len/16)",
    "strided(1)": "kv_len",
    "fixed(16, 3)": "(13 + 0.188 · kv_len)",
    "global(0, 4)": "4",
    "global([[true, true, false], [true, false, false]])": "4",
    "global_blocks(8, 1, 2)": "48",
    "random_blocks(8, 3, 0)": "24",
    "prefix(10)": "10",
    "lengths([5, 7])": "7",
    "documents([0, 0, 0, 1, 1, -1, -1, -1, -1])": "3",
    "key_mask([[true, false]])": "kv_len",
    "~causal": "kv_len/2",
    "~window(3, 4)": "kv_len",
    "causal & window(1_000, 0)": "1,001",
    "window(3, 4) & causal": "4",
    "causal & window(none, 4, dilation=3)": "kv_len/6",
    "causal & block_window(8, 1, 2)": "12",
    "causal & strided(16)": "(16 + kv_len/32)",
    "causal & fixed(16, 2)": "(7 + kv_len/16)",
    "causal & full": "kv_len/2",
    "causal & prefix(10)": "10",
    "causal & key_mask([[true, false]])": "kv_len/2",
    "causal & key_mask([[true, false]]) & window(3, 4)": "4",
    "causal & longformer(512, [0])": "258",
    "causal & (strided(16) | full)": "kv_len/2",
    "causal & documents([0, 0, 0, 1, 1])": "2",
    "causal & per_head(strided(16), window(3, 4))": "(16 + kv_len/32)",
    "window(3, 4) & strided(16)": "8",
    "causal | window(3, 4)": "(8 + kv_len/2)",
    "causal | ~causal": "kv_len",
    "longformer(512, [0])": "515",
    "per_head(causal, window(3, 4))": "kv_len/2",
}


@pytest.mark.parametrize("text", GROWTH)
def test_growth_by_hand(text: str) -> None:
    assert str(keys_seen(parse(text))) == GROWTH[text]


@pytest.mark.parametrize(
    "text",
    [
        *("causal", "window(30, 20)", "strided(37)", "fixed(32, 3)", "longformer(64, [0, 9])"),
        *("block_window(16, 1, 1)", "bigbird(16)", "strided(37) & causal", "prefix(10) | causal"),
        *("fixed(32, 3) & causal", "bigbird(16) & causal", "longformer(64, [0, 9]) & causal"),
    ],
)
def test_growth_is_that_of_the_live_pairs(text: str) -> None:
    pattern, length = parse(text), 1024
    seen = keys_seen(pattern)
    counted = explain_sizes(1, 1, 1, length, length, 8, pattern=pattern).live_fraction * length
    assert 0.9 * counted < seen.constant + seen.share * length < 2.5 * counted


def test_work_and_bytes_by_hand() -> None:
    given = inputs(LONG, dtype=torch.bfloat16)
    plan = hw.explain(*given, hw.Causal(), q_offset=0)
    pairs = 4 * 480 * 481 // 2
    assert plan.flops == 2 * pairs * (32 + 16)
    # The last tile of keys is read by no query.
    assert plan.bytes == 2 * (4 * 480 * 32 + 2 * 512 * (32 + 16) + 4 * 480 * 16)
    assert plan.dtype == "bfloat16"
    # Query tile t sees keys up to 48 t + 47; of its last key tile no more than these are computed.
    assert plan.live_tiles == 4 * sum((48 * tile + 47) // 128 + 1 for tile in range(10))
    assert plan.computed_fraction == sum(48 * 48 * (tile + 1) for tile in range(10)) / (480 * 640)
    assert (plan.backward_flops, plan.backward_bytes) == (0, 0)


def test_what_is_computed_of_scattered_tiles() -> None:
    """Each of 2 x 2 tiles is computed from the first to the last live key, 64 apart; one is cut."""
    mask = torch.zeros(60, 200, dtype=torch.bool)
    mask[3, 5] = mask[7, 68] = mask[50, 0] = mask[50, 150] = True
    plan = hw.explain(*inputs(Sizes(1, 1, 1, 60, 200, 8, 8)), hw.Dense(mask))
    assert plan.live_tiles == 3
    assert plan.computed_fraction * 60 * 200 == pytest.approx(48 * 64 + 12 * 1 + 12 * 1)


def test_gradients_are_counted_where_they_are_wanted() -> None:
    given = inputs(LONG)
    given.key.requires_grad_()
    plan = hw.explain(*given)
    assert plan.backward_flops == 5 * plan.flops // 2
    assert plan.backward_bytes == 2 * plan.bytes
    assert ("backward", "295 MFLOP, 1.23 MB") in plan.rows()
    with torch.no_grad():
        assert hw.explain(*given).backward_flops == 0


def test_time_by_hand(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = []

    def rates(dtype: str) -> Rates:
        asked.append(dtype)
        return Rates(1e9, 1e9)

    monkeypatch.setattr(_limits, "rates", rates)
    given = inputs(LONG)
    plan = hw.explain(*given, hw.Causal())
    assert asked == []
    whole = plan.flops * plan.computed_fraction / plan.live_fraction
    assert plan.expected_seconds == pytest.approx(20e-6 + whole / 0.7e9)
    assert plan.expected_seconds == plan.expected_seconds
    assert asked == ["float32"]
    step = explain_sizes(1, 8, 8, 1, 4096, 64, pattern=hw.Causal(), backward=True)
    forward, backward = step.bytes / 0.55e9, step.backward_bytes / 0.55e9
    assert step.expected_seconds == pytest.approx(40e-6 + forward + backward, rel=0.2)


def test_time_of_a_call_that_computes_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_limits, "rates", lambda dtype: Rates(1e9, 1e9))
    assert hw.explain(*inputs(Sizes(batch=0))).expected_seconds == pytest.approx(20e-6)


def test_other_backends_have_no_time() -> None:
    assert hw.explain(*inputs(), backend="sdpa").expected_seconds is None
    assert hw.explain(*inputs(dtype=torch.float64)).expected_seconds is None


def test_the_machine_is_measured_once() -> None:
    found = _limits.rates("float32")
    assert found is not None
    assert min(found) > 1e8
    assert _limits.rates("float32") is found
    assert _limits.rates("float64") is None


def test_without_the_core_nothing_is_measured(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_native, "kernels", None)
    assert _limits.rates("float32") is None


@pytest.mark.parametrize("text", ["causal & window(511, 0) | global(4)", "longformer(512, [0])"])
def test_long_inputs_are_explained_at_once(text: str) -> None:
    pattern = parse(text)
    started = time.process_time()
    plan = explain_sizes(1, 12, 12, 65_536, 65_536, 64, pattern=pattern, backward=True)
    assert time.process_time() - started < 0.5
    assert plan.live_fraction < 0.01


@pytest.mark.parametrize("pattern", [None, hw.Causal(), hw.Lengths([3, 5])])
@pytest.mark.parametrize("backward", [False, True])
def test_sizes_are_explained_as_tensors_are(pattern: Pattern | None, backward: bool) -> None:
    query, key, value = inputs()
    for tensor in (query, key, value):
        tensor.requires_grad_(backward)
    found = explain_sizes(2, 3, 3, 5, 7, 11, 13, pattern=pattern, backward=backward)
    assert found == hw.explain(query, key, value, pattern)


@pytest.mark.parametrize("sizes", [(0, 1, 1, 2, 2, 4), (1, 1, 1, 0, 2, 4), (1, 0, 0, 2, 0, 4)])
def test_sizes_may_be_zero(sizes: tuple[int, ...]) -> None:
    plan = explain_sizes(*sizes)
    assert (plan.flops, plan.live_fraction) == (0, 0.0)
    assert "a size is zero" in plan.refusals["sdpa"]


def test_sizes_that_do_not_fit_are_refused() -> None:
    with pytest.raises(hw.ShapeError, match="explain: kv_heads must divide q_heads, got 2 and 5"):
        explain_sizes(1, 5, 2, 3, 3, 4)
    with pytest.raises(hw.PatternError, match="explain: the pattern must tell apart as many"):
        explain_sizes(1, 5, 5, 3, 3, 4, pattern=hw.PerHead([hw.Causal(), hw.Full()]))


@pytest.mark.parametrize(
    ("number", "text"),
    [
        *((0, "0 s"), (2e-10, "0.200 ns"), (1.234e-5, "12.3 µs"), (9.996e-4, "1.00 ms")),
        *((1, "1.00 s"), (99.96, "100 s"), (4321.0, "4,321 s")),
    ],
)
def test_seconds_are_written_in_three_digits(number: float, text: str) -> None:
    assert scaled(number, "s") == text


def test_amounts_are_written_with_prefixes() -> None:
    written = [scaled(number, "B") for number in (7, 999, 1234, 5.6e7, 1.2e10, 3e14)]
    assert written == ["7.00 B", "999 B", "1.23 kB", "56.0 MB", "12.0 GB", "300 TB"]
