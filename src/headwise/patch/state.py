"""Whether calls are taken at the moment; the one thing that a call has to look up."""


class State:
    """Process-wide; ``headwise.patch.switch`` alone writes it."""

    on = False
