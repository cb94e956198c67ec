"""docs/reference/compatibility.md says what the tests of the families hold, and nothing else.

A cell says yes where a test of that family is in the suite, so the page is right while the suite
passes. ``python -m tests.hf.test_families_page`` writes it.
"""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from headwise import hf
from tests.hf import (
    test_families_accelerated,
    test_families_cases,
    test_families_left,
    test_families_parity,
    test_families_weights,
    test_generate,
)
from tests.support.hf_families import FAMILIES, LEFT, Family
from tests.support.hf_tiny import tiny

PAGE = Path(__file__).parents[2] / "docs" / "reference" / "compatibility.md"
HEAD = """# Models of transformers

Written by the test suite (`python -m tests.hf.test_families_page`), which runs every cell for every
model here, tiny and with random weights, against transformers' eager attention. Results agree to
rounding at real tokens, gradients of all weights included. Models that are not listed run by the
same rules: `headwise.hf.report(model)` says of any model which attention is served, and which is
left and why.

- **By name**: `headwise.hf.register()`, then `attn_implementation="headwise"` when the model is
  loaded, or `model.set_attn_implementation("headwise")`. `headwise.hf.accelerate(model)` chooses
  it, too, and makes what stands around attention faster.
- **By accelerate**: the model attends by code of its own, and refuses the name when it is loaded
  or called; `headwise.hf.accelerate(model)` replaces that code, and `headwise.hf.restore(model)`
  puts it back.
- **Padded**: decoders on the left and on the right, encoders on the right and most on the left,
  sources of encoder-decoders on the right. At padding, answers differ: a query that may attend
  nowhere gets zeros from headwise, and some average from eager attention.
- **Weights**: `output_attentions=True` in a call gives eager attention's weights, before dropout.
  By name, the answer of that call is still the fast path's, bit for bit; by accelerate, such a call
  runs transformers' code.
- **Text**: `generate` writes the same tokens: greedy, with beams, sampled, with a static cache.
- **Cache**: the same with `headwise.hf.Cache`.
"""
LEFT_HEAD = """
## Left

These attend by code of their own that headwise has no other for. Their name is refused when they
are loaded with `attn_implementation="headwise"`; `headwise.hf.accelerate(model)` leaves their
attention and says so in its report. Answers and gradients with the rest accelerated are tested.

| model | attention |
|---|---|
"""
PADDED = (
    test_families_parity.test_logits_agree_at_real_tokens,
    test_families_parity.test_decoders_padded_on_the_right,
    test_families_parity.test_encoders_padded_on_the_left,
)
TEXT = (test_generate.test_decoders, test_generate.test_encoder_decoders)
CACHE = (
    test_generate.test_decoders_with_our_cache,
    test_generate.test_encoder_decoders_with_our_cache,
)
NO_PADDING = ("image", "speech")


def test_the_stored_page_is_current() -> None:
    stored = PAGE.read_text("utf-8")
    assert stored == page(), "write it anew: python -m tests.hf.test_families_page"


def test_every_family_is_tested_in_every_respect() -> None:
    for test in (
        test_families_parity.test_logits_agree_at_real_tokens,
        test_families_parity.test_gradients_agree_in_training,
        test_families_weights.test_they_are_those_of_eager_attention,
    ):
        assert _names(test) == set(FAMILIES)
    assert set(test_families_accelerated.ACCELERATED) == _through("accelerate")
    assert _names(test_families_left) == set(LEFT)
    assert _names(test_families_cases.test_cached_steps_are_the_whole_pass) <= _names(*CACHE)


def page() -> str:
    """Return the page as the tests of today would have it."""
    return HEAD + "\n" + "\n".join(_table()) + "\n" + LEFT_HEAD + "\n".join(_left()) + "\n"


def _table() -> Iterator[str]:
    gradients = test_families_parity.test_gradients_agree_in_training
    weights = test_families_weights.test_they_are_those_of_eager_attention
    yield "| model | through | attention | answers | padded | gradients | weights | text | cache |"
    yield "|---|---|---|---|---|---|---|---|---|"
    for name, family in FAMILIES.items():
        if not family.title:
            continue
        found = hf.report(tiny(name))
        assert all(row.served for row in found)
        tests: list[tuple[Callable[..., None], ...]] = [PADDED[:1], PADDED, (gradients,)]
        tests += [(weights,), TEXT, CACHE]
        marks = ["yes" if name in _names(*some) else "-" for some in tests]
        if family.kind in NO_PADDING:
            marks[1] = "-"
        way = "name" if family.through == "headwise" else "accelerate"
        yield f"| {' | '.join([family.title, way, _classes(found), *marks])} |"


def _left() -> Iterator[str]:
    for name, family in LEFT.items():
        found = hf.report(tiny(name))
        assert not any(row.served for row in found)
        yield f"| {family.title} | {_classes(found)} |"


def _classes(found: hf.Report) -> str:
    return ", ".join(f"`{kind}`" for kind in dict.fromkeys(row.kind for row in found))


def _names(*tests: Any) -> set[str]:
    """Return the families that tests, or all tests of a file, are run for."""
    found: set[str] = set()
    for test in tests:
        marks = test.pytestmark
        for mark in marks if isinstance(marks, list) else [marks]:
            if mark.name == "parametrize" and mark.args[0] == "name":
                found.update(mark.args[1])
    return found


def _through(way: str) -> set[str]:
    families: dict[str, Family] = FAMILIES
    return {name for name, family in families.items() if family.through == way}


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
