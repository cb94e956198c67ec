"""Settings of the whole suite: seeds, NaN-filled memory, two threads, hypothesis profiles."""

import logging
import os
from collections.abc import Iterator

import jaxtyping
import pytest
import torch
from hypothesis import HealthCheck, settings

THREADS = 2

settings.register_profile(
    "fast",
    max_examples=25,
    deadline=None,
    derandomize=True,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
)
settings.register_profile(
    "thorough", settings.get_profile("fast"), max_examples=500, derandomize=False
)
settings.load_profile("thorough" if os.environ.get("HEADWISE_THOROUGH") else "fast")


def pytest_configure(config: pytest.Config) -> None:
    """Use two threads at most; deterministic mode fills fresh memory with NaN.

    The shape hook draws random numbers whenever a checked function is called, which hypothesis
    warns of when a strategy calls one. What a strategy draws does not depend on them. Torch traces
    every step of a compilation to a log, which under pytest costs more than the steps.
    """
    logging.getLogger("torch.__trace").setLevel(logging.CRITICAL)
    config.addinivalue_line(
        "filterwarnings",
        "ignore:Do not use the `random` module:hypothesis.errors.HypothesisDeprecationWarning",
    )
    torch.set_num_threads(min(THREADS, torch.get_num_threads()))
    torch.use_deterministic_algorithms(True, warn_only=True)


@pytest.fixture(autouse=True)
def _seeded() -> None:
    torch.manual_seed(0)


@pytest.fixture
def plain_calls() -> Iterator[None]:
    """Switch the shape hook off, so that the library's own refusals are reached."""
    before = jaxtyping.config.jaxtyping_disable
    jaxtyping.config.update("jaxtyping_disable", True)
    yield
    jaxtyping.config.update("jaxtyping_disable", before)
