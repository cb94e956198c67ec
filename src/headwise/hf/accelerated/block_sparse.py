"""What BigBird and BigBirdPegasus share: block-sparse attention in linear memory, and full."""

from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.nn.functional import pad

from headwise.hf.accelerated.families import fast_class_of
from headwise.hf.accelerated.given_mask import read_mask
from headwise.hf.accelerated.swap import base_of, refusal_of, swap
from headwise.hf.attention import attention, wants_weights
from headwise.hf.big_bird import FEWEST_BLOCKS, counts_of, drawn_blocks
from headwise.ops import attend
from headwise.patterns import Documents, Full, Pattern, Tiles, bigbird


class _Masks(NamedTuple):
    """What a model says of its padding, in the order in which it hands it over; 1 is a real token.

    Attributes:
        band: (batch, 1, blocks - 4, block, 3 * block), pairs of real tokens in a window.
        queries: (batch, 1, length, 1).
        keys: (batch, 1, 1, length).
        blocked_queries: (batch, blocks, block).
        blocked_keys: (batch, blocks, block).
    """

    band: Tensor | None
    queries: Tensor | None
    keys: Tensor | None
    blocked_queries: Tensor | None
    blocked_keys: Tensor | None


def forward_in_blocks(
    self: Any,
    hidden_states: Tensor,
    band_mask: Tensor | None = None,
    from_mask: Tensor | None = None,
    to_mask: Tensor | None = None,
    from_blocked_mask: Tensor | None = None,
    to_blocked_mask: Tensor | None = None,
    **kwargs: object,
) -> tuple[Tensor, Tensor | None]:
    """Stand in for ``forward`` of a block-sparse attention; the weights are ``None``.

    The original computes calls that ask for weights or are not on the CPU, calls of fewer than four
    blocks or of blocks cut short, and masks that do not all say the same of each token.
    """
    masks = _Masks(band_mask, from_mask, to_mask, from_blocked_mask, to_blocked_mask)
    if hidden_states.device.type == "cpu" and not wants_weights(kwargs):
        real = _real_tokens(masks, hidden_states, self.block_size)
        if real is not None:
            return _attend_blocks(self, hidden_states, real), None
    return _original(self)(hidden_states, *masks, **kwargs)


def forward_in_full(
    self: Any,
    hidden_states: Tensor,
    attention_mask: Tensor | None = None,
    encoder_hidden_states: Tensor | None = None,
    encoder_attention_mask: Tensor | None = None,
    cache: Any = None,
    **kwargs: object,
) -> tuple[Tensor, Tensor | None]:
    """Stand in for ``forward`` of a full attention; the weights are ``None`` unless asked for.

    They are those before dropout. A query that may attend nowhere, padding on the left of a
    decoder, gets zeros and no average of all values. The original computes calls that name a cache
    as older versions did.
    """
    if kwargs.get("past_key_values") is not None:
        given = (attention_mask, encoder_hidden_states, encoder_attention_mask, cache)
        return _original(self)(hidden_states, *given, **kwargs)
    mask = attention_mask if encoder_hidden_states is None else encoder_attention_mask
    output, weights = attention(
        self,
        *_states(self, hidden_states, encoder_hidden_states, cache),
        mask if mask is None or not mask.is_floating_point() else read_mask(mask, mask.dtype),
        dropout=self.dropout.p if self.training else 0.0,
        is_causal=False,
        output_attentions=kwargs.get("output_attentions"),
    )
    return output.flatten(2), weights


def keep_fast(parent: Any) -> None:
    """Give the attention that a switch between sparse and full has just made its fast class."""
    fast = fast_class_of(parent.self)
    if fast is not None and refusal_of(parent.self, fast) is None:
        swap(parent.self, fast)


def _original(module: Any) -> Callable[..., tuple[Tensor, Tensor]]:
    """Return the ``forward`` that transformers wrote for an attention."""
    original: Any = base_of(type(module))
    return partial(original.forward, module)


def _real_tokens(masks: _Masks, x: Tensor, block: int) -> Tensor | None:
    """Return which tokens are no padding, (batch, length); ``None`` where the original must tell.

    All masks must come from one mask of tokens that holds only 0 and 1, as those of models do.
    """
    batch, length, _ = x.shape
    blocks, rest = divmod(length, block)
    if masks.keys is None or masks.keys.shape != (batch, 1, 1, length):
        return None
    if rest or blocks < FEWEST_BLOCKS:
        return None
    real = masks.keys != 0
    blocked = real.view(batch, blocks, block)
    near = torch.cat([blocked[:, 1:-3], blocked[:, 2:-2], blocked[:, 3:-1]], 2)
    pairs = blocked[:, None, 2:-2, :, None] & near[:, None, :, None]
    expected = (pairs, real.transpose(2, 3), real, blocked, blocked)
    alike = all(
        mask is not None and torch.equal(mask, seen.to(mask.dtype))
        for mask, seen in zip(masks, expected, strict=True)
    )
    return real.flatten(1) if alike else None


@torch.compiler.disable(  # type: ignore[no-untyped-call, untyped-decorator]
    reason="headwise chooses a backend from the pattern of each call"
)
def _attend_blocks(module: Any, x: Tensor, real: Tensor) -> Tensor:
    """Compute a block-sparse attention: (batch, length, heads * head_dim)."""
    compute = _with_drawn_blocks if module.training else _with_block_zero
    output: Tensor = compute(
        module,
        _heads(module, module.query, x),
        _heads(module, module.key, x),
        _heads(module, module.value, x),
        None if bool(real.all()) else real,
    )
    return output.flatten(2)


def _states(
    module: Any, x: Tensor, source: Tensor | None, cache: Any
) -> tuple[Tensor, Tensor, Tensor]:
    """Return query, key and value of a full attention, what is cached included.

    Args:
        module: The attention.
        x: Where the queries come from, (batch, length, width).
        source: Where keys and values come from in cross attention; ``None`` = from ``x``.
        cache: Keys and values of earlier calls; ``None`` = there are none.
    """
    query = _heads(module, module.query, x)
    if source is not None and cache is not None and cache.get_seq_length(module.layer_idx) > 0:
        layer = cache.layers[module.layer_idx]
        return query, layer.keys, layer.values
    key, value = (
        _heads(module, made, x if source is None else source) for made in (module.key, module.value)
    )
    if cache is not None:
        key, value = cache.update(key, value, module.layer_idx)
    return query, key, value


def _heads(module: Any, linear: Any, x: Tensor) -> Tensor:
    made: Tensor = linear(x)
    return made.view(*made.shape[:2], module.num_attention_heads, -1).transpose(1, 2)


def _with_block_zero(
    module: Any, query: Tensor, key: Tensor, value: Tensor, real: Tensor | None
) -> Tensor:
    """Compute what evaluation does: all random blocks are block 0, which counts that often more.

    The first and the last block see every key once, so they are a call of their own, and the
    others add the same numbers to the scores of all queries.
    """
    block, length = module.block_size, key.shape[2]
    often = query.new_tensor(1 + module.num_random_blocks, dtype=_work(query)).log()
    middle = attend(
        query[:, :, block:-block],
        key,
        value,
        _real(bigbird(block, 3, 1, 0, length=length), real, real),
        bias=pad(often.expand(block), (0, length - block)),
        q_offset=block,
    ).transpose(1, 2)
    ends = attend(
        torch.cat([query[:, :, :block], query[:, :, -block:]], 2),
        key,
        value,
        _real(Full(), None if real is None else _ends(real, block), real),
        q_offset=0,
    ).transpose(1, 2)
    return torch.cat([ends[:, :block], middle, ends[:, block:]], 1)


def _with_drawn_blocks(
    module: Any, query: Tensor, key: Tensor, value: Tensor, real: Tensor | None
) -> Tensor:
    """Compute what training does, with the blocks that transformers draws for every head.

    Where blocks are drawn that are seen already, as happens at 1024 tokens, they count again,
    which costs a bias of all pairs.
    """
    block, blocks = module.block_size, key.shape[2] // module.block_size
    counts = counts_of(drawn_blocks(module, blocks), blocks)
    bias = None
    if int(counts.max()) > 1:
        often = counts.clamp(min=1).to(_work(query)).log()
        bias = often.repeat_interleave(block, 1).repeat_interleave(block, 2).unsqueeze(0)
    pattern = _real(Tiles(counts.unsqueeze(0) > 0, block), real, real)
    return attend(query, key, value, pattern, bias=bias).transpose(1, 2)


def _work(query: Tensor) -> torch.dtype:
    return torch.promote_types(query.dtype, torch.float32)


def _real(pattern: Pattern, queries: Tensor | None, keys: Tensor | None) -> Pattern:
    """Leave padding out of a pattern, as queries and as keys; ``None`` = there is none."""
    if queries is None or keys is None:
        return pattern
    return pattern & Documents(queries.long() - 1, None if queries is keys else keys.long() - 1)


def _ends(tokens: Tensor, block: int) -> Tensor:
    return torch.cat([tokens[:, :block], tokens[:, -block:]], 1)
