"""Languages of models that translate: what they are called, and how a text is marked with them."""

from dataclasses import dataclass, replace
from difflib import get_close_matches
from typing import Any

from headwise.cli.failures import WrongInput
from headwise.cli.models import Source

_SHOWN = 12


@dataclass(frozen=True)
class Marks:
    """How a source is marked for a model.

    Attributes:
        prefix: What goes before the source.
        first_token: The token that the model is made to write first; ``None`` = as it chooses.
    """

    prefix: str = ""
    first_token: int | None = None


def marks_of(opened: Source, source: str | None, target: str | None, token: str | None) -> Marks:
    """Return how a source is marked, from ``--source-language``, ``--target-language`` and others.

    Args:
        opened: The model.
        source: Code of the language of the source; ``None`` = as the tokenizer has it.
        target: Code of the language to write; ``None`` = none is named.
        token: What follows ``--forced-bos``.

    Raises:
        WrongInput: A model that reads no source, or what its tokenizer does not know.
    """
    options = {"--source-language": source, "--target-language": target, "--forced-bos": token}
    given = [name for name, value in options.items() if value is not None]
    if given and not opened.is_pair:
        raise WrongInput(
            f"{', '.join(given)}: only for models of an encoder and a decoder, and {opened.name} "
            "continues its prompt"
        )
    if token is not None and target is not None:
        raise WrongInput("--target-language and --forced-bos exclude each other; leave one out")
    if not given:
        return Marks()
    marks = mark_languages(opened, source, target)
    return marks if token is None else replace(marks, first_token=token_of(opened, token))


def mark_languages(opened: Source, source: str | None, target: str | None) -> Marks:
    """Tell the tokenizer the language of the source, and return what the other one takes.

    Args:
        opened: A model of an encoder and a decoder.
        source: Code of the language of the source; ``None`` = as the tokenizer has it.
        target: Code of the language to write; ``None`` = none is named.

    Raises:
        WrongInput: The tokenizer knows no languages, or not that one.
    """
    tokenizer = opened.tokenizer
    prefixes = getattr(tokenizer, "supported_language_codes", None) or []
    if prefixes and target is not None and source is None:
        return Marks(prefix=_known(opened, f">>{target}<<", prefixes, "--target-language") + " ")
    option = "--source-language" if target is None or prefixes else "--target-language"
    if not hasattr(tokenizer, "src_lang"):
        if source is None and target is None:
            return Marks()
        raise WrongInput(
            f"{option}: the tokenizer of {opened.name} does not name languages so; leave it out, "
            "or write into the source what the model expects there"
        )
    tokens = _tokens(tokenizer)
    if source is not None:
        tokenizer.src_lang = _known(opened, source, tokens, "--source-language")
    if target is None:
        return Marks()
    code = _known(opened, target, tokens, "--target-language")
    return Marks(first_token=int(tokenizer.convert_tokens_to_ids(tokens[code])))


def token_of(opened: Source, token: str) -> int:
    """Return the number of a token that is written as the vocabulary has it.

    Raises:
        WrongInput: There is no such token.
    """
    number = opened.tokenizer.get_vocab().get(token)
    if number is None:
        raise WrongInput(f"--forced-bos: the vocabulary of {opened.name} has no token {token!r}")
    return int(number)


def _tokens(tokenizer: Any) -> dict[str, str]:
    """Return the token of every language, by its code."""
    named: dict[str, str] = dict(getattr(tokenizer, "lang_code_to_token", {}))
    if named:
        return named
    known = list(getattr(tokenizer, "lang_code_to_id", {})) or tokenizer.extra_special_tokens
    return {str(code): str(code) for code in known}


def _known(opened: Source, code: str, known: Any, option: str) -> str:
    if code in known:
        return code
    near = get_close_matches(code, known, 3, 0.5)
    names = near or sorted(known)
    more = "" if near or len(names) <= _SHOWN else f" … ({len(names)} in all)"
    raise WrongInput(
        f"{option}: {opened.name} does not know {code!r}; "
        f"{'perhaps' if near else 'it knows'} {', '.join(names[:_SHOWN])}{more}"
    )
