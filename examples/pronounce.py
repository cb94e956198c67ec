"""An encoder-decoder learns to pronounce: letters in, phonemes out, and where it looks meanwhile.

The words are those of the CMU dictionary, fetched by name from the Python package index; one word
of twenty is held out. The model is ``headwise.models.encoder_decoder`` in small, trained by the
``Trainer`` of transformers, and writes with ``generate``, greedily and with beams.

    python examples/pronounce.py
    python examples/pronounce.py --say headwise linformer --plot alignment.png
    python examples/pronounce.py --dictionary mine.dict --steps 500 --json

Word error: how many held-out words are not said as in any line of the dictionary. Phoneme error:
phonemes to put in, leave out or exchange, over those of the nearest line. A transformer that was
trained to the end has about 22 % and 5.2 % (Yolchuyeva et al., 2019; other words held out).

Then the cross attention: English is read from left to right, so the letters that a phoneme looks at
should lie near the diagonal. The share that does is measured, and drawn for some words.

Ctrl-C ends the training early and goes on with what was learned; a second one ends it all. A run
takes some minutes on two cores.
"""

# ruff: noqa: T201

import argparse
import json
from argparse import Namespace
from importlib.util import find_spec
from pathlib import Path

from alignment import Looked, Measured, drawn, measure, save, steadiest
from pronunciation_model import look, make, say, train
from pronunciations import Symbols, Word, errors, read, split

from headwise.cli.failures import Unable

HELD_OUT = 20  # one word of so many
SHOWN = ("photograph", "knowledge", "through")
# Of words and of phonemes.
PUBLISHED = (0.22, 0.052)
NUMBERS = {
    "steps": (1500, "training steps"),
    "batch": (256, "pronunciations in a step"),
    "width": (128, "width of the model"),
    "heads": (4, "attention heads"),
    "layers": (2, "blocks of the encoder, and of the decoder"),
    "words": (1000, "held-out words that are judged"),
    "beams": (4, "beams of the second judgement"),
    "seed": (0, "of weights and batches"),
}


def main() -> None:
    """Read the options, train, judge, look."""
    parser, options, words = read_options()
    learned, held_out = split(words, HELD_OUT)
    symbols = Symbols(words)
    check_words(parser, options, symbols, learned, held_out)
    judged = held_out[:: max(len(held_out) // options.words, 1)][: options.words]
    letters = [word.letters for word in judged]
    model = make(symbols, options)
    try:
        trained = train(model, learned, symbols, options)
        written = {beams: say(model, letters, symbols, beams) for beams in (1, options.beams)}
        looked = look(model, letters, written[options.beams], symbols)
        asked = say(model, options.say, symbols, options.beams)
        shown = look(model, options.say, asked, symbols)
    except KeyboardInterrupt:
        parser.exit(130, "stopped\n")
    rates = {beams: errors(said, judged) for beams, said in written.items()}
    alignment = measure(looked)
    if options.json:
        found = {
            "setting": {name: getattr(options, name) for name in NUMBERS},
            "words": {"learned": len(learned), "held out": len(held_out), "judged": len(judged)},
            "parameters": model.num_parameters(),
            "training": vars(trained),
            "errors": rates,
            "alignment": [[head._asdict() for head in heads] for heads in alignment],
            "said": {word: " ".join(said) for word, said in zip(options.say, asked, strict=True)},
        }
        print(json.dumps(found))
    else:
        print(f"{len(learned):,} words learned from, {len(judged):,} held out and judged")
        print(f"{model.num_parameters():,} weights, {trained.steps} steps, {trained.seconds:.0f} s")
        report(rates, alignment, shown)
    if options.plot is not None and shown and alignment:
        save(shown, *steadiest(alignment), options.plot)
    if trained.stopped:
        parser.exit(130, f"training was stopped after {trained.steps} steps\n")


def report(
    rates: dict[int, tuple[float, float]], alignment: list[list[Measured]], shown: list[Looked]
) -> None:
    """Print the errors, the alignment of every layer, and where the shown words looked."""
    print("\n" + row("", "word error", "phoneme error"))
    for beams, found in rates.items():
        print(row("greedy" if beams == 1 else f"{beams} beams", *map(percent, found)))
    print(row("published, trained to the end", *map(percent, PUBLISHED)))
    if not alignment:
        print("\nthe model writes nothing yet, so there is nothing to look at")
        return
    print("\ncross attention within one letter of the diagonal, and steps that do not go back")
    for layer, heads in enumerate(alignment, 1):
        near = (f"{percent(head.near)}/{percent(head.onward)}" for head in heads)
        print(row(f"layer {layer}, head by head", *near))
    print(row("if all letters weighed the same", percent(alignment[0][0].even)))
    layer, head = steadiest(alignment)
    print(f"\nlayer {layer + 1}, head {head + 1}, darker for more")
    for word in shown:
        print(f"\n{drawn(word, layer, head)}")


def percent(share: float) -> str:
    """Return a share as people write it."""
    return f"{share:.1%}"


def row(name: str, *cells: str) -> str:
    """Return cells in columns."""
    return f"{name:<32}" + "".join(f"{cell:>15}" for cell in cells)


def check_words(
    parser: argparse.ArgumentParser,
    options: Namespace,
    symbols: Symbols,
    learned: list[Word],
    held_out: list[Word],
) -> None:
    """Refuse a dictionary too small to learn from, and words that it has no letters for."""
    if not learned or not held_out:
        parser.error(
            f"the dictionary has {len(learned)} words to learn from and {len(held_out)} held out; "
            "a few hundred lines such as `word W ER D` are needed"
        )
    for word in options.say:
        if not word or not symbols.knows(word):
            parser.error(
                f"--say {word}: the dictionary knows the letters {''.join(symbols.letters)}"
            )


def read_options() -> tuple[argparse.ArgumentParser, Namespace, list[Word]]:
    """Return the parser, for its errors, the options, and the words."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    for name, (default, meaning) in NUMBERS.items():
        parser.add_argument(
            f"--{name}", type=int, default=default, help=f"{meaning} (default {default})"
        )
    parser.add_argument("--lr", type=float, default=3e-3, help="learning rate (default 0.003)")
    parser.add_argument("--say", nargs="*", default=SHOWN, help="words to say and to draw")
    parser.add_argument("--dictionary", type=Path, help="lines such as `word W ER D`")
    parser.add_argument("--plot", type=Path, help="where to save a picture, .png or .svg")
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    options = parser.parse_args()
    options.say = [word.lower() for word in options.say]
    for name in NUMBERS:
        if name != "seed" and getattr(options, name) < 1:
            parser.error(f"--{name} must be at least 1, got {getattr(options, name)}")
    if options.width % options.heads:
        parser.error(f"--heads must divide --width, got {options.heads} and {options.width}")
    check_picture(parser, options.plot)
    try:
        return parser, options, read(options.dictionary)
    except Unable as reason:
        parser.exit(1, f"{reason}\n")
    except (OSError, UnicodeDecodeError) as failure:
        parser.error(f"--dictionary {options.dictionary}: {getattr(failure, 'strerror', failure)}")


def check_picture(parser: argparse.ArgumentParser, path: Path | None) -> None:
    """Refuse a picture that could not be written, before anything runs."""
    if path is None:
        return
    if path.suffix.lower() not in (".png", ".svg"):
        parser.error(f"--plot writes .png or .svg, got {path}")
    if not path.parent.is_dir():
        parser.error(f"--plot: there is no folder {path.parent}")
    if find_spec("matplotlib") is None:
        parser.error("--plot needs matplotlib: pip install 'headwise[plot]'")


if __name__ == "__main__":
    main()
