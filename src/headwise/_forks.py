"""Children of a fork, in which torch's threads are gone but torch does not know it."""

from collections.abc import Callable
from functools import wraps
from os import register_at_fork
from typing import ParamSpec, TypeVar

import torch

P = ParamSpec("P")
R = TypeVar("R")


class _Process:
    forked = False


def _mark() -> None:
    _Process.forked = True


register_at_fork(after_in_child=_mark)


def alone_after_fork(run: Callable[P, R]) -> Callable[P, R]:
    """Keep torch's operations inside ``run`` on one thread in a child; they would wait forever."""

    @wraps(run)
    def guarded(*args: P.args, **keywords: P.kwargs) -> R:
        if not _Process.forked:
            return run(*args, **keywords)
        before = torch.get_num_threads()
        torch.set_num_threads(1)
        try:
            return run(*args, **keywords)
        finally:
            torch.set_num_threads(before)

    return guarded
