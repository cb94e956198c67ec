"""A layer of a cache as it was, brought back where a block of code fails."""

from collections.abc import Iterator
from contextlib import contextmanager

from headwise.cache.states import LayerState
from headwise.cache.storage import Storage


@contextmanager
def undone_on_failure(
    layers: dict[int, Storage], states: dict[int, LayerState], layer: int
) -> Iterator[None]:
    """Take back tokens and state that a block gives a layer when it fails, by an interrupt too."""
    before, state = layers.get(layer), states.get(layer)
    kept = None if before is None else before.state
    try:
        yield
    except BaseException:
        if before is None or kept is None:
            made = layers.pop(layer, None)
            if made is not None:
                made.forget()
        else:
            before.restore(kept)
        if state is None:
            states.pop(layer, None)
        else:
            states[layer] = state
        raise
