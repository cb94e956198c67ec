"""The Auto classes, pipelines and the tools around them know the models."""

from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast, pipeline

import headwise as hw
from tests.support.own_models import DECODERS, HEADS, config, given, seeded, tiny

AUTO: dict[str, Any] = {
    "encoder": transformers.AutoModelForMaskedLM,
    "decoder": transformers.AutoModelForCausalLM,
    "encoder_decoder": transformers.AutoModelForSeq2SeqLM,
}


@pytest.mark.parametrize("kind", HEADS)
@torch.no_grad()
def test_a_folder_is_loaded_by_the_auto_classes(kind: str, tmp_path: Path) -> None:
    hw.models.register()
    model = tiny(kind, positions="learned")
    model.save_pretrained(tmp_path)
    files = {path.name for path in tmp_path.iterdir()}
    assert files <= {"config.json", "generation_config.json", "model.safetensors"}
    found = AUTO[kind].from_pretrained(tmp_path)
    assert type(found) is HEADS[kind]
    assert torch.equal(found(**given(kind)).logits, model(**given(kind)).logits)
    bare = transformers.AutoModel.from_pretrained(tmp_path)
    assert torch.equal(bare(**given(kind))[0], model.model(**given(kind))[0])
    fresh = AUTO[kind].from_config(found.config, dtype=torch.bfloat16)
    assert fresh.dtype == torch.bfloat16


def test_the_auto_class_of_classifiers(tmp_path: Path) -> None:
    hw.models.register()
    auto: Any = transformers.AutoModelForSequenceClassification
    auto.from_config(config("encoder", num_labels=4)).save_pretrained(tmp_path)
    assert auto.from_pretrained(tmp_path).classifier.out_features == 4


def test_settings_are_changed_while_loading(tmp_path: Path) -> None:
    """The same weights, another attention."""
    model = tiny("encoder")
    model.save_pretrained(tmp_path)
    kind = type(model)
    found = kind.from_pretrained(tmp_path, pattern="window(2, 2)")
    assert found.model.encoder.blocks[1].attention.pattern == hw.Window(2, 2)
    with pytest.raises(hw.PatternError, match="is no pattern"):
        kind.from_pretrained(tmp_path, pattern="windo(2, 2)")


def test_features_stay_float32_and_the_same(tmp_path: Path) -> None:
    model = tiny(**DECODERS["performer"])
    attention = model.model.decoder.blocks[1].attention
    attention.mechanism.redraw(seed=77)
    model.save_pretrained(tmp_path)
    found = type(model).from_pretrained(tmp_path, dtype=torch.bfloat16)
    mechanism = found.model.decoder.blocks[1].attention.mechanism
    assert mechanism.projection.dtype == torch.float32
    assert torch.equal(mechanism.projection, attention.mechanism.projection)
    assert int(mechanism.seed) == 77
    assert found.lm_head.weight.dtype == torch.bfloat16


def test_on_the_meta_device_nothing_is_drawn() -> None:
    with torch.device("meta"):
        model = hw.models.HeadwiseForCausalLM(hw.models.llama())
    assert {weight.device.type for weight in model.parameters()} == {"meta"}
    assert model.num_parameters() == 134_515_008


@pytest.fixture(scope="module")
def tokenizer() -> Any:
    words = ["[PAD]", "[UNK]", "[EOS]", "[MASK]", *"abcdefghijklmnopqrstuvwxyz"]
    inner = Tokenizer(models.WordLevel({word: i for i, word in enumerate(words)}, "[UNK]"))
    inner.pre_tokenizer = pre_tokenizers.Whitespace()
    made: Any = PreTrainedTokenizerFast
    return made(
        tokenizer_object=inner,
        pad_token="[PAD]",
        unk_token="[UNK]",
        eos_token="[EOS]",
        mask_token="[MASK]",
        padding_side="left",
    )


def test_pipelines(tokenizer: Any) -> None:
    hw.models.register()
    writes = pipeline("text-generation", tiny(), tokenizer=tokenizer)
    found = writes(["a b c d", "e"], batch_size=2, max_new_tokens=3, do_sample=False)
    alone = writes(["e"], max_new_tokens=3, do_sample=False)
    assert found[1] == alone[0]
    fills = pipeline("fill-mask", tiny("encoder"), tokenizer=tokenizer)
    assert len(fills("a [MASK] c", top_k=4)) == 4
    kind = hw.models.HeadwiseForSequenceClassification
    sorts = pipeline(
        "text-classification", seeded(kind, config("encoder", num_labels=3)), tokenizer=tokenizer
    )
    assert [each["label"] for each in sorts(["a b", "c"], batch_size=2)]
    embeds = pipeline("feature-extraction", tiny("encoder").model, tokenizer=tokenizer)
    assert len(embeds("a b c")[0]) == 3


@pytest.mark.parametrize("smoothed", [True, False])
def test_collators(tokenizer: Any, smoothed: bool) -> None:
    rows = [{"input_ids": [5, 6, 7, 8, 9]}, {"input_ids": [10, 11]}]
    pair = tiny("encoder_decoder")
    batch = transformers.DataCollatorForSeq2Seq(tokenizer, model=pair)(
        [{**row, "labels": row["input_ids"][: smoothed + 1]} for row in rows]
    )
    assert pair(**batch).loss.isfinite()
    masks = transformers.DataCollatorForLanguageModeling(tokenizer, mlm_probability=0.5)
    torch.manual_seed(1)
    assert tiny("encoder")(**masks([dict(row) for row in rows])).loss.isfinite()
    plain = transformers.DataCollatorForLanguageModeling(tokenizer, mlm=False)
    assert tiny()(**plain([dict(row) for row in rows])).loss.isfinite()
    flatten: Any = transformers.DataCollatorWithFlattening
    packed = flatten(return_position_ids=True)(
        [{**row, "labels": row["input_ids"]} for row in rows]
    )
    with pytest.raises(hw.PatternError, match="several texts in a row need a model call each"):
        tiny()(**packed)
