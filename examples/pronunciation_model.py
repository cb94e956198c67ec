"""A small encoder-decoder that says words: made, trained, asked, looked into."""

import tempfile
import time
from argparse import Namespace
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

import torch
from alignment import Looked
from pronunciations import END, PADDING, START, Symbols, Word, samples
from step_bar import step_bar
from transformers import (
    PrinterCallback,
    Trainer,
    TrainerCallback,
    TrainingArguments,
)

import headwise as hw

# Words that are said at once, and phonemes that are waited for.
_TOGETHER = 250
LONGEST = 32

_Item = TypeVar("_Item")


@dataclass(frozen=True)
class Trained:
    """What is known of a training: mean losses between reports, steps, seconds, if stopped."""

    losses: list[float]
    steps: int
    seconds: float
    stopped: bool


def make(symbols: Symbols, options: Namespace) -> hw.models.HeadwiseForSeq2SeqLM:
    """Return a new model; letters and phonemes share its vocabulary."""
    torch.manual_seed(options.seed)
    config = hw.models.encoder_decoder(
        vocab_size=symbols.count,
        d_model=options.width,
        num_heads=options.heads,
        num_layers=options.layers,
        norm_first=True,
        initializer_range=options.width**-0.5,
        max_positions=LONGEST,
        pad_token_id=PADDING,
        bos_token_id=START,
        eos_token_id=END,
        decoder_start_token_id=START,
    )
    return hw.models.HeadwiseForSeq2SeqLM(config)


def train(
    model: hw.models.HeadwiseForSeq2SeqLM,
    words: Sequence[Word],
    symbols: Symbols,
    options: Namespace,
) -> Trained:
    """Train with the ``Trainer`` of transformers; Ctrl-C ends it early."""
    bar = Bar(options.steps)
    started = time.perf_counter()
    stopped = False
    with tempfile.TemporaryDirectory() as folder, bar.progress:
        settings = TrainingArguments(
            output_dir=folder,
            max_steps=options.steps,
            per_device_train_batch_size=options.batch,
            learning_rate=options.lr,
            lr_scheduler_type="cosine",
            warmup_steps=min(100, options.steps // 10),
            logging_steps=max(options.steps // 20, 1),
            save_strategy="no",
            report_to="none",
            disable_tqdm=True,
            remove_unused_columns=False,
            dataloader_pin_memory=False,
            use_cpu=True,
            seed=options.seed,
        )
        trainer = Trainer(
            model,
            settings,
            data_collator=symbols.collate,
            train_dataset=samples(words),
            callbacks=[bar],
        )
        trainer.remove_callback(PrinterCallback)
        try:
            trainer.train()
        except KeyboardInterrupt:
            stopped = True
    return Trained(bar.losses, trainer.state.global_step, time.perf_counter() - started, stopped)


def say(
    model: hw.models.HeadwiseForSeq2SeqLM, letters: Sequence[str], symbols: Symbols, beams: int
) -> list[tuple[str, ...]]:
    """Return the phonemes that a model writes for words."""
    model.train(False)
    found: list[tuple[str, ...]] = []
    for part in _parts(letters):
        written = model.generate(
            **symbols.source(part), num_beams=beams, do_sample=False, max_new_tokens=LONGEST
        )
        found += symbols.spelled(written[:, 1:])
    return found


@torch.no_grad()
def look(
    model: hw.models.HeadwiseForSeq2SeqLM,
    letters: Sequence[str],
    said: Sequence[tuple[str, ...]],
    symbols: Symbols,
) -> list[Looked]:
    """Return the cross attention of all layers for what was written; silent words are left out."""
    model.train(False)
    looked = []
    for part in _parts([pair for pair in zip(letters, said, strict=True) if pair[1]]):
        source = symbols.source([word for word, _ in part])
        labels = symbols.labels([phonemes for _, phonemes in part])
        out = model(**source, labels=labels, output_attentions=True)
        weights = torch.stack(out.cross_attentions, 1)
        for seen, (word, phonemes) in zip(weights, part, strict=True):
            looked.append(Looked(word, phonemes, seen[:, :, : len(phonemes), : len(word)]))
    return looked


def _parts(whole: Sequence[_Item]) -> Iterator[Sequence[_Item]]:
    for first in range(0, len(whole), _TOGETHER):
        yield whole[first : first + _TOGETHER]


class Bar(TrainerCallback):
    """Shows on stderr how far a ``Trainer`` is, and keeps the losses that it reports."""

    def __init__(self, steps: int) -> None:
        self.losses: list[float] = []
        self.progress = step_bar()
        self.task = self.progress.add_task("Training", total=steps)

    def on_step_end(self, args: Any, state: Any, control: Any, **named: Any) -> None:  # noqa: ANN401
        """Advance the bar."""
        self.progress.advance(self.task)

    def on_log(self, args: Any, state: Any, control: Any, **named: Any) -> None:  # noqa: ANN401
        """Show and keep the mean loss since the last report."""
        loss = (named.get("logs") or {}).get("loss")
        if loss is not None:
            self.losses.append(float(loss))
            self.progress.update(self.task, description=f"Training, loss {self.losses[-1]:.3f}")
