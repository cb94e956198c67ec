"""--accelerate and --attention, in generate and embed."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers

from tests.cli import folders
from tests.cli.test_embed import TEXTS
from tests.cli.test_embed import as_json as embedded
from tests.cli.test_generate import PROMPT
from tests.cli.test_generate import as_json as written
from tests.cli.typed import assert_refused, typed

LONG = {**folders.BERT, "attention_window": [4, 4], "sep_token_id": 2, "pad_token_id": 1}
BLOCKS = {
    **folders.BERT,
    "attention_type": "block_sparse",
    "block_size": 1,
    "num_random_blocks": 1,
    "sep_token_id": 2,
}
READERS: dict[str, tuple[Any, Any]] = {
    "bert": (transformers.BertModel, transformers.BertConfig(**folders.BERT)),
    "longformer": (transformers.LongformerModel, transformers.LongformerConfig(**LONG)),
    "big_bird": (transformers.BigBirdModel, transformers.BigBirdConfig(**BLOCKS)),
    "mpnet": (
        transformers.MPNetModel,
        transformers.MPNetConfig(**{**folders.BERT, "pad_token_id": 1}),
    ),
    "bart": (transformers.BartModel, transformers.BartConfig(**folders.BART)),
    "t5": (transformers.T5EncoderModel, transformers.T5Config(**folders.T5)),
}


@pytest.fixture(scope="module")
def readers(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    torch.manual_seed(4)
    return {
        name: folders.save(folders.lively(kind(config)), tmp_path_factory.mktemp(name))
        for name, (kind, config) in READERS.items()
    }


@pytest.fixture(scope="module")
def bloom(tmp_path_factory: pytest.TempPathFactory) -> str:
    torch.manual_seed(5)
    config = transformers.BloomConfig(vocab_size=258, hidden_size=24, n_layer=2, n_head=6)
    model = folders.lively(transformers.BloomForCausalLM(config))
    return str(folders.save(model, tmp_path_factory.mktemp("bloom")))


def vectors(folder: Path) -> torch.Tensor:
    """Return the sentence vectors by transformers' own attention."""
    kind: Any = transformers.AutoModel
    if json.loads((folder / "config.json").read_text())["model_type"] == "t5":
        kind = transformers.AutoModelForTextEncoding
    model = kind.from_pretrained(folder, attn_implementation="eager").eval()
    reader = model.get_encoder() if hasattr(model, "decoder") else model
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
    tokens = tokenizer(list(TEXTS), return_tensors="pt", return_token_type_ids=False, padding=True)
    with torch.no_grad():
        states = reader(**tokens).last_hidden_state
    means = [
        row[real.bool()].mean(0) for row, real in zip(states, tokens["attention_mask"], strict=True)
    ]
    return torch.nn.functional.normalize(torch.stack(means), dim=-1)


@pytest.mark.parametrize("name", READERS)
def test_accelerated_vectors_are_those_of_transformers(name: str, readers: dict[str, Path]) -> None:
    found = embedded("--model", str(readers[name]), *TEXTS, "--accelerate")
    assert found["prepared"]["accelerated"]
    assert found["prepared"]["attention_modules_served"] == 2
    torch.testing.assert_close(
        torch.tensor(found["vectors"]), vectors(readers[name]), atol=2e-5, rtol=0
    )


@pytest.mark.parametrize("name", ["bart", "t5"])
def test_vectors_of_an_encoder_of_two(name: str, readers: dict[str, Path]) -> None:
    found = embedded("--model", str(readers[name]), *TEXTS)
    torch.testing.assert_close(
        torch.tensor(found["vectors"]), vectors(readers[name]), atol=2e-5, rtol=0
    )


def test_positions_that_are_computed_need_not_be_saved(tmp_path: Path) -> None:
    torch.manual_seed(7)
    model = transformers.MarianMTModel(transformers.MarianConfig(**folders.BART))
    folder = folders.save(folders.lively(model), tmp_path)
    kind: Any = transformers.MarianMTModel
    whole = kind.from_pretrained(folder, attn_implementation="eager").eval()
    tokens = folders.byte_tokenizer()(TEXTS[0], return_tensors="pt", return_token_type_ids=False)
    with torch.no_grad():
        mean = whole.get_encoder()(**tokens).last_hidden_state[0].mean(0)
    found = torch.tensor(embedded(str(folder), TEXTS[0])["vectors"][0])
    torch.testing.assert_close(found, mean / mean.norm(), atol=2e-5, rtol=0)


@pytest.mark.parametrize("name", ["longformer", "big_bird", "mpnet"])
def test_attention_of_their_own_needs_accelerate(name: str, readers: dict[str, Path]) -> None:
    result = typed("embed", "--model", str(readers[name]), "hello")
    assert_refused(result, 2, "attends by its own code", "; --accelerate replaces that code")


@pytest.mark.parametrize("name", ["longformer", "mpnet"])
def test_places_before_the_first_token_are_no_room(name: str, readers: dict[str, Path]) -> None:
    words = ("embed", "--model", str(readers[name]), "--accelerate")
    assert_refused(typed(*words, "x" * 96), 2, "text 1 has 96 tokens, but", "takes 95 at once")
    assert typed(*words, "x" * 95).exit_code == 0


def test_a_decoder_with_attention_of_its_own(bloom: str) -> None:
    words = (bloom, PROMPT, "--max-new-tokens", "9", "--accelerate")
    found = written(*words)
    model = transformers.AutoModelForCausalLM.from_pretrained(bloom)
    tokenizer = transformers.AutoTokenizer.from_pretrained(bloom)
    tokens = tokenizer(PROMPT, return_tensors="pt", return_token_type_ids=False)
    out = model.generate(**tokens, max_new_tokens=9, do_sample=False)
    assert found["tokens"] == out[0, len(PROMPT) :].tolist()
    assert found["stats"]["decode_backend"] == "native"


def test_what_is_left_is_told(tmp_path: Path) -> None:
    config = transformers.FalconConfig(**folders.FALCON)
    folder = folders.save(transformers.FalconForCausalLM(config), tmp_path)
    told = typed("generate", str(folder), PROMPT, "--max-new-tokens", "2", "--accelerate")
    assert told.exit_code == 0
    assert told.stderr.startswith("headwise generate: not accelerated: 2 FalconAttention (")
    assert len(told.stderr.splitlines()) == 1


def test_stats_say_what_was_accelerated(writer: Path) -> None:
    words = ("generate", str(writer), PROMPT, "--max-new-tokens", "3", "--stats")
    plain, faster = typed(*words), typed(*words, "--accelerate")
    assert faster.stdout == plain.stdout
    assert "LlamaForCausalLM: headwise serves 2 of 2 attention modules" in plain.stderr
    assert "linear layers: 15 left" in plain.stderr
    assert "linear layers: 15 accelerated" in faster.stderr


def test_other_attention_changes_the_text_and_is_measured(writer: Path) -> None:
    words = (str(writer), PROMPT, "--max-new-tokens", "9")
    plain, found = written(*words), written(*words, "--attention", "window 3")
    assert found["tokens"] != plain["tokens"]
    assert plain["prepared"]["drift"] is None
    assert (found["prepared"]["attention"], found["prepared"]["accelerated"]) == ("window 3", False)
    rows = {row["name"]: row["distance"] for row in found["prepared"]["drift"]}
    assert rows["embeddings"] == 0.0
    assert rows["logits"] > 0.0
    told = typed("generate", *words, "--attention", "window 3", "--stats")
    assert "converted to " in told.stderr
    assert (
        "LlamaForCausalLM: converted, against its own softmax attention, 11 tokens" in told.stderr
    )


@pytest.mark.parametrize("attention", ["full", "window 97"])
def test_attention_to_all_changes_nothing(attention: str, writer: Path) -> None:
    words = (str(writer), PROMPT, "--max-new-tokens", "9")
    assert written(*words, "--attention", attention)["tokens"] == written(*words)["tokens"]


@pytest.mark.parametrize(
    "attention",
    [
        "window 4",
        "longformer 4",
        "bigbird 2",
        "linear elu",
        "random-features 16",
        "mean-pool 5",
        "low-rank 5",
    ],
)
def test_every_kind_in_an_encoder(attention: str, readers: dict[str, Path]) -> None:
    words = ("embed", "--model", str(readers["bert"]), *TEXTS, "--attention", attention, "--stats")
    told, faster = typed(*words), typed(*words, "--accelerate")
    assert told.exit_code == 0, told.stderr
    assert "BertModel: converted, against its own softmax attention, 24 tokens" in told.stderr
    assert faster.stdout == told.stdout
    assert ("have to be trained" in told.stderr) == attention.startswith("low-rank")


def test_the_encoder_of_two_gets_it(tmp_path: Path) -> None:
    torch.manual_seed(6)
    model = transformers.BartForConditionalGeneration(transformers.BartConfig(**folders.BART))
    folder = folders.save(folders.lively(model), tmp_path)
    words = (str(folder), PROMPT, "--max-new-tokens", "3")
    found = written(*words, "--attention", "window 2")
    assert found["prepared"]["attention_modules_served"] == 6
    assert [row["name"] for row in found["prepared"]["drift"]] == [
        "embeddings",
        "layer 0",
        "layer 1",
    ]


@pytest.mark.parametrize(
    ("attention", "says"),
    [
        ("nonsense", "--attention takes window TOKENS, longformer TOKENS"),
        ("low-rank 4", "--attention 'low-rank 4' does not fit LlamaForCausalLM: "),
        ("~causal", "--attention '~causal' does not fit LlamaForCausalLM: "),
    ],
)
def test_attention_that_a_decoder_cannot_have(attention: str, says: str, writer: Path) -> None:
    assert_refused(typed("generate", str(writer), PROMPT, "--attention", attention), 2, says)


def test_attention_that_a_model_of_its_own_kind_cannot_have(bloom: str) -> None:
    words = ("generate", bloom, PROMPT, "--accelerate", "--attention", "window 4")
    assert_refused(typed(*words), 2, "--attention 'window 4' does not fit BloomForCausalLM: ")
