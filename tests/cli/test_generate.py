import json
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers

from tests.cli.folders import LLAMA, save
from tests.cli.typed import typed

PROMPT = "Attention, "


def expected(folder: Path, prompt: str, count: int) -> tuple[list[int], str]:
    """Return what transformers writes by itself, with torch's attention and its own cache."""
    model = transformers.AutoModelForCausalLM.from_pretrained(folder, attn_implementation="sdpa")
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
    tokens = tokenizer(prompt, return_tensors="pt", return_token_type_ids=False)
    out = model.generate(**tokens, max_new_tokens=count, do_sample=False)
    new = out[0, tokens["input_ids"].shape[1] :].tolist()
    return new, str(tokenizer.decode(new, skip_special_tokens=True))


def as_json(*words: str) -> dict[str, Any]:
    result = typed("generate", *words, "--json")
    assert result.exit_code == 0, result.output
    found: dict[str, Any] = json.loads(result.stdout)
    return found


def test_greedy_text_is_that_of_transformers(writer: Path) -> None:
    tokens, text = expected(writer, PROMPT, 37)
    assert len(set(tokens)) > 5
    result = typed("generate", str(writer), PROMPT, "--max-new-tokens", "37")
    assert result.exit_code == 0
    assert result.stdout == text + "\n"
    assert result.stderr == ""
    assert as_json(str(writer), PROMPT, "--max-new-tokens", "37")["tokens"] == tokens


def test_without_a_cache_the_text_is_the_same(writer: Path) -> None:
    words = (str(writer), PROMPT, "--max-new-tokens", "23")
    cached, bare = as_json(*words), as_json(*words, "--no-cache")
    assert bare["tokens"] == cached["tokens"]
    assert bare["stats"]["cache_bytes"] is None
    assert cached["stats"]["cache_bytes"] > 0


def test_streamed_characters_are_never_cut(writer: Path) -> None:
    tokenizer = transformers.AutoTokenizer.from_pretrained(writer)
    for prompt in ("déjà vu", "注意力", "🙂🙃"):
        found = as_json(str(writer), prompt, "--max-new-tokens", "41")
        assert found["text"] == tokenizer.decode(found["tokens"], skip_special_tokens=True)


def test_json_says_what_ran(writer: Path) -> None:
    found = as_json(str(writer), PROMPT, "--max-new-tokens", "3")
    stats = found["stats"]
    assert (found["model"], found["prompt"], found["ended"]) == (str(writer), PROMPT, False)
    assert (stats["prompt_tokens"], stats["new_tokens"]) == (len(PROMPT), 3)
    assert stats["threads"] == torch.get_num_threads()
    assert stats["decode_backend"] in ("native", "sdpa", "reference")
    assert stats["prefill_seconds"] > 0
    assert stats["decode_seconds"] > 0


def test_stats_go_to_stderr(writer: Path) -> None:
    plain = typed("generate", str(writer), PROMPT)
    told = typed("generate", str(writer), PROMPT, "--stats")
    assert told.stdout == plain.stdout
    for name in ("prefill tokens per second", "decode tokens per second", "cache bytes"):
        assert name in told.stderr


def test_draws_repeat_with_their_seed(writer: Path) -> None:
    words = (str(writer), PROMPT, "--temperature", "3", "--top-k", "50", "--top-p", "0.9")
    first, again, other = (as_json(*words, "--seed", seed)["tokens"] for seed in ("5", "5", "7"))
    assert first == again
    assert first != other


def test_top_k_of_one_is_greedy(writer: Path) -> None:
    assert (
        as_json(str(writer), PROMPT, "--top-k", "1")["tokens"]
        == (as_json(str(writer), PROMPT)["tokens"])
    )


def test_the_models_own_sampling_settings_do_not_count(writer: Path, tmp_path: Path) -> None:
    for file in writer.iterdir():
        (tmp_path / file.name).write_bytes(file.read_bytes())
    settings = json.loads((tmp_path / "generation_config.json").read_text())
    settings.update(do_sample=True, temperature=9.0, max_length=3)
    (tmp_path / "generation_config.json").write_text(json.dumps(settings))
    found = as_json(str(tmp_path), PROMPT)
    assert found["tokens"] == as_json(str(writer), PROMPT)["tokens"]


def test_it_stops_where_the_model_ends_the_text(
    writer: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fourth = as_json(str(writer), PROMPT)["tokens"][3]
    given = transformers.GenerationConfig.from_pretrained

    def ending(*args: Any, **options: Any) -> Any:
        settings = given(*args, **options)
        ends = settings[0] if isinstance(settings, tuple) else settings
        ends.eos_token_id = [fourth]
        return settings

    monkeypatch.setattr(transformers.GenerationConfig, "from_pretrained", ending)
    found = as_json(str(writer), PROMPT)
    assert found["ended"]
    assert found["tokens"].index(fourth) == len(found["tokens"]) - 1


def test_stats_name_the_backend_that_ran(tmp_path: Path) -> None:
    config = transformers.Gemma2Config(**LLAMA, sliding_window=8, attn_logit_softcapping=2.0)
    folder = save(transformers.Gemma2ForCausalLM(config), tmp_path)
    stats = as_json(str(folder), PROMPT, "--max-new-tokens", "3")["stats"]
    assert (stats["prefill_backend"], stats["decode_backend"]) == ("native", "native")
