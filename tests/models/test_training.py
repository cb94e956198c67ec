"""Every mechanism under every head: trains, learns by heart, saves, loads, generates, resumes."""

import copy
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional
from transformers import Trainer, TrainingArguments

from headwise import models
from tests.support.own_models import (
    DECODERS,
    ENCODERS,
    HEADS,
    PAIRS,
    config,
    seeded,
    tiny,
    tokens,
)

GRID = [
    *(("decoder", name, changes) for name, changes in DECODERS.items()),
    *(("encoder", name, changes) for name, changes in ENCODERS.items()),
    *(("encoder_decoder", name, changes) for name, changes in PAIRS.items()),
    *(("classes", name, changes) for name, changes in ENCODERS.items()),
]
grid = pytest.mark.parametrize(
    ("head", "changes"),
    [pytest.param(head, changes, id=f"{head}-{name}") for head, name, changes in GRID],
)


def made(head: str, changes: dict[str, Any], **more: Any) -> Any:
    """Build a model with spread weights of ordinary size."""
    settings = {"initializer_range": 0.1, **changes, **more}
    if head == "classes":
        kind = models.HeadwiseForSequenceClassification
        return seeded(kind, config("encoder", num_labels=3, pooling="mean", **settings))
    return tiny(head, **settings)


def samples(head: str) -> dict[str, Tensor]:
    """Return eight samples to learn by heart."""
    ids = tokens(8, 9)
    ids[:, 0] = torch.arange(8) + 3
    if head == "classes":
        return {"input_ids": ids, "labels": torch.arange(8) % 3}
    labels = tokens(8, 7, seed=5) if head == "encoder_decoder" else ids
    return {"input_ids": ids, "labels": labels}


def steps(model: nn.Module, data: Mapping[str, Tensor], count: int, state: Any = None) -> Any:
    """Train for some steps; return the optimizer and the losses."""
    optimizer = torch.optim.Adam(model.parameters(), lr=0.02)
    if state is not None:
        optimizer.load_state_dict(state)
    losses = []
    for _ in range(count):
        optimizer.zero_grad()
        loss = model.train()(**data).loss
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return optimizer, losses


@grid
def test_trains_saves_loads_and_resumes(head: str, changes: dict[str, Any], tmp_path: Path) -> None:
    model, data = made(head, changes), samples(head)
    untouched = {name: tensor.clone() for name, tensor in model.named_parameters()}
    optimizer, losses = steps(model, data, 3)
    assert losses[-1] < losses[0]
    still = [n for n, p in model.named_parameters() if torch.equal(p, untouched[n])]
    assert still == []
    model.save_pretrained(tmp_path)
    loaded = type(model).from_pretrained(tmp_path)
    assert torch.equal(loaded(**data).logits, model.eval()(**data).logits)
    kept = copy.deepcopy(optimizer.state_dict())
    steps(model, data, 1, optimizer.state_dict())
    steps(loaded, data, 1, kept)
    resumed = dict(loaded.named_parameters())
    assert all(torch.equal(p, resumed[name]) for name, p in model.named_parameters())


def learn(head: str, changes: dict[str, Any], count: int) -> None:
    """Learn eight samples by heart, and say them."""
    model, data = made(head, changes), samples(head)
    losses = steps(model, data, count)[1]
    assert losses[-1] < 0.1
    scores = model.eval()(**data).logits
    labels = data["labels"]
    if head == "decoder":
        scores, labels = scores[:, :-1], labels[:, 1:]
    assert (scores.argmax(-1) == labels).float().mean() > 0.98
    if head == "decoder":
        said = model.generate(data["input_ids"][:, :3], max_new_tokens=6, do_sample=False)
        assert (said == data["input_ids"]).float().mean() > 0.9
    if head == "encoder_decoder":
        said = model.generate(data["input_ids"], max_new_tokens=7, do_sample=False)
        assert (said[:, 1:] == labels).float().mean() > 0.9


FEW = {"decoder": DECODERS["mixed"], "encoder": ENCODERS["linformer"]}


@pytest.mark.parametrize("head", FEW)
def test_learns_eight_samples(head: str) -> None:
    learn(head, FEW[head], 60)


@pytest.mark.slow
@grid
def test_learns_eight_samples_with_everything(head: str, changes: dict[str, Any]) -> None:
    learn(head, changes, 80)


@pytest.mark.parametrize("shows", [False, True])
@pytest.mark.parametrize("kind", HEADS)
def test_checkpointing_changes_no_gradient(kind: str, shows: bool) -> None:
    """Of the weights of attention neither, which are computed beside a block."""
    model = made(kind, {"dropout": 0.1, "attention_dropout": 0.1}).train()
    data = samples(kind)

    def gradients() -> list[Tensor]:
        torch.manual_seed(5)
        model.zero_grad()
        out = model(**data, output_attentions=shows)
        weights = [each for name in out if name.endswith("attentions") for each in out[name]]
        assert len(weights) == shows * (6 if kind == "encoder_decoder" else 2)
        loss = out.loss + sum(each.square().sum() for each in weights)
        loss.backward()
        return [weight.grad.clone() for weight in model.parameters()]

    wanted = gradients()
    model.activation_checkpointing_enable()
    calls: list[int] = []
    model.model.first.blocks[0].feed_forward.register_forward_hook(lambda *_: calls.append(1))
    for found, exact in zip(gradients(), wanted, strict=True):
        assert torch.equal(found, exact)
    assert len(calls) == 2


def test_losses_of_tokens() -> None:
    ids, labels = tokens(2, 9), tokens(2, 9)
    labels[0, 5:] = -100
    causal, masked = tiny("decoder"), tiny("encoder")
    out = causal(ids, labels=labels)
    flat = out.logits[:, :-1].flatten(0, 1), labels[:, 1:].flatten()
    assert torch.equal(out.loss, functional.cross_entropy(*flat))
    total = causal(ids, labels=labels, num_items_in_batch=5).loss
    torch.testing.assert_close(total, functional.cross_entropy(*flat, reduction="sum") / 5)
    out = masked(ids, labels=labels)
    wanted = functional.cross_entropy(out.logits.flatten(0, 1), labels.flatten())
    assert torch.equal(out.loss, wanted)


def test_what_a_decoder_reads_to_tell_labels() -> None:
    model = tiny("encoder_decoder")
    labels = torch.tensor([[5, 6, 7], [8, -100, -100]])
    moved = model.prepare_decoder_input_ids_from_labels(labels)
    assert moved.tolist() == [[1, 5, 6], [1, 8, 0]]
    explicit = model(tokens(2, 5), decoder_input_ids=moved, labels=labels)
    assert torch.equal(model(tokens(2, 5), labels=labels).loss, explicit.loss)
    model.config.decoder_start_token_id = None
    with pytest.raises(ValueError, match=r"decoder_start_token_id is None\n  hint: give it in the"):
        model(tokens(2, 5), labels=labels)


PROBLEMS: dict[str, tuple[int, Tensor]] = {
    "classes": (3, torch.tensor([0, 2])),
    "numbers": (1, torch.tensor([0.5, 2.0])),
    "several classes": (3, torch.tensor([[0.0, 1, 1], [1, 0, 0]])),
}


@pytest.mark.parametrize("name", PROBLEMS)
def test_losses_of_classifiers(name: str) -> None:
    count, labels = PROBLEMS[name]
    model = seeded(models.HeadwiseForSequenceClassification, config("encoder", num_labels=count))
    out = model(tokens(), labels=labels)
    wanted = {
        "classes": lambda x: functional.cross_entropy(x, labels),
        "numbers": lambda x: functional.mse_loss(x[:, 0], labels),
        "several classes": lambda x: functional.binary_cross_entropy_with_logits(x, labels),
    }[name](out.logits)
    torch.testing.assert_close(out.loss, wanted)


def arguments(folder: Path, **more: Any) -> TrainingArguments:
    return TrainingArguments(
        str(folder),
        per_device_train_batch_size=2,
        gradient_accumulation_steps=2,
        num_train_epochs=1,
        save_steps=1,
        report_to=[],
        disable_tqdm=True,
        use_cpu=True,
        dataloader_pin_memory=False,
        activation_checkpointing=True,
        **more,
    )


@pytest.mark.parametrize(
    "kind", ["decoder", pytest.param("encoder_decoder", marks=pytest.mark.slow)]
)
def test_trainer_resumes_from_a_checkpoint(kind: str, tmp_path: Path) -> None:
    rows = samples(kind)
    data = [{name: rows[name][i].tolist() for name in rows} for i in range(8)]
    first, second = (made(kind, {}, seed=seed) for seed in (7, 9))
    trainer = Trainer(first, arguments(tmp_path), train_dataset=data, eval_dataset=data)
    trainer.train()
    assert trainer.evaluate()["eval_loss"] > 0
    again = Trainer(second, arguments(tmp_path), train_dataset=data)
    again.train(resume_from_checkpoint=str(tmp_path / "checkpoint-1"))
    for one, other in zip(first.parameters(), second.parameters(), strict=True):
        assert torch.equal(one, other)


class Own(models.HeadwiseForCausalLM):  # type: ignore[no-untyped-call]
    """A decoder of somebody's own; nobody has registered it."""


def test_trainer_smooths_the_labels_of_the_next_token(tmp_path: Path) -> None:
    model, rows = seeded(Own, config()), samples("decoder")
    trainer = Trainer(model, arguments(tmp_path, label_smoothing_factor=0.2))
    found = trainer.compute_loss(model, dict(rows))
    scores = model(rows["input_ids"]).logits[:, :-1].flatten(0, 1)
    labels = rows["labels"][:, 1:].flatten()
    torch.testing.assert_close(found, functional.cross_entropy(scores, labels, label_smoothing=0.2))
