"""The comparison of mechanisms on the states of MiniLM."""

import json

import pytest

from tests.cli.typed import typed

pytestmark = [pytest.mark.real, pytest.mark.slow]


def test_real_states_tell_mechanisms_apart() -> None:
    words = ("--case", "window-256", "--case", "random-features-256", "--case", "mean-pool-256")
    result = typed("bench", "--mechanisms", "--quick", "--lengths", "600", *words, "--json")
    assert (result.exit_code, result.stderr) == (0, ""), result.output
    found = json.loads(result.stdout)
    assert found["shape"] == {"heads": 12, "head_dim": 32}
    assert "all-MiniLM-L6-v2" in found["real_states"]
    full = {o["mechanism"]: o["error_real"] for o in found["outcomes"] if not o["causal"]}
    assert full["exact"] < 1e-6
    for name in ("window-256", "random-features-256", "mean-pool-256"):
        assert 0.1 < full[name] < 1.0
    # On trained states random features are far from softmax, but nearer than on random ones.
    random = {o["mechanism"]: o["error_random"] for o in found["outcomes"] if not o["causal"]}
    assert full["random-features-256"] < random["random-features-256"]
