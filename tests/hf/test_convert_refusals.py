"""convert: what it refuses, in which words, and that nothing was changed then."""

from typing import Any

import pytest
import torch
import transformers
from torch import nn

import headwise as hw
from headwise import hf
from headwise.errors import BackendRefused, PatternError, ShapeError
from tests.support.hf_tiny import FAMILIES, LEFT, answer, inputs, tiny, tokens, without_dropout

MIXED = "bigbird_pegasus"
OWN_CODE = [
    name for name, family in FAMILIES.items() if family.through != "headwise" and name != MIXED
]
ELU = hw.nn.LinearAttention("elu")
LOW = hw.nn.LowRank(4, 64)


@pytest.mark.parametrize("name", [*OWN_CODE, *LEFT])
def test_attention_by_code_of_its_own(name: str) -> None:
    with pytest.raises(BackendRefused, match=r"^convert: the model \(\w+\) attends by its own"):
        hf.convert(tiny(name, "eager"), hw.Window(2, 2))


def test_an_accelerated_model_is_named_by_its_own_classes() -> None:
    message = (
        r"the model \(LongformerModel\) attends by its own code \(LongformerAttention, Longfor"
    )
    with pytest.raises(BackendRefused, match=message):
        hf.convert(tiny("longformer"), hw.Window(2, 2))


def test_a_part_that_attends_by_code_of_its_own() -> None:
    model = tiny(MIXED, "eager")
    message = r"^convert: model\.encoder\.layers\.0\.self_attn\.self \(BigBirdPegasusBlockSparseAtt"
    with pytest.raises(BackendRefused, match=message):
        hf.convert(model, hw.Window(2, 2))
    hf.convert(model, hw.Window(2, 2), layers=[0, 1])
    found = [row.name for row in hf.report(model) if "converted" in row.reason]
    assert found == ["model.decoder.layers.0.self_attn", "model.decoder.layers.1.self_attn"]


@pytest.mark.parametrize(
    ("name", "mechanism", "message"),
    [
        ("t5", ELU, "there are no scores of pairs, so bias cannot be applied, and the layer"),
        ("t5", LOW, "there are no scores of pairs of tokens, so bias cannot be added, and"),
        ("gemma2", ELU, "there are no scores of pairs, so softcap cannot be applied, and the"),
        ("gpt_oss", hw.nn.RandomFeatures(8), "there are no scores of pairs, so sinks cannot be"),
        ("llama", LOW, "projected tokens hold something of all tokens, so none can be hidden"),
        ("clip_text", LOW, "projected tokens hold something of all tokens, so none can be hidden"),
        ("mistral", ELU, r"the pattern must be none or Causal\(\), got \(Causal\(\) & Window\(le"),
        ("llama4", ELU, r"the pattern must be none or Causal\(\), got \(Causal\(\) & BlockWindo"),
        ("modernbert", ELU, r"the pattern must be none or Causal\(\), got Window\(left=2, right="),
    ],
)
def test_mechanisms_that_cannot_do_it(name: str, mechanism: Any, message: str) -> None:
    model, given = tiny(name, "eager"), inputs(name)
    before, shown = answer(model, given), str(model)
    with pytest.raises(
        BackendRefused, match=rf"^convert: .* cannot attend by \w+\(.*\): {message}"
    ):
        hf.convert(model, mechanism)
    assert str(model) == shown
    assert torch.equal(answer(model, given), before)
    assert model.config._attn_implementation != "headwise"


def test_layers_that_can_take_it_are_named() -> None:
    with pytest.raises(BackendRefused, match=r"2 more of 4 are refused|1 more of 4 are refused"):
        hf.convert(tiny("bart"), LOW)
    with pytest.raises(BackendRefused, match=r"hint: layers=\[0, 1\] can take it; patterns such"):
        hf.convert(tiny("bart"), LOW)
    hf.convert(tiny("bart"), LOW, layers=[0, 1])
    hf.convert(tiny("gemma3"), ELU, layers=range(1, 2))


@pytest.mark.parametrize(
    ("mechanism", "error", "message"),
    [
        ("linear", TypeError, r"mechanism must be a pattern, .*, got 'linear'\n.*patterns\.parse"),
        (hw.Window, TypeError, r"got <class .*Window'>\n  hint: give an object, Window\(…\)"),
        (torch.zeros(99, 9), TypeError, r"got tensor\(\[\[.{80,90}\.\.\.\n  hint: a pattern"),
        (nn.Linear(2, 2), TypeError, "got Linear.*\n  hint: a pattern such as headwise.Window"),
        (lambda _: 3, TypeError, r"mechanism\(0\) must be a pattern, .*, got 3\n"),
        (
            ~hw.Causal(),
            PatternError,
            r"leaves no key to any query of transformer\.h\.0\.attn \(GPT2Attention\), which has "
            r"Causal\(\) of its own, up to 1024 tokens\n  pattern  ~Causal\(\)\n",
        ),
        (
            hw.PerHead([hw.Window(1, 0), hw.Causal()]),
            PatternError,
            r"tells 2 heads apart, and transformer\.h\.0\.attn \(GPT2Attention\) has 6\n",
        ),
        (hw.nn.RandomFeatures(8, 5), ShapeError, "head_dim must be that of the layer, got 5 and 4"),
    ],
)
def test_what_is_no_attention(mechanism: Any, error: type[Exception], message: str) -> None:
    model = tiny("gpt2")
    shown = str(model)
    with pytest.raises(error, match=message):
        hf.convert(model, mechanism)
    assert str(model) == shown


@pytest.mark.parametrize("layers", [[2], [-1], [True], [], ["0"]])
def test_layers_that_there_are_not(layers: Any) -> None:
    with pytest.raises(ShapeError, match=r"layers must be numbers from 0 to 1, got \["):
        hf.convert(tiny("bert"), hw.Window(1, 1), layers=layers)


@pytest.mark.parametrize("layers", [1, "01", {0: 1}])
def test_layers_that_are_no_sequence(layers: Any) -> None:
    with pytest.raises(TypeError, match="layers must be a sequence of ints, got"):
        hf.convert(tiny("bert"), hw.Window(1, 1), layers=layers)


def test_modules_without_such_attention() -> None:
    with pytest.raises(BackendRefused, match="Linear has no self-attention that asks"):
        hf.convert(nn.Linear(2, 2), hw.Window(1, 1))
    with pytest.raises(BackendRefused, match="TransformerEncoderLayer has no self-attention that"):
        hf.convert(nn.TransformerEncoderLayer(4, 2), hw.Window(1, 1))


def test_a_part_without_its_model() -> None:
    part = tiny("bert", "sdpa").encoder
    with pytest.raises(BackendRefused, match=r"layer\.0\.attention\.self \(BertSelfAttention\) is"):
        hf.convert(part, hw.Window(1, 1))
    hf.convert(tiny("bert").encoder, hw.Window(1, 1))
    hf.convert(tiny("bart", "sdpa").get_encoder(), hw.Window(1, 1))


def test_dropout_of_weights_that_there_are_not() -> None:
    model = hf.convert(tiny("bert"), ELU).train()
    with pytest.raises(NotImplementedError, match=r"drops attention weights in training, got 0\.1"):
        model(tokens())
    without_dropout(model)(tokens())
    hf.convert(tiny("bert"), hw.nn.LowRank(4, 64)).train()(tokens())


def test_another_implementation_for_a_converted_model() -> None:
    model = hf.convert(tiny("bert"), hw.Window(1, 1))
    with pytest.raises(
        BackendRefused, match=r"attn_implementation='sdpa' has softmax attention al"
    ):
        model.set_attn_implementation("sdpa")
    hf.convert(model, None).set_attn_implementation("sdpa")


@pytest.mark.parametrize("mechanism", [hw.Window(1, 1), ELU], ids=["window", "elu"])
def test_places_that_nobody_knows(mechanism: Any) -> None:
    """A mask of all four dimensions over the room of a static cache."""
    model = hf.convert(tiny("llama"), mechanism)
    cache = transformers.StaticCache(model.config, 20)
    mask = torch.ones(1, 1, 1, 20, dtype=torch.bool)
    mask[..., 4:] = False
    with pytest.raises(PatternError, match="needs to know where the queries stand, got 1 queries"):
        model(tokens(1, 1), attention_mask=mask, cache=cache)


def test_weights_of_a_mechanism_that_has_none() -> None:
    class Means(nn.Module):
        """Every token gets the mean of all."""

        def forward(self, call: hw.nn.AttentionCall, state: object = None) -> hw.nn.Step:
            return hw.nn.Step(call.value.mean(2, keepdim=True).expand_as(call.query), None)

        def state(self, call: hw.nn.AttentionCall) -> None:
            """Keep none."""

        def cost(self, q_len: int, kv_len: int, **sizes: int) -> hw.nn.Cost:
            return hw.nn.Cost(kv_len, kv_len, "O(kv_len)")

        def reference(self, call: hw.nn.AttentionCall) -> torch.Tensor:
            return self.forward(call).output

    model = hf.convert(tiny("bert"), Means())
    model(tokens())
    with pytest.raises(NotImplementedError, match="Means of BertSelfAttention has no method wei"):
        model(tokens(), output_attentions=True)
    assert len(hf.report(model)) == 2
