"""What ``headwise bench --mechanisms`` does: reads its options, measures, shows."""

import json
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import count
from pathlib import Path

from headwise.cli.bench.mechanisms.contenders import CONTENDERS, EXACT, Contender
from headwise.cli.bench.mechanisms.gate import check
from headwise.cli.bench.mechanisms.minilm import PASSAGE, real_states
from headwise.cli.bench.mechanisms.outcome import Outcome, outcomes
from headwise.cli.bench.mechanisms.plot import check_plot, save_plot
from headwise.cli.bench.mechanisms.states import MINILM_SHAPE, States, random_states
from headwise.cli.bench.mechanisms.summary import Found, as_json, as_tables, conditions, notes
from headwise.cli.demo_models import MINILM as MODEL
from headwise.cli.failures import Unable, WrongInput
from headwise.cli.output import show, steps

SHORTEST, LONGEST, MOST = 256, 8192, 65_536
_QUICK_LONGEST = 1024
LAYER = 3
# For the turns of one kind of work at one length, in a quick round too.
_SECONDS = {False: 2.0, True: 0.3}
# What is told of a length: errors, memory, times.
_STAGES = 3


@dataclass(frozen=True)
class Asked:
    """The options of the comparison; ``None`` = not given."""

    quick: bool = False
    names: Sequence[str] | None = None
    max_length: int | None = None
    lengths: str | None = None
    layer: int | None = None
    plot: Path | None = None

    @property
    def only_here(self) -> list[str]:
        """The options that were given and mean nothing without ``--mechanisms``."""
        given = {
            "--max-length": self.max_length,
            "--lengths": self.lengths,
            "--layer": self.layer,
            "--plot": self.plot,
        }
        return [name for name, value in given.items() if value is not None]


def compare(asked: Asked, *, for_machines: bool) -> None:
    """Measure and show; threads are as set.

    Raises:
        WrongInput: Options that make no sense.
        Unable: A plot without matplotlib, or a mechanism whose answer is wrong.
    """
    contenders, lengths = _chosen(asked.names), lengths_of(asked)
    if asked.plot is not None:
        check_plot(asked.plot)
    layer = LAYER if asked.layer is None else asked.layer
    real, why_not = _real(layer, lengths[-1])
    shape = MINILM_SHAPE if real is None else real.shape
    random = random_states(shape, lengths[-1])
    measured = _measured(contenders, lengths, random, real, _SECONDS[asked.quick])
    found = Found(shape, measured, None if real is None else _described(layer), why_not)
    if for_machines:
        print(json.dumps(as_json(found)))
    else:
        print(conditions(found))
        for rows in as_tables(found):
            print()
            show(rows)
        print()
        print(*notes(found), sep="\n")
    if asked.plot is not None:
        save_plot(found, asked.plot)


def _real(layer: int, length: int) -> tuple[States | None, str | None]:
    """Return real states; or none, and the reason, which is told at once."""
    try:
        return real_states(layer, length), None
    except Unable as missing:
        why = (
            f"{missing}; real ones come from {MODEL.name}, whose transformers folder may also be "
            "put under that name into the folder that HEADWISE_MODELS names"
        )
    print(f"headwise bench: no real hidden states, only random ones: {why}", file=sys.stderr)
    return None, why


def _described(layer: int) -> str:
    return (
        f"layer {layer}, from 0, of {MODEL.name}, which reads the documentation of Python in "
        f"passages of {PASSAGE} tokens, one by one; longer inputs are their queries, keys and "
        "values one after the other"
    )


def _measured(
    contenders: Sequence[Contender],
    lengths: Sequence[int],
    random: States,
    real: States | None,
    seconds: float,
) -> list[Outcome]:
    found: list[Outcome] = []
    with steps() as progress:
        task = progress.add_task("Checking", total=2 * (1 + _STAGES * len(lengths)))

        done = count()

        def tell(what: str) -> None:
            progress.update(task, description=what, completed=next(done))

        for causal in (False, True):
            tell(f"Checking: {'causal' if causal else 'full'}")
            check(contenders, random.shape, causal=causal)
            found += outcomes(
                contenders, lengths, random, real, causal=causal, seconds=seconds, tell=tell
            )
    return found


def _chosen(names: Sequence[str] | None) -> tuple[Contender, ...]:
    """Return exact attention and the mechanisms asked for."""
    if not names:
        return CONTENDERS
    unknown = sorted(set(names) - {contender.name for contender in CONTENDERS})
    if unknown:
        known = ", ".join(contender.name for contender in CONTENDERS)
        raise WrongInput(f"there is no mechanism {', '.join(unknown)}; they are {known}")
    return tuple(one for one in CONTENDERS if one.name == EXACT or one.name in names)


def lengths_of(asked: Asked) -> list[int]:
    """Return the lengths named, or powers of two up to the longest."""
    if asked.lengths is None:
        longest = asked.max_length or (_QUICK_LONGEST if asked.quick else LONGEST)
        powers = [SHORTEST << step for step in range(MOST.bit_length())]
        return [*(length for length in powers if length < longest), longest]
    if asked.max_length is not None:
        raise WrongInput("give --lengths or --max-length, not both")
    words = [word.strip() for word in asked.lengths.split(",")]
    if not all(word.isascii() and word.isdigit() and 1 <= int(word) <= MOST for word in words):
        raise WrongInput(
            f"--lengths takes whole numbers from 1 to {MOST} with commas between them, such as "
            f"256,1000,4096; got {asked.lengths!r}"
        )
    return sorted({int(word) for word in words})
