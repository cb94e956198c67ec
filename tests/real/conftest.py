"""Real models, fetched by name and hash on first use; a test fails where they are missing."""

from pathlib import Path

import pytest

from headwise.cli import demo_models


@pytest.fixture(scope="session")
def smollm2() -> Path:
    return demo_models.ready(demo_models.SMOLLM2)


@pytest.fixture(scope="session")
def minilm() -> Path:
    return demo_models.ready(demo_models.MINILM)
