"""What the comparison of mechanisms is made of, piece by piece."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

import headwise as hw
from headwise.cli import demo_models
from headwise.cli.bench.measure import Ratio
from headwise.cli.bench.mechanisms import (
    CONTENDERS,
    Contender,
    Outcome,
    Shape,
    Timing,
    check,
    crossing,
    error_of,
    exactness,
    gate,
    minilm,
    outcomes,
    peak,
    peak_megabytes,
    precise,
    random_states,
    real_states,
)
from headwise.cli.bench.mechanisms.contenders import Softmax
from headwise.cli.bench.mechanisms.plot import draw
from headwise.cli.bench.mechanisms.summary import Found
from headwise.cli.failures import Unable, WrongInput
from headwise.cli.models import encoder, source
from headwise.nn import AttentionCall, Step
from headwise.patterns import Causal

SHAPE = Shape(3, 7)


@pytest.mark.parametrize(
    ("ratios", "expected"),
    [
        ([2.0, 1.5, 3.0], 100),
        ([0.5, 0.9, 1.0], None),
        ([3.0, 2.0, 0.9], None),
        # Half as fast at 100 tokens and twice as fast at 200: 141 on logarithmic axes.
        ([0.5, 2.0, 3.0], 140),
        # The last time counts.
        ([2.0, 0.5, 2.0], 280),
        ([0.5, 0.999999, 2.0], 201),
        ([0.5, 0.99, 2.0], 202),
    ],
)
def test_crossings_by_hand(ratios: list[float], expected: int | None) -> None:
    assert crossing([100, 200, 400], ratios) == expected


@pytest.mark.parametrize("causal", [False, True])
def test_exact_attention_in_float64(causal: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    states = random_states(SHAPE, 29)
    pattern = Causal() if causal else None
    wide = states.to(torch.float64)
    expected = hw.attend(*wide, pattern, backend="reference")
    for at_once in (1, 500, 1 << 22):
        monkeypatch.setattr(exactness, "_AT_ONCE", at_once)
        found = precise(states, causal)
        torch.testing.assert_close(found, expected, atol=1e-14, rtol=0)


def test_errors_by_hand() -> None:
    exact = torch.tensor([3.0, 4.0], dtype=torch.float64)
    assert error_of(torch.zeros(2), exact) == 1.0
    assert error_of(torch.tensor([3.0, 4.5]), exact) == pytest.approx(0.1)


def test_states_are_nested_and_the_same_in_every_run() -> None:
    long, again = random_states(SHAPE, 29), random_states(SHAPE, 29)
    assert all(torch.equal(a, b) for a, b in zip(long, again, strict=True))
    few = long.first(11)
    assert few.shape == SHAPE
    assert torch.equal(few.key, long.key[:, :, :11])
    assert few.key.is_contiguous()


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("contender", CONTENDERS, ids=lambda contender: contender.name)
def test_every_mechanism_passes_the_check(
    contender: Contender, causal: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(gate, "_TOKENS", 131)
    check([contender], SHAPE, causal=causal)


class _Wrong(Softmax):
    def forward(self, call: AttentionCall, state: object = None) -> Step:
        return Step(super().forward(call).output + 0.01 * call.value, None)


class _WrongGradient(Softmax):
    def forward(self, call: AttentionCall, state: object = None) -> Step:
        return super().forward(call._replace(key=call.key.detach() + 0 * call.key))


@pytest.mark.parametrize(("kind", "answer"), [(_Wrong, "output"), (_WrongGradient, "d_key")])
def test_a_wrong_answer_is_not_measured(
    kind: Callable[[], Any], answer: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(gate, "_TOKENS", 13)
    contender = Contender("mine", lambda shape, length: kind(), None, None, "")
    with pytest.raises(Unable, match=rf"^mine: {answer} is wrong by .*; nothing was measured$"):
        check([contender], SHAPE, causal=False)
    check([contender], SHAPE, causal=True)  # has no such form


def test_outcomes_of_one_form() -> None:
    states = random_states(SHAPE, 23)
    found = list(
        outcomes(CONTENDERS, [11, 23], states, states, causal=False, seconds=0.0, tell=_told.append)
    )
    assert _told == [
        f"{what}: full, {length} tokens"
        for length in (11, 23)
        for what in ("Errors", "Memory", "Times")
    ]
    assert [(o.length, o.mechanism) for o in found] == [
        (length, contender.name) for length in (11, 23) for contender in CONTENDERS
    ]
    for outcome in found:
        assert outcome.error_real == outcome.error_random
        for timing in (outcome.forward, outcome.training):
            assert 0 < timing.low <= timing.milliseconds <= timing.high
            assert (timing.over_exact is None) == (outcome.mechanism == "exact")
    assert found[4].error_random < found[3].error_random  # 256 and 64 random features


_told: list[str] = []


def test_peak_memory_counts_results_and_what_is_gone_again() -> None:
    million = 1 << 20

    def call() -> Tensor:
        return torch.ones(8 * million).add(1.0)[: 4 * million].clone()

    found = peak_megabytes(call)
    assert found is not None
    # 32 MiB and as much again, then one of them beside 16 MiB.
    assert found == pytest.approx(64 * million / 1e6, rel=0.03)


def test_memory_that_cannot_be_seen(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(peak, "_PROCESS", tmp_path)
    assert peak_megabytes(lambda: None) is None


def test_real_states_are_those_of_the_model(monkeypatch: pytest.MonkeyPatch, reader: Path) -> None:
    text = "".join(map(str, range(120)))
    monkeypatch.setattr(minilm, "_text", lambda: text)
    monkeypatch.setattr(demo_models, "ready", lambda model: reader)
    states = real_states(1, 120)
    assert states.shape == Shape(6, 5)
    opened = source(str(reader))
    model = encoder(opened)
    ids = opened.tokenizer(text[:194])["input_ids"]
    passages = torch.tensor([ids[:97], ids[97:194]])
    with torch.no_grad():
        hidden = model(input_ids=passages, output_hidden_states=True).hidden_states[1]
        key = model.encoder.layer[1].attention.self.key(hidden)
    expected = key.flatten(0, 1)[:120].unflatten(-1, (6, 5)).transpose(0, 1)
    torch.testing.assert_close(states.key[0], expected, atol=1e-6, rtol=0)


def test_a_text_that_is_too_short(monkeypatch: pytest.MonkeyPatch, reader: Path) -> None:
    monkeypatch.setattr(demo_models, "ready", lambda model: reader)
    monkeypatch.setattr(minilm, "_text", lambda: "x" * 200)
    with pytest.raises(WrongInput, match=r"^300 tokens are too many: the text has 194; ask for fe"):
        real_states(0, 300)


def test_the_text_is_the_documentation_of_python() -> None:
    assert len(minilm._text()) > 400_000


def _made_up(name: str, causal: bool, ratios: list[float]) -> list[Outcome]:
    """Exact attention takes as many ms as there are tokens."""
    found = []
    for length, over in zip((100, 200, 400), ratios, strict=True):
        timing = Timing(length / over, 1.0, 2.0, None if name == "exact" else Ratio(over, 0.1, 9.0))
        found.append(Outcome(name, length, causal, timing, timing, 1.0, 2.0 * length, 0.5, None))
    return found


def test_the_picture_shows_what_was_measured() -> None:
    exact, other = [1.0, 1.0, 1.0], [0.5, 2.0, 4.0]
    of_both = [
        outcome
        for causal in (False, True)
        for name, ratios in (("exact", exact), ("linear-elu", other))
        for outcome in _made_up(name, causal, ratios)
    ]
    figure = draw(Found(SHAPE, of_both, None))
    panels: list[Any] = list(figure.axes)
    titles = [axes.get_title() for axes in panels]
    assert titles[:4] == [
        "full: time, forward",
        "full: time, forward + backward",
        "full: peak memory, forward + backward",
        "full: error, random states",  # of real ones nothing is known
    ]
    assert [title.replace("causal", "full") for title in titles[4:]] == titles[:4]
    assert _lines(panels[0]) == {
        "exact": ([100, 200, 400], [100, 200, 400]),
        "linear-elu": ([100, 200, 400], [200, 100, 100]),
    }
    assert _lines(panels[2])["exact"] == ([100, 200, 400], [200, 400, 800])
    assert [text.get_text() for text in panels[5].texts] == ["140"]
    (ring,) = [line for line in panels[5].lines if str(line.get_label()).startswith("_")]
    assert ring.get_path().vertices.ravel().tolist() == pytest.approx([140, 140])
    assert panels[3].get_ylim()[0] == 0
    (legend,) = figure.legends
    assert [text.get_text() for text in legend.get_texts()] == ["exact", "linear-elu"]


def _lines(axes: Any) -> dict[str, Any]:
    return {
        str(line.get_label()): tuple(line.get_path().vertices.T.tolist())
        for line in axes.lines
        if not str(line.get_label()).startswith("_")
    }
