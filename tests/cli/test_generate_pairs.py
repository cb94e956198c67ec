"""Models of an encoder and a decoder, which write from a source."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers

from headwise.cli import languages
from headwise.cli.languages import Marks
from tests.cli import folders
from tests.cli.test_generate import as_json
from tests.cli.typed import assert_refused, typed

SOURCE = "Attention, please: "
FAMILIES: dict[str, tuple[Any, Any]] = {
    "bart": (transformers.BartForConditionalGeneration, transformers.BartConfig(**folders.BART)),
    "t5": (transformers.T5ForConditionalGeneration, transformers.T5Config(**folders.T5)),
    "marian": (transformers.MarianMTModel, transformers.MarianConfig(**folders.BART)),
    "led": (transformers.LEDForConditionalGeneration, transformers.LEDConfig(**folders.LED)),
}


@pytest.fixture(scope="module")
def pairs(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    torch.manual_seed(4)
    return {
        name: folders.save(folders.lively(kind(config)), tmp_path_factory.mktemp(name))
        for name, (kind, config) in FAMILIES.items()
    }


@pytest.fixture(scope="module")
def bart(pairs: dict[str, Path]) -> str:
    return str(pairs["bart"])


def expected(folder: Path, count: int, **options: Any) -> list[int]:
    """Return what transformers writes by itself, with eager attention and its own cache."""
    model = transformers.AutoModelForSeq2SeqLM.from_pretrained(folder, attn_implementation="eager")
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
    tokens = tokenizer(SOURCE, return_tensors="pt", return_token_type_ids=False)
    written: list[int] = model.generate(**tokens, max_new_tokens=count, **options)[0, 1:].tolist()
    return written


@pytest.mark.parametrize(
    ("name", "beams"),
    [("bart", "1"), ("bart", "3"), ("t5", "1"), ("t5", "3"), ("marian", "3"), ("led", "3")],
)
def test_what_is_written_is_that_of_transformers(
    name: str, beams: str, pairs: dict[str, Path]
) -> None:
    accelerate = ["--accelerate"] if name == "led" else []
    words = (str(pairs[name]), SOURCE, "--max-new-tokens", "13", "--beams", beams, *accelerate)
    found = as_json(*words)
    tokens = expected(pairs[name], 13, num_beams=int(beams))
    assert found["tokens"] == tokens
    assert len(set(tokens)) > 1
    assert found["prompt"] == SOURCE
    assert found["stats"]["prompt_tokens"] == len(SOURCE)


@pytest.mark.parametrize("beams", ["1", "3"])
def test_only_what_is_written_goes_to_stdout(bart: str, beams: str) -> None:
    words = (bart, SOURCE, "--max-new-tokens", "5", "--beams", beams)
    told = typed("generate", *words)
    assert (told.stdout, told.stderr) == (as_json(*words)["text"] + "\n", "")


@pytest.mark.parametrize("kind", ["fixed", "paged", "window=40", None])
def test_caches_of_pairs(bart: str, kind: str | None) -> None:
    chosen = ("--no-cache",) if kind is None else ("--cache", kind)
    found = as_json(bart, SOURCE, "--max-new-tokens", "9", *chosen)
    assert found["tokens"] == expected(Path(bart), 9)
    assert found["stats"]["cache"] == kind


def test_8_bits_for_the_source_as_well(bart: str) -> None:
    words = (bart, SOURCE, "--max-new-tokens", "5")
    plain, found = as_json(*words)["stats"], as_json(*words, "--cache", "int8")["stats"]
    assert found["cache_bytes"] * 2 < plain["cache_bytes"]


def test_the_first_token_can_be_forced(bart: str) -> None:
    words = (bart, SOURCE, "--max-new-tokens", "3")
    assert as_json(*words, "--forced-bos", "Q")["text"].startswith("Q")
    assert not as_json(*words)["text"].startswith("Q")


def test_a_language_forces_the_first_token_and_marks_the_source(
    bart: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = []

    def marked(opened: Any, source: str | None, target: str | None) -> Marks:
        asked.append((source, target))
        return Marks(prefix=">>fr<< ", first_token=66)

    monkeypatch.setattr(languages, "mark_languages", marked)
    words = ("--source-language", "en", "--target-language", "fr", "--max-new-tokens", "2")
    found = as_json(bart, SOURCE, *words)
    assert asked == [("en", "fr")]
    assert found["tokens"][0] == 66
    assert found["stats"]["prompt_tokens"] == len(SOURCE) + len(">>fr<< ")


def test_the_models_own_rules_for_tokens_count(pairs: dict[str, Path], tmp_path: Path) -> None:
    for file in pairs["bart"].iterdir():
        (tmp_path / file.name).write_bytes(file.read_bytes())
    settings = json.loads((tmp_path / "generation_config.json").read_text())
    settings.update(forced_bos_token_id=77, num_beams=4, min_length=50)
    (tmp_path / "generation_config.json").write_text(json.dumps(settings))
    assert as_json(str(tmp_path), SOURCE, "--max-new-tokens", "4")["tokens"][0] == 77


@pytest.mark.parametrize("name", ["bart", "led"])
def test_a_source_that_is_too_long(name: str, pairs: dict[str, Path]) -> None:
    result = typed("generate", str(pairs[name]), "x" * 98, "--max-new-tokens", "4")
    assert_refused(
        result,
        2,
        f"the source has 98 tokens, but {pairs[name]} takes 97 at once; shorten or split it",
    )


def test_more_than_a_decoder_writes(pairs: dict[str, Path]) -> None:
    result = typed("generate", str(pairs["led"]), SOURCE, "--max-new-tokens", "41")
    assert_refused(result, 2, "writes at most 40 tokens; use --max-new-tokens 40")
    words = ("--accelerate", "--max-new-tokens", "40")
    assert typed("generate", str(pairs["led"]), "x", *words).exit_code == 0


def test_options_that_exclude_each_other(bart: str) -> None:
    both = typed("generate", bart, SOURCE, "--beams", "2", "--temperature", "0.5")
    assert_refused(both, 2, "--beams keeps the likeliest texts", "leave one of them out")
    both = typed("generate", bart, SOURCE, "--target-language", "fr", "--forced-bos", "Q")
    assert_refused(both, 2, "--target-language and --forced-bos exclude each other")
    unknown = typed("generate", bart, SOURCE, "--forced-bos", "QQ")
    assert_refused(unknown, 2, "has no token 'QQ'")
    none_such = typed("generate", bart, SOURCE, "--target-language", "fr")
    assert_refused(none_such, 2, "--target-language: the tokenizer of")


def test_languages_are_for_pairs(writer: Path) -> None:
    result = typed("generate", str(writer), SOURCE, "--target-language", "fr", "--forced-bos", "Q")
    assert_refused(result, 2, "--target-language, --forced-bos: only for models of an encoder and")


@pytest.mark.parametrize("name", ["bart", "led"])
def test_beams_without_a_cache(name: str, pairs: dict[str, Path]) -> None:
    words = (str(pairs[name]), SOURCE, "--max-new-tokens", "9", "--beams", "3", "--accelerate")
    assert as_json(*words, "--no-cache")["tokens"] == expected(pairs[name], 9, num_beams=3)


def test_a_pair_made_of_two_models(tmp_path: Path) -> None:
    torch.manual_seed(5)
    parts = [
        transformers.BertConfig(**folders.BERT, is_decoder=n, add_cross_attention=n)
        for n in (False, True)
    ]
    config = transformers.EncoderDecoderConfig.from_encoder_decoder_configs(*parts)
    config.decoder_start_token_id, config.pad_token_id = 256, 257
    folder = folders.save(folders.lively(transformers.EncoderDecoderModel(config)), tmp_path)
    found = as_json(str(folder), SOURCE, "--max-new-tokens", "9", "--beams", "3")
    assert found["tokens"] == expected(folder, 9, num_beams=3)
    result = typed("generate", str(folder), "x" * 98)
    assert_refused(result, 2, f"the source has 98 tokens, but {folder} takes 97 at once")
    result = typed("generate", str(folder), "x", "--max-new-tokens", "97")
    assert_refused(result, 2, "writes at most 96 tokens; use --max-new-tokens 96")


def test_beams_of_a_decoder(writer: Path) -> None:
    model = transformers.AutoModelForCausalLM.from_pretrained(writer, attn_implementation="eager")
    tokenizer = transformers.AutoTokenizer.from_pretrained(writer)
    tokens = tokenizer(SOURCE, return_tensors="pt", return_token_type_ids=False)
    written = model.generate(**tokens, max_new_tokens=9, num_beams=3, do_sample=False)
    found = as_json(str(writer), SOURCE, "--max-new-tokens", "9", "--beams", "3")
    assert found["tokens"] == written[0, len(SOURCE) :].tolist()
    assert found["stats"]["decode_seconds"] > 0
