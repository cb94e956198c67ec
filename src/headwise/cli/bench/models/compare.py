"""What ``headwise bench --model`` does: opens the model, measures, shows."""

import json

import torch

from headwise.cli.bench.models.measuring import measure
from headwise.cli.bench.models.options import BATCH, TOKENS, Dtype, Options
from headwise.cli.bench.models.subject import subject
from headwise.cli.bench.models.summary import as_json, as_table, conditions, notes
from headwise.cli.bench.models.work import work
from headwise.cli.output import show, steps

# For all forms together, in a quick round too.
_SECONDS = {False: 10.0, True: 2.0}


def compare(model: str, options: Options, *, for_machines: bool) -> None:
    """Measure a model before and after accelerate, and show what came out; threads are as set.

    Ctrl-C while it is measured shows what there is by then.

    Raises:
        WrongInput: There is no such model, or it does not do what was asked.
        Unable: A package is missing, or an answer is wrong.
        KeyboardInterrupt: Ctrl-C, after all there is was shown.
    """
    opened = subject(model, getattr(torch, options.dtype or Dtype.FLOAT32))
    with steps() as progress:
        task = progress.add_task("Running it", total=1.0)

        def tell(what: str, done: float) -> None:
            progress.update(task, description=what, completed=done)

        with torch.no_grad():
            asked = work(
                model,
                opened.model,
                tokens=TOKENS if options.tokens is None else options.tokens,
                batch=BATCH if options.batch is None else options.batch,
                generate=options.generate,
            )
        found = measure(opened, asked, _SECONDS[options.quick], tell)
    if for_machines:
        print(json.dumps(as_json(found)))
    else:
        print(conditions(found))
        show(as_table(found))
        print()
        print(*notes(found), sep="\n")
    if not found.complete:
        raise KeyboardInterrupt
