"""Transformer layers of torch and transformers, and blocks of ours that shall equal them."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from transformers import BertConfig, GPT2Config, LlamaConfig, MarianConfig, T5Config
from transformers.models.bert import modeling_bert
from transformers.models.gpt2 import modeling_gpt2
from transformers.models.llama.modeling_llama import LlamaDecoderLayer, LlamaRotaryEmbedding
from transformers.models.marian.modeling_marian import MarianDecoderLayer
from transformers.models.t5.modeling_t5 import T5Block

import headwise as hw

WIDTH, HEADS, HIDDEN = 12, 3, 20
_EAGER: dict[str, Any] = {"attn_implementation": "eager"}
_SIZES: dict[str, Any] = {
    "hidden_size": WIDTH,
    "num_attention_heads": HEADS,
    "intermediate_size": HIDDEN,
}
_NO_DROPOUT: dict[str, Any] = {"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0}

# Not typed in transformers.
BertLayer: Any = modeling_bert.BertLayer
GPT2Block: Any = modeling_gpt2.GPT2Block

Tensors = dict[str, Tensor]


@dataclass(frozen=True)
class Foreign:
    """A layer of another library.

    Attributes:
        layer: It, without dropout.
        block: Makes ours.
        run: Calls it with x, memory, what is added to the scores of both (one number a pair and one
            a token of the memory, with an axis for heads), and a bias.
        names: Our modules to theirs.
        unpacked: Gives every linear layer of theirs tensors of its own, out features first.
        query_scale: How many times theirs our ``W_q`` is.
        reads, causal, biased: Whether it has cross attention, is a decoder's, takes a bias.
    """

    layer: nn.Module
    block: Callable[[], hw.nn.TransformerBlock]
    run: Callable[[Any, Tensor, Tensor, tuple[Tensor, Tensor], Tensor], Tensor]
    names: dict[str, str]
    unpacked: Callable[[Tensors], Tensors] = dict
    query_scale: float = 1.0
    reads: bool = False
    causal: bool = True
    biased: bool = False

    def renamed(self, theirs: Tensors, query_scale: float) -> Tensors:
        """Return tensors of theirs under our names."""
        tensors = self.unpacked(theirs)
        ours = {
            f"{ours}.{kind}": tensors[f"{name}.{kind}"]
            for ours, name in self.names.items()
            for kind in ("weight", "bias")
            if f"{name}.{kind}" in tensors
        }
        return {name: t * query_scale if "W_q" in name else t for name, t in ours.items()}


def parts(
    *, reads: bool = False, bias: bool = True, inner: dict[str, Any] | None = None, **settings: Any
) -> tuple[hw.MultiHeadAttention, hw.nn.FeedForward, hw.MultiHeadAttention | None]:
    """Return the parts of a block of ours."""
    return (
        hw.MultiHeadAttention(WIDTH, HEADS, bias=bias, **settings),
        hw.nn.FeedForward(WIDTH, HIDDEN, bias=bias, **(inner or {})),
        hw.MultiHeadAttention(WIDTH, HEADS, bias=bias) if reads else None,
    )


def bert() -> Foreign:
    """Return an encoder's layer, post-norm."""
    config = BertConfig(**_SIZES, **_NO_DROPOUT, **_EAGER)
    return Foreign(
        BertLayer(config),
        lambda: hw.nn.TransformerBlock(*parts(), norm_first=False, eps=1e-12),
        lambda layer, x, _, added, __: layer(x, added[0]),
        {
            "attention.W_q": "attention.self.query",
            "attention.W_k": "attention.self.key",
            "attention.W_v": "attention.self.value",
            "attention.W_o": "attention.output.dense",
            "attention_norm": "attention.output.LayerNorm",
            "feed_forward.W_up": "intermediate.dense",
            "feed_forward.W_down": "output.dense",
            "feed_forward_norm": "output.LayerNorm",
        },
        causal=False,
    )


def gpt2() -> Foreign:
    """Return a decoder's layer, pre-norm, with packed projections, in features first."""
    config = GPT2Config(
        n_embd=WIDTH, n_head=HEADS, n_inner=HIDDEN, attn_pdrop=0.0, resid_pdrop=0.0, **_EAGER
    )

    def unpacked(theirs: Tensors) -> Tensors:
        upright = {name: tensor.T for name, tensor in theirs.items() if tensor.ndim == 2}
        return _split("attn.c_attn.", theirs | upright)

    return Foreign(
        GPT2Block(config, 0),
        lambda: hw.nn.TransformerBlock(*parts(inner={"activation": "gelu_tanh"})),
        lambda layer, x, _, added, __: layer(x, attention_mask=added[0]),
        {
            **_own("attn.c_attn.", "attention"),
            "attention.W_o": "attn.c_proj",
            "attention_norm": "ln_1",
            "feed_forward.W_up": "mlp.c_fc",
            "feed_forward.W_down": "mlp.c_proj",
            "feed_forward_norm": "ln_2",
        },
        unpacked,
    )


def llama() -> Foreign:
    """Return a decoder's layer, pre-norm, gated, grouped heads, rotated."""
    config = LlamaConfig(**_SIZES, num_key_value_heads=1, rms_norm_eps=1e-6, **_EAGER)
    rotary = LlamaRotaryEmbedding(config)

    def block() -> hw.nn.TransformerBlock:
        gated = {"activation": "silu", "gated": True}
        positions = hw.positions.Rotary(WIDTH // HEADS)
        made = parts(bias=False, inner=gated, num_kv_heads=1, positions=positions)
        return hw.nn.TransformerBlock(*made, norm="rms", eps=1e-6)

    def run(layer: Any, x: Tensor, _: Tensor, added: tuple[Tensor, Tensor], __: Tensor) -> Any:
        places = rotary(x, torch.arange(x.shape[1]).unsqueeze(0))
        return layer(x, added[0], position_embeddings=places)

    return Foreign(
        LlamaDecoderLayer(config, 0),
        block,
        run,
        {
            **{f"attention.W_{part}": f"self_attn.{part}_proj" for part in "qkvo"},
            **{f"feed_forward.W_{part}": f"mlp.{part}_proj" for part in ("gate", "up", "down")},
            "attention_norm": "input_layernorm",
            "feed_forward_norm": "post_attention_layernorm",
        },
    )


def marian() -> Foreign:
    """Return a decoder's layer with cross attention, post-norm."""
    config = MarianConfig(
        d_model=WIDTH,
        decoder_attention_heads=HEADS,
        decoder_ffn_dim=HIDDEN,
        dropout=0.0,
        activation_function="silu",
        **_EAGER,
    )
    names = {"W_q": "q_proj", "W_k": "k_proj", "W_v": "v_proj", "W_o": "out_proj"}
    return Foreign(
        MarianDecoderLayer(config, 0),
        lambda: hw.nn.TransformerBlock(
            *parts(reads=True, inner={"activation": "silu"}), norm_first=False
        ),
        lambda layer, x, memory, added, _: layer(x, added[0], memory, added[1]),
        {
            **{f"attention.{ours}": f"self_attn.{name}" for ours, name in names.items()},
            **{f"cross_attention.{ours}": f"encoder_attn.{name}" for ours, name in names.items()},
            "attention_norm": "self_attn_layer_norm",
            "cross_attention_norm": "encoder_attn_layer_norm",
            "feed_forward.W_up": "fc1",
            "feed_forward.W_down": "fc2",
            "feed_forward_norm": "final_layer_norm",
        },
        reads=True,
    )


def t5() -> Foreign:
    """Return a decoder's layer with cross attention, pre-norm, gated, scores unscaled."""
    names = {"W_q": "q", "W_k": "k", "W_v": "v", "W_o": "o"}
    inner = {"W_gate": "wi_0", "W_up": "wi_1", "W_down": "wo"}
    config = T5Config(
        d_model=WIDTH,
        d_kv=WIDTH // HEADS,
        d_ff=HIDDEN,
        num_heads=HEADS,
        dropout_rate=0.0,
        feed_forward_proj="gated-gelu",
        is_decoder=True,
        **_EAGER,
    )

    def block() -> hw.nn.TransformerBlock:
        gated = {"activation": "gelu_tanh", "gated": True}
        made = parts(reads=True, bias=False, inner=gated)
        return hw.nn.TransformerBlock(*made, norm="rms", eps=1e-6)

    return Foreign(
        T5Block(config, layer_idx=0),
        block,
        lambda layer, x, memory, added, bias: layer(x, added[0], bias, memory, added[1])[0],
        {
            **{f"attention.{o}": f"layer.0.SelfAttention.{n}" for o, n in names.items()},
            **{f"cross_attention.{o}": f"layer.1.EncDecAttention.{n}" for o, n in names.items()},
            **{f"feed_forward.{o}": f"layer.2.DenseReluDense.{n}" for o, n in inner.items()},
            "attention_norm": "layer.0.layer_norm",
            "cross_attention_norm": "layer.1.layer_norm",
            "feed_forward_norm": "layer.2.layer_norm",
        },
        query_scale=(WIDTH / HEADS) ** 0.5,
        reads=True,
        biased=True,
    )


def torch_encoder(norm_first: bool) -> Foreign:
    """Return torch's layer of an encoder."""
    return Foreign(
        nn.TransformerEncoderLayer(
            WIDTH, HEADS, HIDDEN, dropout=0.0, batch_first=True, norm_first=norm_first
        ),
        lambda: hw.nn.TransformerBlock(*parts(inner={"activation": "relu"}), norm_first=norm_first),
        lambda layer, x, _, added, __: layer(x, src_key_padding_mask=added[0][:, 0, 0]),
        {**_own("self_attn.in_proj_", "attention"), **_TORCH, "feed_forward_norm": "norm2"},
        lambda theirs: _split("self_attn.in_proj_", theirs),
        causal=False,
    )


def torch_decoder(norm_first: bool) -> Foreign:
    """Return torch's layer of a decoder."""
    packed = ("self_attn.in_proj_", "multihead_attn.in_proj_")

    def run(layer: Any, x: Tensor, memory: Tensor, added: tuple[Tensor, Tensor], _: Any) -> Any:
        mask = added[0].repeat_interleave(HEADS, 1).flatten(0, 1)
        return layer(x, memory, mask, memory_key_padding_mask=added[1].flatten(1))

    return Foreign(
        nn.TransformerDecoderLayer(
            WIDTH, HEADS, HIDDEN, dropout=0.0, batch_first=True, norm_first=norm_first
        ),
        lambda: hw.nn.TransformerBlock(
            *parts(reads=True, inner={"activation": "relu"}), norm_first=norm_first
        ),
        run,
        {
            **_own(packed[0], "attention"),
            **_own(packed[1], "cross_attention"),
            **_TORCH,
            "cross_attention.W_o": "multihead_attn.out_proj",
            "cross_attention_norm": "norm2",
            "feed_forward_norm": "norm3",
        },
        lambda theirs: _split(packed[1], _split(packed[0], theirs)),
        reads=True,
    )


_TORCH = {
    "attention.W_o": "self_attn.out_proj",
    "attention_norm": "norm1",
    "feed_forward.W_up": "linear1",
    "feed_forward.W_down": "linear2",
}


def _own(packed: str, part: str) -> dict[str, str]:
    return {f"{part}.W_{letter}": f"{packed}{letter}" for letter in "qkv"}


def _split(packed: str, theirs: Tensors) -> Tensors:
    """Return tensors with the rows of queries, keys and values apart."""
    apart = {
        f"{packed}{letter}.{kind}": rows
        for kind in ("weight", "bias")
        for letter, rows in zip("qkv", theirs[f"{packed}{kind}"].chunk(3), strict=True)
    }
    return theirs | apart


FOREIGN: dict[str, Callable[[], Foreign]] = {
    "bert": bert,
    "gpt2": gpt2,
    "llama": llama,
    "marian": marian,
    "t5": t5,
    "torch encoder, norm first": lambda: torch_encoder(True),
    "torch encoder, norm last": lambda: torch_encoder(False),
    "torch decoder, norm first": lambda: torch_decoder(True),
    "torch decoder, norm last": lambda: torch_decoder(False),
}
