"""Measures models of transformers before and after headwise.hf.accelerate."""

import statistics
from collections.abc import Callable, Iterator
from copy import deepcopy
from functools import partial
from typing import TypeVar

import torch
import transformers
from torch import Tensor, nn
from transformers import PreTrainedModel
from transformers.modeling_outputs import BaseModelOutput

import headwise as hw
from benchmarks.figures import Figure, figure, main
from headwise.cli.bench.measure import alternate
from headwise.cli.failures import Unable

_SLACK = 4.0
_DTYPES = (torch.float32, torch.bfloat16)
_LLAMA = {
    "vocab_size": 32000,
    "hidden_size": 1024,
    "intermediate_size": 2816,
    "num_hidden_layers": 8,
    "num_attention_heads": 16,
    "num_key_value_heads": 4,
    "max_position_embeddings": 8192,
}
_WHISPER = {
    "d_model": 384,
    "encoder_layers": 4,
    "decoder_layers": 4,
    "encoder_attention_heads": 6,
    "decoder_attention_heads": 6,
    "encoder_ffn_dim": 1536,
    "decoder_ffn_dim": 1536,
}
_MINILM = {
    "hidden_size": 384,
    "num_hidden_layers": 6,
    "num_attention_heads": 12,
    "intermediate_size": 1536,
}
Call = Callable[[], Tensor]
Kept = TypeVar("Kept", bound=transformers.DynamicCache)


def bert(seconds: float) -> Iterator[Figure]:
    """Compare BERT-base, a round batch and an uneven one with padding."""
    model = _made("BertModel", "BertConfig")
    for samples, length in ((4, 512), (3, 331)):
        given = _texts(samples, length, padding=0 if length == 512 else 100)
        for dtype in _DTYPES:
            yield from _compared(f"BERT-base ({samples}, {length})", model, dtype, given, seconds)


def minilm(seconds: float) -> Iterator[Figure]:
    """Compare an encoder of MiniLM's shape on one short text: the median and the slow calls."""
    model = _made("BertModel", "BertConfig", **_MINILM)
    for length in (16, 37):
        yield from _compared(
            f"MiniLM's shape (1, {length})", model, torch.float32, _texts(1, length), seconds
        )


def padded(seconds: float) -> Iterator[Figure]:
    """Compare MiniLM's shape on texts of unequal lengths, without their padding and with it."""
    model = _made("BertModel", "BertConfig", **_MINILM)
    for samples, longest, share in ((32, 256, 0.36), (7, 331, 0.61)):
        given = _texts(samples, longest)
        # The mean of x ** p between 0 and 1 is 1 / (p + 1).
        shares = torch.linspace(0, 1, samples) ** (1 / share - 1)
        ends = (longest * shares).long().clamp(min=1)
        given["attention_mask"] = (torch.arange(longest) < ends[:, None]).long()
        real = given["attention_mask"].double().mean()
        for dtype in _DTYPES:
            name = f"MiniLM's shape ({samples}, {longest}), {real:.0%} real tokens"
            for unpad in (False, True):
                changed = partial(hw.hf.accelerate, unpad=unpad)
                yield from _compared(
                    name + ", unpad" * unpad, model, dtype, given, seconds, changed
                )


def longformer(seconds: float) -> Iterator[Figure]:
    """Compare Longformer-base on 4,096 tokens, one of them global."""
    model = _made("LongformerModel", "LongformerConfig", max_position_embeddings=4098)
    given = _texts(1, 4096)
    given["global_attention_mask"] = torch.zeros(1, 4096, dtype=torch.long)
    given["global_attention_mask"][:, 0] = 1
    yield from _compared("Longformer-base (1, 4096)", model, torch.float32, given, seconds)


def bigbird(seconds: float) -> Iterator[Figure]:
    """Compare BigBird-base on 4,096 tokens."""
    model = _made("BigBirdModel", "BigBirdConfig")
    yield from _compared("BigBird-base (1, 4096)", model, torch.float32, _texts(1, 4096), seconds)


def llama(seconds: float) -> Iterator[Figure]:
    """Compare a step of decoding after 6,000 tokens, with transformers' cache and with ours."""
    model, held = _made("LlamaForCausalLM", "LlamaConfig", **_LLAMA), 6000
    states = [torch.randn(1, 4, held, 64) for _ in range(2 * _LLAMA["num_hidden_layers"])]
    for dtype in reversed(_DTYPES):
        kinds = {"transformers' cache": transformers.DynamicCache, "hf.Cache": hw.hf.Cache}
        for name, kind in kinds.items():

            def prepared(model: PreTrainedModel) -> Call:
                # What has the model's attention decides which cache it has.
                ours = model.config._attn_implementation == "headwise"
                made = kind if ours else transformers.DynamicCache  # noqa: B023
                return partial(_step, model, _filled(made(), states, model.dtype))

            yield from _timed(
                f"Llama's shape, a token after {held:,}, {name}", model, dtype, prepared, seconds
            )


def whisper(seconds: float) -> Iterator[Figure]:
    """Compare a step of decoding of Whisper-tiny's shape, with one beam and with five."""
    model, held = _made("WhisperForConditionalGeneration", "WhisperConfig", **_WHISPER), 101
    for beams in (1, 5):
        heard = torch.randn(beams, 1500, 384)
        states = [torch.randn(beams, 6, held, 64) for _ in range(8)]

        def prepared(model: PreTrainedModel) -> Call:
            own = _filled(transformers.DynamicCache(), states, model.dtype)  # noqa: B023
            cache = transformers.EncoderDecoderCache(own, transformers.DynamicCache())
            encoded = BaseModelOutput(heard.to(model.dtype))  # noqa: B023
            token = torch.full((beams, 1), 7)  # noqa: B023

            def step() -> Tensor:
                found: Tensor = model(
                    encoder_outputs=encoded, decoder_input_ids=token, cache=cache
                ).logits
                own.crop(-1)
                return found

            return step

        name = f"Whisper-tiny's shape, a token after {held}, {beams} beam{'s' * (beams > 1)}"
        yield from _timed(name, model, torch.float32, prepared, seconds)


def _made(kind: str, config: str, **numbers: int) -> PreTrainedModel:
    found: PreTrainedModel = getattr(transformers, kind)(getattr(transformers, config)(**numbers))
    found.train(False)
    return found


def _texts(samples: int, length: int, padding: int = 0) -> dict[str, Tensor]:
    mask = torch.ones(samples, length, dtype=torch.long)
    if padding:
        mask[-1, -padding:] = 0
    return {"input_ids": torch.randint(1000, 20000, (samples, length)), "attention_mask": mask}


def _filled(cache: Kept, states: list[Tensor], dtype: torch.dtype) -> Kept:
    """Give a cache keys and values of every layer, and return it."""
    for layer, (key, value) in enumerate(zip(states[::2], states[1::2], strict=True)):
        cache.update(key.to(dtype), value.to(dtype), layer)
    return cache


def _step(model: PreTrainedModel, cache: transformers.DynamicCache) -> Tensor:
    found: Tensor = model(torch.full((1, 1), 7), cache=cache).logits
    cache.crop(-1)
    return found


def _compared(
    name: str,
    model: PreTrainedModel,
    dtype: torch.dtype,
    given: dict[str, Tensor],
    seconds: float,
    changed: Callable[[PreTrainedModel], PreTrainedModel] = hw.hf.accelerate,
) -> Iterator[Figure]:
    """Compare forward passes, padding left out of the check."""
    real = given["attention_mask"].bool()

    def prepared(model: PreTrainedModel) -> Call:
        def forward() -> Tensor:
            found: Tensor = model(**given).last_hidden_state[real]
            return found

        return forward

    yield from _timed(name, model, dtype, prepared, seconds, changed)


def _timed(
    name: str,
    model: PreTrainedModel,
    dtype: torch.dtype,
    prepared: Callable[[PreTrainedModel], Call],
    seconds: float,
    changed: Callable[[PreTrainedModel], PreTrainedModel] = hw.hf.accelerate,
) -> Iterator[Figure]:
    """Yield how many times as fast a changed copy is, behind a check against float64.

    ``prepared(model)`` gives the call that is timed, which returns what is compared.
    """
    name = f"{name} {str(dtype).removeprefix('torch.')}"
    before = nn.Module.to(deepcopy(model), dtype)
    theirs, ours = prepared(before), prepared(changed(deepcopy(before)))
    plain, found = theirs(), ours()
    _check(name, found, plain, prepared(deepcopy(model).double())())
    times = alternate({"before": theirs, "after": ours}, seconds)
    ratios = [a / b for a, b in zip(times["before"], times["after"], strict=True)]
    yield figure(name, "before", [1e3 * t for t in times["before"]], "ms")
    yield figure(name, "times as fast after accelerate", ratios, "x")
    if len(ratios) >= 20:
        slow = [statistics.quantiles(times[k], n=20)[-1] for k in ("before", "after")]
        yield figure(name, "times as fast, the slowest twentieth", [slow[0] / slow[1]], "x")


def _check(name: str, found: Tensor, plain: Tensor, exact: Tensor) -> None:
    """Refuse a figure for an answer that is more than four times as wrong as the one before."""
    step = torch.finfo(plain.dtype).eps * exact.abs().max().item()
    usual, error = ((x.double() - exact).abs().max().item() for x in (plain, found))
    if not error <= _SLACK * max(usual, step):
        raise Unable(
            f"{name}: wrong by {error:.3e} where the model was by {usual:.3e}; not measured"
        )


if __name__ == "__main__":
    transformers.logging.set_verbosity_error()  # type: ignore[no-untyped-call]
    with torch.no_grad():
        main(
            "benchmarks.models",
            __doc__,
            {
                "bert": bert,
                "minilm": minilm,
                "padded": padded,
                "longformer": longformer,
                "bigbird": bigbird,
                "llama": llama,
                "whisper": whisper,
            },
        )
