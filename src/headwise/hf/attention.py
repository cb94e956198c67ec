"""The attention function that transformers calls, on top of ``attend``."""

import torch
from torch import Tensor, nn
from transformers.utils.output_capturing import _active_collector

from headwise.errors import BackendRefused, ShapeError
from headwise.hf.cached_tensor import ordinary, reading_of
from headwise.hf.conversion.converted import conversion_of
from headwise.hf.conversion.mixing import Call, Extras, mixed, without_room
from headwise.hf.masks import from_tensor, unmasked
from headwise.hf.pattern_mask import PatternMask
from headwise.hf.report import notes
from headwise.ops import attend, attention_weights
from headwise.patterns import Documents, Full, Pattern
from headwise.patterns.content import is_traced

# What models pass along that does not change the result of this function.
_HARMLESS = frozenset(
    (
        "cache",
        "cache_position",
        "deterministic",
        "encoder_attention_mask",
        "encoder_hidden_states",
        "input_ids",
        "labels",
        "logits_to_keep",
        "max_length_k",
        "max_length_q",
        "num_items_in_batch",
        "output_attentions",
        "output_hidden_states",
        "output_router_logits",
        "past_key_values",
        "position_ids",
        "return_dict",
        "use_cache",
    )
)


@torch.compiler.disable(  # type: ignore[no-untyped-call, untyped-decorator]
    reason="headwise chooses a backend from the pattern of each call"
)
def attention(  # noqa: PLR0913
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None = None,
    *,
    dropout: float = 0.0,
    scaling: float | None = None,
    is_causal: bool | None = None,
    sliding_window: int | None = None,
    softcap: float | None = None,
    s_aux: Tensor | None = None,
    sinks: Tensor | None = None,
    position_bias: Tensor | None = None,
    cu_seq_lens_q: Tensor | None = None,
    cu_seq_lens_k: Tensor | None = None,
    **others: object,
) -> tuple[Tensor, Tensor | None]:
    """Attend for one module; registered with transformers under ``"headwise"``.

    A mask says everything about who may attend to whom. Without one, ``is_causal`` of the call or
    the module counts, and the window; where neither says so, every query sees every key, as in the
    eager code of transformers. A converted module attends by its pattern, too, or its mechanism.

    Returns:
        The output (batch, q_len, heads, value_dim), and the attention weights before dropout
        (batch, heads, q_len, kv_len) where the caller wants them, else ``None``.

    Raises:
        BackendRefused: An argument that headwise does not know, or a module that was converted
            when it was saved and is not now.
        ShapeError: A mask for other sizes, or a causal call whose positions are not known.
    """
    _refuse_unknown(module, others)
    converted = conversion_of(module)
    batch = max(query.shape[0], key.shape[0])
    query, key, value = (
        t if t.shape[0] == batch else t.expand(batch, -1, -1, -1) for t in (query, key, value)
    )
    pattern, bias, q_offset, kv_offset = _who(
        module, query, key, attention_mask, is_causal, sliding_window
    )
    if cu_seq_lens_q is not None:
        pattern = pattern & Documents.from_cu_seqlens(cu_seq_lens_q, cu_seq_lens_k)
    if position_bias is not None and _may_count(position_bias):
        bias = position_bias if bias is None else bias + position_bias
    extras: Extras = {
        "bias": bias,
        "scale": scaling,
        "softcap": softcap,
        "sinks": s_aux if sinks is None else sinks,
        "q_offset": q_offset,
        "kv_offset": kv_offset,
    }
    if converted is not None:
        kind, lengths = type(module).__name__, (query.shape[2], key.shape[2])
        converted.check_places(attention_mask, kind, *lengths)
        call = without_room(Call(module, (query, key, value), pattern, dropout, extras))
        _, (query, key, value), pattern, _, extras = call
        if converted.pattern is not None:
            pattern = pattern & converted.pattern
    pattern = pattern.simplified()
    if converted is not None and converted.mechanism is not None:
        heads = (query, ordinary(key), ordinary(value))
        call = Call(module, heads, pattern, dropout, extras)
        output, weights = mixed(converted, call, wants_weights(others))
        return output.transpose(1, 2).contiguous(), weights
    stored = reading_of(query, key, value)
    if stored is not None:
        output = stored.attend(query, pattern, dropout, **extras)
    else:
        key, value = ordinary(key), ordinary(value)
        output = attend(query, key, value, pattern, dropout_p=dropout, **extras)
    weights = None
    if wants_weights(others):
        key = ordinary(key)
        weights = attention_weights(query, key, pattern, **extras)
    return output.transpose(1, 2).contiguous(), weights


def _who(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    given: Tensor | None,
    is_causal: bool | None,
    window: int | None,
) -> tuple[Pattern, Tensor | None, int | None, int]:
    """Return the pattern, a bias, and where the queries and keys stand."""
    q_len, kv_len = query.shape[2], key.shape[2]
    if given is None:
        causal = bool(getattr(module, "is_causal", False) if is_causal is None else is_causal)
        return unmasked(causal, q_len, kv_len, window), None, None, 0
    if not isinstance(given, PatternMask):
        pattern, bias = from_tensor(given, query.dtype)
        return (Full() if pattern is None else pattern), bias, None, 0
    if given.shape[2:] != (q_len, kv_len):
        raise ShapeError(
            f"attn_implementation='headwise': {type(module).__name__} was given a mask for "
            f"{given.shape[2]} queries and {given.shape[3]} keys, but has {q_len} and {kv_len}\n"
            "  hint: the attention mask of the model must cover the cached tokens, too; an "
            "encoder-decoder model takes EncoderDecoderCache(hf.Cache(), hf.Cache())"
        )
    notes.pop(module, None)
    if given.note is not None:
        notes[module] = given.note
    return given.pattern, None, given.q_offset, given.kv_offset


def _refuse_unknown(module: nn.Module, others: dict[str, object]) -> None:
    unknown = [
        name for name, value in others.items() if value is not None and name not in _HARMLESS
    ]
    if unknown:
        raise BackendRefused(
            f"attn_implementation='headwise': {type(module).__name__} passes arguments that "
            f"headwise does not know, got {', '.join(sorted(unknown))}\n"
            "  hint: load the model with attn_implementation='eager' or 'sdpa'; if an argument "
            "cannot change the result of attention, tell us"
        )


def _may_count(bias: Tensor) -> bool:
    """Say whether a bias could change anything; many models pass zeros."""
    return bias.requires_grad or is_traced(bias) or bool(bias.any())


def wants_weights(others: dict[str, object]) -> bool:
    """Say whether the weights are asked for, in the call or by transformers' output recorder."""
    recorded: dict[str, object] = _active_collector.get() or {}  # type: ignore[no-untyped-call]
    return bool(others.get("output_attentions")) or any("attentions" in name for name in recorded)
