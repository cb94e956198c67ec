"""Longformer through ``headwise.hf.accelerate``: the model's own answers, and nothing else."""

import copy
import io
import warnings
from typing import Any

import pytest
import torch
import transformers
from torch import Tensor, nn
from transformers.models.longformer import modeling_longformer

import headwise as hw
from headwise.hf.accelerated import longformer
from tests.support.budget import assert_same_bits, assert_within_budget
from tests.support.longformer import WIDTH, tiny_longformer

WINDOW = 6
NAMES = ("last_hidden_state", "pooler_output", "hidden_states", "attentions", "global_attentions")


def _given(length: int, padded: str = "none", asking: str = "few") -> dict[str, Tensor]:
    """Return tokens of three samples, padded ones in the second, and global ones."""
    ids = torch.randint(2, 61, (3, length))
    mask = torch.ones(3, length, dtype=torch.long)
    if padded != "none":
        mask[1, :6] = 0
    mask = mask.flip(1) if padded == "right" else mask
    given = {"input_ids": ids.masked_fill(mask == 0, 1), "attention_mask": mask}
    if asking != "none":
        chosen = torch.zeros(3, length, dtype=torch.long)
        chosen[0, [0, length - 1]] = chosen[1, length // 2] = 1
        if asking == "many":
            chosen[2, :6] = 1
        given["global_attention_mask"] = chosen
    return given


def _flat(output: Any) -> dict[str, Tensor]:
    """Return every tensor of a model's answer under a name of its own."""
    found = {}
    for name in NAMES:
        value = output.get(name)
        for place, tensor in enumerate(value if isinstance(value, tuple) else (value,)):
            if tensor is not None:
                found[f"{name} {place}"] = tensor
    return found


def _fast(model: nn.Module) -> Any:
    return hw.hf.accelerate(copy.deepcopy(model))


def _compare(model: Any, given: dict[str, Tensor], **asked: Any) -> None:
    """Compare what a model says before and after with its answer in float64."""
    with torch.no_grad():
        exact = _flat(copy.deepcopy(model).double()(**given, **asked))
        theirs, ours = _flat(model(**given, **asked)), _flat(_fast(model)(**given, **asked))
    assert ours.keys() == theirs.keys() == exact.keys()
    for name, right in exact.items():
        assert_within_budget(ours[name], exact=right, plain=theirs[name], label=name)


@pytest.mark.parametrize("length", [8, 12, 17, 30])
@pytest.mark.parametrize("padded", ["none", "left", "right"])
@pytest.mark.parametrize("asking", ["none", "few", "many"])
def test_all_hidden_states(length: int, padded: str, asking: str) -> None:
    model = tiny_longformer(WINDOW, layers=2)
    _compare(model, _given(length, padded, asking), output_hidden_states=True)


def test_layers_with_windows_of_their_own() -> None:
    model = tiny_longformer(WINDOW, layers=2)
    model.config.attention_window = [6, 4]
    model.encoder.layer[1].attention.self.one_sided_attn_window_size = 2
    _compare(model, _given(12), output_hidden_states=True)


def test_embeddings_and_positions_that_the_caller_gives() -> None:
    model = tiny_longformer(WINDOW)
    given = {**_given(12), "position_ids": torch.arange(12).flip(0).expand(3, 12) + 2}
    given["inputs_embeds"] = model.embeddings.word_embeddings(given.pop("input_ids")).detach()
    embeds = given["inputs_embeds"]
    with torch.no_grad():
        exact = copy.deepcopy(model).double()(**{**given, "inputs_embeds": embeds.double()})[0]
        theirs, ours = (one(**given)[0] for one in (model, _fast(model)))
    assert_within_budget(ours, exact=exact, plain=theirs, label="output")


def test_a_result_without_names() -> None:
    model = tiny_longformer(WINDOW)
    given: dict[str, Any] = {**_given(12), "return_dict": False, "output_hidden_states": True}
    theirs, ours = model(**given), _fast(model)(**given)
    assert [type(part) for part in ours] == [type(part) for part in theirs]
    torch.testing.assert_close(ours, theirs)


@pytest.mark.parametrize("padded", ["none", "left", "right"])
@pytest.mark.parametrize("asking", ["none", "few", "many"])
def test_gradients(padded: str, asking: str) -> None:
    """In float64 their code has NaN in gradients of unequal samples, so each comes alone there."""
    model, given = tiny_longformer(WINDOW, layers=2).train(), _given(18, padded, asking)
    for layer in model.encoder.layer:
        # Scores of usual size: the backward pass computes the weights from them anew.
        nn.init.normal_(layer.attention.self.query.weight, std=0.1)
    exact: dict[str, Tensor] = {}
    for sample in range(3):
        real = given["attention_mask"][sample].bool()
        alone = {name: flags[sample : sample + 1, real] for name, flags in given.items()}
        for name, grad in _gradients(copy.deepcopy(model).double(), alone).items():
            exact[name] = exact.get(name, 0.0) + grad
    theirs, ours = _gradients(model, given), _gradients(_fast(model), given)
    assert ours.keys() == theirs.keys() == exact.keys()
    actual, plain, right = (
        torch.cat([found[name].flatten() for name in exact]) for found in (ours, theirs, exact)
    )
    assert_within_budget(actual, exact=right, plain=plain, label="all gradients")


def _gradients(model: Any, given: dict[str, Tensor]) -> dict[str, Tensor]:
    output = model(**given).last_hidden_state
    for row, real in zip(output, given["attention_mask"].bool(), strict=True):
        found = row[real]
        upstream = torch.linspace(-1, 1, found.numel(), dtype=torch.float64).view(found.shape)
        found.backward(upstream.to(found.dtype), retain_graph=True)
    return {name: p.grad for name, p in model.named_parameters() if p.grad is not None}


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_short_dtypes(dtype: torch.dtype) -> None:
    model = tiny_longformer(WINDOW, layers=2).to(dtype)
    _compare(model, _given(17, "right"), output_hidden_states=True)


@pytest.mark.parametrize("asking", ["few", "many"])
def test_autocast(asking: str) -> None:
    model, given = tiny_longformer(WINDOW, layers=2), _given(17, "right", asking)
    exact = copy.deepcopy(model).double()(**given)[0]
    with torch.autocast("cpu", torch.bfloat16):
        theirs, ours = (one(**given)[0] for one in (model, _fast(model)))
    assert ours.dtype == theirs.dtype
    assert_within_budget(ours, exact=exact, plain=theirs, label="output")


@pytest.mark.parametrize("length", [12, 17])
def test_weights_come_from_their_own_code_and_the_report_says_so(length: int) -> None:
    model, given = tiny_longformer(WINDOW, layers=2), _given(length, "right")
    fast = _fast(model)
    with torch.no_grad(), hw.nn.projections("torch"):
        theirs = _flat(model(**given, output_attentions=True))
        ours = _flat(fast(**given, output_attentions=True))
    assert ours.keys() == theirs.keys()
    for name, right in theirs.items():
        assert_same_bits(ours[name], right, name)
    assert "asked for attention weights" in hw.hf.report(fast).rows[0].reason
    fast(**given)
    rows = hw.hf.report(fast).rows
    assert all(row.served and "last call" not in row.reason for row in rows)
    assert [row.kind for row in rows] == ["LongformerSelfAttention"] * 2


def test_no_mask_of_length_squared_is_made(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(**_: object) -> None:
        raise AssertionError("a mask was spelled out")

    monkeypatch.setattr(modeling_longformer, "create_bidirectional_mask", refuse)
    _fast(tiny_longformer(WINDOW))(**_given(17, "right"))


def test_the_largest_tensor_is_linear_in_length() -> None:
    model = _fast(tiny_longformer(WINDOW))
    embeds = torch.randn(1, 2048, WIDTH)
    chosen = torch.zeros(1, 2048, dtype=torch.long)
    chosen[0, 0] = 1
    places = torch.full((1, 2048), 5)
    with torch.no_grad(), torch.profiler.profile(profile_memory=True) as seen:
        model(inputs_embeds=embeds, global_attention_mask=chosen, position_ids=places)
    largest = max(event.cpu_memory_usage for event in seen.events())
    assert 0 < largest < 8 * embeds.nbytes


def test_padding_does_not_touch_the_others() -> None:
    model, given = _fast(tiny_longformer(WINDOW, layers=2)), _given(17, "left")
    embeds = model.embeddings.word_embeddings(given.pop("input_ids")).detach()
    real = given["attention_mask"].bool()
    spoilt = embeds.masked_fill(~real.unsqueeze(-1), float("nan"))
    places = {**given, "position_ids": torch.arange(2, 19).expand(3, 17)}
    with torch.no_grad():
        right = model(inputs_embeds=embeds, **places)[0]
        found = model(inputs_embeds=spoilt, **places)[0]
    assert_same_bits(found[real], right[real])


def test_masks_of_other_numbers_mean_what_they_mean_there() -> None:
    model, given = tiny_longformer(WINDOW), _given(12, "right")
    given["attention_mask"] = given["attention_mask"] * 3
    torch.testing.assert_close(_fast(model)(**given)[0], model(**given)[0])


@pytest.mark.parametrize("said", ["padding", "global"])
def test_a_layer_told_two_things_of_a_token_runs_its_own_code(said: str) -> None:
    model = tiny_longformer(WINDOW)
    theirs, ours = (one.encoder.layer[0].attention.self for one in (model, _fast(model)))
    x, mask = torch.randn(1, 12, WIDTH), torch.zeros(1, 12)
    padding = torch.zeros(1, 12, dtype=torch.bool)
    (padding if said == "padding" else mask)[0, 4] = 1
    right, found = (one(x, mask, padding, None, False)[0] for one in (theirs, ours))
    torch.testing.assert_close(found, right)
    assert "disagree on which tokens are" in hw.hf.report(ours).rows[0].reason


def test_float64_runs_their_code() -> None:
    model, given = tiny_longformer(WINDOW).double(), _given(17, "right")
    fast = _fast(model)
    assert_same_bits(fast(**given)[0], model(**given)[0])
    assert "does not compute torch.float64" in hw.hf.report(fast).rows[0].reason


def test_traced_for_other_tokens() -> None:
    names = ("input_ids", "attention_mask", "global_attention_mask")
    model = tiny_longformer(WINDOW).requires_grad_(False)
    fast = _fast(model)
    first, second = _given(18), _given(18, "left")

    def called(*given: Tensor) -> Tensor:
        output: Tensor = fast(**dict(zip(names, given, strict=True)))[0]
        return output

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        traced: Any = torch.jit.trace(  # type: ignore[no-untyped-call]
            called, tuple(first[name] for name in names), check_trace=False
        )
    found = traced(*(second[name] for name in names))
    torch.testing.assert_close(found, model(**second)[0])


def test_hooks_on_the_projections_of_global_tokens_are_called() -> None:
    model, given = tiny_longformer(WINDOW), _given(12)
    doubled = []

    def double(_: nn.Module, __: object, output: Tensor) -> Tensor:
        doubled.append(output.shape)
        return 2 * output

    fast = _fast(model)
    for one in (model, fast):
        one.encoder.layer[0].attention.self.key_global.register_forward_hook(double)
    torch.testing.assert_close(fast(**given)[0], model(**given)[0])
    assert len(doubled) == 2


def test_dropout_takes_weights_and_keeps_the_mean() -> None:
    layer = tiny_longformer(WINDOW).encoder.layer[0].attention.self
    fast = hw.hf.accelerate(layer)
    x = torch.randn(1, 12, WIDTH).expand(1500, 12, WIDTH)
    chosen = (torch.arange(12) == 3).expand(1500, 12)
    kinds = (chosen.float(), torch.zeros_like(chosen), chosen, True)
    with torch.no_grad():
        right = fast(x[:1], *(k[:1] if isinstance(k, Tensor) else k for k in kinds))[0]
        fast.dropout = 0.3
        found = fast.train()(x, *kinds)[0]
    spread = found.std(0)
    assert (spread > 0).all()
    assert ((found.mean(0) - right[0]).abs() < 6 * spread / 1500**0.5).all()


def test_copies_files_and_restoring(tmp_path: Any) -> None:
    model, given = tiny_longformer(WINDOW), _given(17, "right")
    fast = hw.hf.accelerate(copy.deepcopy(model))
    with torch.no_grad():
        right, found = model(**given)[0], fast(**given)[0]
        file = io.BytesIO()
        torch.save(fast, file)
        file.seek(0)
        loaded = torch.load(file, weights_only=False)
        for one in (copy.deepcopy(fast), loaded):
            assert type(one) is longformer.LongformerModel
            assert_same_bits(one(**given)[0], found)
        fast.save_pretrained(tmp_path)
        saved = transformers.AutoModel.from_pretrained(tmp_path)
        assert saved.config.architectures == ["LongformerModel"]
        assert_same_bits(saved.eval()(**given)[0], right)
        assert_same_bits(hw.hf.restore(fast)(**given)[0], right)
    assert type(fast) is modeling_longformer.LongformerModel


@pytest.mark.slow
def test_compiled() -> None:
    model, given = tiny_longformer(WINDOW), _given(17, "right")
    fast = _fast(model)
    with torch.no_grad():
        compiled: Any = torch.compile(fast, backend="eager")
        found = compiled(**given)[0]
        torch.testing.assert_close(found, fast(**given)[0])
