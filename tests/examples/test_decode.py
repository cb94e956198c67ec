"""The examples that write on with a cache: greedy, sampled, beams, guesses, shared prefixes."""

import json
import sys
from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

import headwise as hw

EXAMPLES = Path(__file__).parents[2] / "examples"
PROMPT = torch.tensor([[7, 3, 7, 200, 1], [9, 9, 0, 4, 31]])

Typed = Callable[..., Any]
CACHES: dict[str, Callable[[], hw.KVCache]] = {
    "growing": hw.KVCache,
    "fixed": lambda: hw.KVCache(capacity=64),
    "window": lambda: hw.KVCache(window=9, rollback=4),
    "kept": lambda: hw.KVCache(window=9, keep_first=2, rollback=4),
    "paged": lambda: hw.KVCache(pool=hw.PagePool()),
    "int8": lambda: hw.KVCache(dtype=torch.int8),
}
on_caches = pytest.mark.parametrize("kind", CACHES)


@pytest.fixture
def example(monkeypatch: pytest.MonkeyPatch) -> Callable[[str], Any]:
    """Return a function that imports an example by name."""
    monkeypatch.syspath_prepend(str(EXAMPLES))
    return import_module


@pytest.fixture
def typed(
    example: Callable[[str], Any],
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> Typed:
    """Return a function that runs an example in this process and returns its stdout."""

    def run(name: str, *words: str) -> str:
        program = example(name)
        monkeypatch.setattr(sys, "argv", [f"{name}.py", *words])
        program.main()
        return capsys.readouterr().out

    return run


@pytest.fixture
def model(example: Callable[[str], Any]) -> Any:
    return example("cached_decoder").CachedDecoder(32, 4, 2, 2).eval()


@on_caches
@torch.no_grad()
def test_greedy_is_the_likeliest_byte_of_the_whole_pass(
    kind: str, example: Callable[[str], Any], model: Any
) -> None:
    decode, cache = example("decode"), CACHES[kind]()
    found = decode.greedy(model, PROMPT, 8, cache)
    assert cache.length() == PROMPT.shape[1] + 8 - 1
    for end in range(8):
        whole = torch.cat([PROMPT, found[:, :end]], 1)
        assert torch.equal(model(whole, CACHES[kind]())[:, -1].argmax(-1), found[:, end])
    if kind in ("growing", "fixed", "paged"):
        assert torch.equal(found, decode.greedy_without_cache(model, PROMPT, 8))


@torch.no_grad()
def test_sampling_near_zero_is_greedy_and_a_seed_repeats(
    example: Callable[[str], Any], model: Any
) -> None:
    decode = example("decode")

    def drawn(temperature: float) -> Tensor:
        generator = torch.Generator().manual_seed(5)
        found: Tensor = decode.sample(
            model, PROMPT, 6, hw.KVCache(), temperature=temperature, generator=generator
        )
        return found

    assert torch.equal(drawn(1e-4), decode.greedy(model, PROMPT, 6, hw.KVCache()))
    assert torch.equal(drawn(2.0), drawn(2.0))
    assert not torch.equal(drawn(2.0), drawn(1e-4))


@pytest.mark.parametrize("kind", [kind for kind in CACHES if kind != "fixed"])
@pytest.mark.parametrize("beams", [1, 3])
@torch.no_grad()
def test_beams_have_the_scores_of_what_they_wrote(
    kind: str, beams: int, example: Callable[[str], Any], model: Any
) -> None:
    decode, steps = example("decode"), 5
    found = decode.beam_search(model, PROMPT, steps, CACHES[kind](), beams=beams)
    assert found.ids.shape == (2, beams, steps)
    assert (found.scores.diff(dim=1) <= 0).all()
    for sample in range(2):
        for ids, score in zip(found.ids[sample], found.scores[sample], strict=True):
            whole = torch.cat([PROMPT[sample], ids])[None]
            logs = model(whole, CACHES[kind]())[0, -steps - 1 : -1].log_softmax(-1)
            reached = logs.gather(1, ids[:, None]).sum()
            torch.testing.assert_close(score, reached, rtol=1e-4, atol=1e-3)
    if beams == 1:
        greedy = decode.greedy(model, PROMPT, steps, CACHES[kind]())
        assert torch.equal(found.ids[:, 0], greedy)


@torch.no_grad()
def test_enough_beams_find_the_best_of_all(example: Callable[[str], Any], model: Any) -> None:
    decode = example("decode")
    best = decode.beam_search(model, PROMPT[:1], 2, hw.KVCache(), beams=256)
    first = model(PROMPT[:1])[0, -1].log_softmax(-1)
    every = torch.cat([PROMPT[:1].expand(256, -1), torch.arange(256)[:, None]], 1)
    both = first[:, None] + model(every)[:, -1].log_softmax(-1)
    assert best.ids[0, 0].tolist() == list(divmod(int(both.argmax()), 256))


@pytest.mark.parametrize("kind", ["growing", "fixed", "window", "kept", "paged"])
@pytest.mark.parametrize("guesses", [1, 3, 4])
@pytest.mark.parametrize("draft", ["its first block", "another", "itself"])
@torch.no_grad()
def test_speculation_writes_what_greedy_does(
    kind: str, guesses: int, draft: str, example: Callable[[str], Any], model: Any
) -> None:
    decode, speculative = example("decode"), example("speculative")
    drafts = {
        "its first block": model.shallow(1),
        "another": example("cached_decoder").CachedDecoder(16, 2, 1, 1, seed=4).eval(),
        "itself": model,
    }
    cache, draft_cache = CACHES[kind](), CACHES[kind]()
    found = speculative.speculate(
        model,
        drafts[draft],
        PROMPT[:1],
        14,
        guesses=guesses,
        cache=cache,
        draft_cache=draft_cache,
    )
    assert torch.equal(found.ids, decode.greedy(model, PROMPT[:1], 14, CACHES[kind]()))
    assert found.passes + found.kept == 14
    if draft == "itself":
        assert found.kept == found.guessed


def test_decode_prints(typed: Typed) -> None:
    found = json.loads(typed("decode", "--steps", "5", "--beams", "2", "--json"))
    assert found["same_without_cache"]
    assert [len(found["greedy"]), len(found["sampled"]), len(found["beams"])] == [5, 5, 2]
    assert typed("decode", "--steps", "3", "--dtype", "int8").startswith("greedy ")


@pytest.mark.parametrize("words", [(), ("--window", "8"), ("--draft-layers", "4")])
def test_speculative_prints(typed: Typed, words: tuple[str, ...]) -> None:
    found = json.loads(typed("speculative", "--steps", "12", "--json", *words))
    assert found["same_as_greedy"]
    assert found["passes"] + found["guesses_kept"] == 12
    assert typed("speculative", "--steps", "2", *words).startswith("same as greedy")


def test_shared_prefix_prints(typed: Typed) -> None:
    """Eight continuations of 1,500 tokens hold less than two of them alone would."""
    found = json.loads(typed("shared_prefix", "--steps", "2", "--json"))
    assert found["same_as_alone"]
    assert found["tokens_held"] > 8 * 1500
    assert 3 * found["bytes_shared"] < found["bytes_alone"]
    printed = typed("shared_prefix", "--steps", "1", "--prefix", "99")
    assert printed.endswith("and write the same\n")


@pytest.mark.parametrize("words", [(), ("--keep-first", "3")])
def test_long_stream_prints(typed: Typed, words: tuple[str, ...]) -> None:
    found = json.loads(typed("long_stream", "--length", "1500", "--window", "20", "--json", *words))
    assert len(set(found["bytes_after_tokens"].values())) == 1
    assert 10 * max(found["bytes_after_tokens"].values()) < found["bytes_of_a_growing_cache"]
    assert found["largest_difference"] < 1e-5 * found["largest_score"]
    assert "would hold" in typed("long_stream", "--length", "40", *words)


@pytest.mark.parametrize(
    ("name", "words", "says"),
    [
        ("decode", ("--steps", "0"), "--steps and --beams start at 1"),
        ("speculative", ("--draft-layers", "5"), "--draft-layers lies between 1 and 4"),
        ("shared_prefix", ("--prefix", "0"), "must be at least 1"),
        ("long_stream", ("--window", "0"), "start at 1"),
    ],
)
def test_refusals(
    typed: Typed, capsys: pytest.CaptureFixture[str], name: str, words: tuple[str, ...], says: str
) -> None:
    with pytest.raises(SystemExit) as end:
        typed(name, *words)
    assert end.value.code == 2
    assert says in capsys.readouterr().err
