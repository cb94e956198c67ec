"""convert on whole models: the parts it adds, weights, the way back, others' models."""

import copy
from typing import Any

import pytest
import torch
import transformers

import headwise as hw
from headwise import hf
from headwise.patterns import Pattern
from tests.support.budget import assert_within_budget
from tests.support.hf_spelled import spelled
from tests.support.hf_tiny import answer, inputs, padded, tiny, tokens, without_dropout
from tests.support.longformer import tiny_longformer

NEAR = hw.Window(2, 1) | hw.GlobalTokens([0])
LOW = hw.nn.LowRank(4, 64)


@pytest.mark.parametrize("kind", ["low rank", "learned map"])
def test_parameters_of_a_mechanism_are_the_models(kind: str) -> None:
    made: Any = LOW
    if kind == "learned map":
        made = hw.nn.LinearAttention(
            torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.Softplus())
        )
    before = copy.deepcopy(made.state_dict())
    model = without_dropout(hf.convert(tiny("bert").double(), made))
    own = {name: w for name, w in model.named_parameters() if ".headwise.mechanism." in name}
    assert len(own) == 4
    assert len({w.data_ptr() for w in own.values()}) == 4
    assert all(w.dtype == torch.float64 for w in own.values())
    assert made.state_dict().keys() == before.keys()
    loss = answer(model, inputs("bert", "right")).square().mean()
    assert all(bool(grad.any()) for grad in torch.autograd.grad(loss, list(own.values())))

    twin = hf.convert(tiny("bert").double(), made)
    twin.load_state_dict(model.state_dict())
    for other in (twin.eval(), copy.deepcopy(model).eval()):
        torch.testing.assert_close(
            answer(other, inputs("bert")), answer(model.eval(), inputs("bert")), rtol=0, atol=0
        )
    assert {w.dtype for w in model.to(torch.bfloat16).parameters()} == {torch.bfloat16}
    assert answer(model, inputs("bert")).dtype == torch.bfloat16


@pytest.mark.parametrize("name", ["bert", "llama"])
def test_weights_are_those_of_the_pattern(name: str) -> None:
    given = {**inputs(name, "right"), "output_attentions": True}
    theirs = spelled(name, NEAR)
    found = hf.convert(tiny(name), NEAR)(**given).attentions
    plain = theirs(**given).attentions
    exact = theirs.double()(**given).attentions
    for layer in range(2):
        assert_within_budget(found[layer], exact=exact[layer], plain=plain[layer], label=name)


@pytest.mark.parametrize("name", ["bert", "llama"])
@pytest.mark.parametrize("made", [hw.nn.LinearAttention("elu"), hw.nn.RandomFeatures(9)], ids=str)
def test_weights_are_those_of_the_mechanism(name: str, made: Any) -> None:
    """Those of the first layer, times its values, are what the layer hands to its output."""
    model = hf.convert(tiny(name), made)
    first = hf_first(model, name)
    seen: list[Any] = []
    values, output = (first.value, first) if name == "bert" else (first.v_proj, first.o_proj)
    values.register_forward_hook(lambda _, __, out: seen.append(out))
    if name == "bert":
        output.register_forward_hook(lambda _, __, out: seen.append(out[0]))
    else:
        output.register_forward_pre_hook(lambda _, given: seen.append(given[0]))
    weights = model(**inputs(name, "right"), output_attentions=True).attentions[0]
    value = seen[0].unflatten(-1, (-1, 4)).transpose(1, 2)
    value = value.repeat_interleave(6 // value.shape[1], 1)
    torch.testing.assert_close((weights @ value).transpose(1, 2).flatten(2), seen[1])


def hf_first(model: Any, name: str) -> Any:
    return (
        model.encoder.layer[0].attention.self if name == "bert" else model.model.layers[0].self_attn
    )


def test_back_to_softmax() -> None:
    given = inputs("bert", "right")
    wanted = answer(tiny("bert"), given)
    model = hf.convert(tiny("bert", "sdpa"), NEAR)
    hf.convert(model, None, layers=[0])
    assert [bool(row.reason) for row in hf.report(model)] == [False, True]
    torch.testing.assert_close(answer(hf.convert(model, None), given), wanted, rtol=0, atol=0)
    assert model.config._attn_implementation == "headwise"
    hf.convert(model, LOW)
    assert hf.restore(model) is model
    assert model.config._attn_implementation == "sdpa"
    assert str(model) == str(tiny("bert", "sdpa"))
    assert model.state_dict().keys() == tiny("bert", "sdpa").state_dict().keys()


def test_accelerated_before_and_after() -> None:
    given = inputs("bert", "right")
    wanted = answer(hf.convert(tiny("bert"), NEAR), given)
    first = hf.accelerate(hf.convert(tiny("bert", "sdpa"), NEAR), unpad=True)
    then = hf.convert(hf.accelerate(tiny("bert", "sdpa"), unpad=True), NEAR)
    real = given["attention_mask"].bool()
    for model in (first, then):
        torch.testing.assert_close(answer(model, given)[real], wanted[real])
        assert [row.reason for row in hf.report(model)] == 2 * [
            "converted to (Window(left=2, right=1, dilation=1) | GlobalTokens(which=(0,)))"
        ]
    assert str(hf.restore(first)) == str(hf.restore(then)) == str(tiny("bert", "sdpa"))


def test_models_that_share_a_configuration() -> None:
    config = tiny("bert", "sdpa").config
    converted: Any = transformers.BertModel(config)
    other: Any = transformers.BertModel(config)
    converted.eval()
    hf.accelerate(other)
    hf.convert(converted, NEAR)
    given = inputs("bert")
    wanted = answer(converted, given)
    hf.restore(other)
    assert torch.equal(answer(converted, given), wanted)
    assert config._attn_implementation == "headwise"
    hf.restore(converted)
    assert config._attn_implementation == "sdpa"


def test_a_model_inside_another_module() -> None:
    outer = torch.nn.Sequential(torch.nn.Linear(2, 2), tiny("bert", "sdpa"))
    assert hf.convert(outer, hw.Window(1, 1)) is outer
    wanted = answer(hf.convert(tiny("bert"), hw.Window(1, 1)), inputs("bert"))
    torch.testing.assert_close(answer(outer[1], inputs("bert")), wanted, rtol=0, atol=0)


def test_left_padding_moves_the_first_token() -> None:
    """Positions are absolute in a row: the global token is the first of the row, padding or not."""
    model = hf.convert(tiny("bert"), hw.Window(0, 0) | hw.GlobalTokens(0))
    given = {"input_ids": tokens(), "attention_mask": padded("left"), "output_attentions": True}
    weights = model(**given).attentions[0][1, :, 4:, 4:]
    torch.testing.assert_close(weights, torch.eye(7).expand(6, 7, 7))


def test_threads_change_nothing() -> None:
    model, given = hf.convert(tiny("llama"), NEAR), inputs("llama")
    wanted, threads = answer(model, given), torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        torch.testing.assert_close(answer(model, given), wanted, rtol=0, atol=1e-5)
    finally:
        torch.set_num_threads(threads)


@pytest.mark.parametrize("length", [13, 22])
@pytest.mark.parametrize("window", [4, 8])
def test_roberta_becomes_longformer(length: int, window: int) -> None:
    """As Longformer's authors made theirs: the global projections begin as the local ones."""
    theirs = tiny_longformer(window, layers=2)
    for layer in theirs.encoder.layer:
        inner = layer.attention.self
        for name in ("query", "key", "value"):
            getattr(inner, f"{name}_global").load_state_dict(getattr(inner, name).state_dict())
    config = transformers.RobertaConfig(**_common(theirs.config))
    weights = {k: w for k, w in theirs.state_dict().items() if "_global." not in k}
    model: Any = transformers.RobertaModel(config)
    model.load_state_dict(weights)
    hf.convert(model.eval(), hw.patterns.longformer(window, [0]))
    given = {"input_ids": tokens(length=length), "attention_mask": padded("right", length=length)}
    chosen = torch.zeros(2, length, dtype=torch.long)
    chosen[:, 0] = 1
    _same_at_real_tokens(model, theirs, given, {"global_attention_mask": chosen})


@pytest.mark.parametrize("length", [48, 53])
def test_bert_becomes_big_bird(length: int) -> None:
    """With the blocks that transformers draws in training; it draws none in evaluation."""
    config = transformers.BigBirdConfig(
        **_common(tiny("bert").config),
        hidden_act="gelu",
        attention_type="block_sparse",
        block_size=4,
        num_random_blocks=2,
    )
    with torch.random.fork_rng():
        torch.manual_seed(7)
        theirs = transformers.BigBirdModel(config, add_pooling_layer=False)
        for weight in theirs.parameters():
            torch.nn.init.normal_(weight, std=0.3)
    theirs = without_dropout(theirs)
    model: Any = transformers.BertModel(tiny("bert").config, add_pooling_layer=False)
    model.load_state_dict(theirs.state_dict())

    def of_layer(number: int) -> Pattern:
        found = hf.big_bird(theirs.encoder.layer[number].attention.self, length, training=True)
        assert found.bias is None
        return found.pattern

    hf.convert(model.eval(), of_layer)
    given = {"input_ids": tokens(length=length), "attention_mask": padded("right", length=length)}
    _same_at_real_tokens(model, theirs, given, {})


def _same_at_real_tokens(ours: Any, theirs: Any, given: dict[str, Any], more: Any) -> None:
    real = given["attention_mask"].bool()
    with torch.no_grad():
        found, plain = answer(ours, given)[real], answer(theirs, {**given, **more})[real]
        exact = answer(theirs.double(), {**given, **more})[real]
    assert_within_budget(found, exact=exact, plain=plain, label=type(theirs).__name__)


def _common(config: Any) -> dict[str, Any]:
    names = (
        *("vocab_size", "hidden_size", "num_attention_heads", "num_hidden_layers"),
        *("intermediate_size", "max_position_embeddings", "pad_token_id", "type_vocab_size"),
    )
    return {name: getattr(config, name) for name in names}
