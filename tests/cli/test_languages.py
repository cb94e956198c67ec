"""Languages of models that translate, by tokenizers that name them in each of the known ways."""

from types import SimpleNamespace
from typing import Any

import pytest

from headwise.cli.failures import WrongInput
from headwise.cli.languages import Marks, mark_languages, token_of
from headwise.cli.models import Source

TOKENS = {"__en__": 7, "__fr__": 11, "eng_Latn": 13, "fra_Latn": 17}


def opened(**told: Any) -> Source:
    tokenizer = SimpleNamespace(
        convert_tokens_to_ids=TOKENS.__getitem__, get_vocab=lambda: TOKENS, **told
    )
    return Source("some/model", None, tokenizer)


def test_codes_with_tokens_of_their_own() -> None:
    model = opened(src_lang="en", lang_code_to_token={"en": "__en__", "fr": "__fr__"})
    assert mark_languages(model, "fr", "en") == Marks(first_token=7)
    assert model.tokenizer.src_lang == "fr"


@pytest.mark.parametrize(
    "named",
    [
        {"lang_code_to_id": {"eng_Latn": 13, "fra_Latn": 17}},
        {"extra_special_tokens": ["eng_Latn", "fra_Latn"]},
    ],
)
def test_codes_that_are_tokens(named: dict[str, Any]) -> None:
    model = opened(src_lang="eng_Latn", **named)
    assert mark_languages(model, None, "fra_Latn") == Marks(first_token=17)
    assert model.tokenizer.src_lang == "eng_Latn"
    assert mark_languages(model, "fra_Latn", None) == Marks()
    assert model.tokenizer.src_lang == "fra_Latn"


def test_codes_before_the_source() -> None:
    model = opened(supported_language_codes=[">>fra<<", ">>ita<<"])
    assert mark_languages(model, None, "ita") == Marks(prefix=">>ita<< ")
    with pytest.raises(WrongInput, match="--source-language: the tokenizer of some/model"):
        mark_languages(model, "eng", "ita")


def test_no_languages() -> None:
    assert mark_languages(opened(), None, None) == Marks()
    for source, target, option in [("en", None, "source"), (None, "fr", "target")]:
        with pytest.raises(WrongInput) as refusal:
            mark_languages(opened(), source, target)
        assert str(refusal.value) == (
            f"--{option}-language: the tokenizer of some/model does not name languages so; leave "
            "it out, or write into the source what the model expects there"
        )


def test_unknown_languages() -> None:
    model = opened(src_lang="eng_Latn", extra_special_tokens=["eng_Latn", "fra_Latn"])
    with pytest.raises(WrongInput) as refusal:
        mark_languages(model, None, "fra_Lat")
    assert str(refusal.value).startswith(
        "--target-language: some/model does not know 'fra_Lat'; perhaps fra_Latn"
    )
    many = opened(src_lang="a0", lang_code_to_token={f"a{n}": "__en__" for n in range(20)})
    with pytest.raises(WrongInput) as refusal:
        mark_languages(many, "zz", None)
    assert str(refusal.value).endswith(
        "it knows a0, a1, a10, a11, a12, a13, a14, a15, a16, a17, a18, a19 … (20 in all)"
    )


def test_a_token_of_the_vocabulary() -> None:
    assert token_of(opened(), "__fr__") == 11
    with pytest.raises(WrongInput) as refusal:
        token_of(opened(), "fr")
    assert str(refusal.value) == ("--forced-bos: the vocabulary of some/model has no token 'fr'")
