"""Real models, fetched by name and hash on first use; a test fails where they are missing."""

from pathlib import Path

import pytest

from headwise.cli import demo_models
from tests.support.rxnfp_weights import RXNFP
from tests.support.whisper_weights import WHISPER


@pytest.fixture(scope="session")
def smollm2() -> Path:
    return demo_models.ready(demo_models.SMOLLM2)


@pytest.fixture(scope="session")
def minilm() -> Path:
    return demo_models.ready(demo_models.MINILM)


@pytest.fixture(scope="session")
def rxnfp() -> Path:
    return demo_models.ready(RXNFP)


@pytest.fixture(scope="session")
def whisper() -> Path:
    return demo_models.ready(WHISPER)
