"""Models of transformers in terms of ours: tables, read by ``from_transformers``.

A ``*`` in a name stands for one part between dots; those on the right are filled with those on the
left, in order.
"""

from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True)
class Read:
    """An attribute of their configuration, perhaps renamed or lessened."""

    name: str
    named: dict[str, str] | None = None
    minus: int = 0


@dataclass(frozen=True)
class Taken:
    """How a tensor of theirs becomes one or several of ours."""

    names: tuple[str, ...]
    transposed: bool = False
    flat: bool = False


@dataclass(frozen=True)
class Head:
    """A class of theirs: our class, the names outside the base model, what else is set.

    ``left`` names what ours do without.
    """

    ours: str
    names: dict[str, str | Taken] = field(default_factory=dict)
    left: tuple[str, ...] = ()
    config: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class KeyMap:
    """A family: its configuration, what that must say, names inside the base model, its classes.

    Attributes:
        config: Our settings, as constants or what is read.
        demanded: Attributes of theirs that must have one of some values.
        equal: Attributes of theirs that must be equal.
        names: Names of their tensors and ours; what has one name of ours must be equal.
        waves: Names of tables that must hold what our sinusoidal positions compute.
        heads: The classes, by name.
    """

    config: dict[str, Any]
    names: dict[str, str | Taken]
    heads: dict[str, Head]
    demanded: dict[str, tuple[Any, ...]] = field(default_factory=dict)
    equal: tuple[tuple[str, str], ...] = ()
    waves: tuple[str, ...] = ()


_ACTIVATIONS = {
    "relu": "relu",
    "gelu": "gelu",
    "gelu_new": "gelu_tanh",
    "gelu_pytorch_tanh": "gelu_tanh",
    "silu": "silu",
    "swish": "silu",
}
_TOKENS = {
    name: Read(name) for name in ("vocab_size", "pad_token_id", "bos_token_id", "eos_token_id")
}
_CLASSES = {
    **{name: Read(name) for name in ("id2label", "label2id", "problem_type")},
    "pooler": True,
}

_BERT_CONFIG: dict[str, Any] = {
    **_TOKENS,
    "kind": "encoder",
    "d_model": Read("hidden_size"),
    "num_layers": Read("num_hidden_layers"),
    "num_heads": Read("num_attention_heads"),
    "hidden_dim": Read("intermediate_size"),
    "activation": Read("hidden_act", _ACTIVATIONS),
    "eps": Read("layer_norm_eps"),
    "norm_first": False,
    "embedding_norm": True,
    "num_segments": Read("type_vocab_size"),
    "positions": "learned",
    "max_positions": Read("max_position_embeddings"),
    "dropout": Read("hidden_dropout_prob"),
    "attention_dropout": Read("attention_probs_dropout_prob"),
    "lm_bias": True,
    "lm_transform": True,
    "initializer_range": Read("initializer_range"),
    "tie_word_embeddings": Read("tie_word_embeddings"),
}
_BERT_NAMES: dict[str, str | Taken] = {
    "embeddings.word_embeddings.weight": "encoder.tokens.weight",
    "embeddings.position_embeddings.weight": "encoder.positions.weight",
    "embeddings.token_type_embeddings.weight": "encoder.segments.weight",
    "embeddings.LayerNorm.*": "encoder.embedding_norm.*",
    "encoder.layer.*.attention.self.query.*": "encoder.blocks.*.attention.W_q.*",
    "encoder.layer.*.attention.self.key.*": "encoder.blocks.*.attention.W_k.*",
    "encoder.layer.*.attention.self.value.*": "encoder.blocks.*.attention.W_v.*",
    "encoder.layer.*.attention.output.dense.*": "encoder.blocks.*.attention.W_o.*",
    "encoder.layer.*.attention.output.LayerNorm.*": "encoder.blocks.*.attention_norm.*",
    "encoder.layer.*.intermediate.dense.*": "encoder.blocks.*.feed_forward.W_up.*",
    "encoder.layer.*.output.dense.*": "encoder.blocks.*.feed_forward.W_down.*",
    "encoder.layer.*.output.LayerNorm.*": "encoder.blocks.*.feed_forward_norm.*",
}
_BERT_DEMANDED = {
    "is_decoder": (False,),
    "add_cross_attention": (False,),
    "classifier_dropout": (None,),
}

_BERT = KeyMap(
    config=_BERT_CONFIG,
    demanded=_BERT_DEMANDED,
    names=_BERT_NAMES,
    heads={
        "BertModel": Head("HeadwiseModel", left=("pooler.dense.*",)),
        "BertForMaskedLM": Head(
            "HeadwiseForMaskedLM",
            {
                "cls.predictions.transform.dense.*": "transform.dense.*",
                "cls.predictions.transform.LayerNorm.*": "transform.norm.*",
                "cls.predictions.decoder.*": "lm_head.*",
                "cls.predictions.bias": "lm_head.bias",
            },
        ),
        "BertForSequenceClassification": Head(
            "HeadwiseForSequenceClassification",
            {"bert.pooler.dense.*": "pooler.*", "classifier.*": "classifier.*"},
            config=_CLASSES,
        ),
    },
)
_ROBERTA = KeyMap(
    config={
        **_BERT_CONFIG,
        "positions": {"kind": "learned", "offset": 2},
        "max_positions": Read("max_position_embeddings", minus=2),
    },
    demanded={**_BERT_DEMANDED, "pad_token_id": (1,)},
    names=_BERT_NAMES,
    heads={
        "RobertaModel": Head("HeadwiseModel", left=("pooler.dense.*",)),
        "RobertaForMaskedLM": Head(
            "HeadwiseForMaskedLM",
            {
                "lm_head.dense.*": "transform.dense.*",
                "lm_head.layer_norm.*": "transform.norm.*",
                "lm_head.decoder.*": "lm_head.*",
                "lm_head.bias": "lm_head.bias",
            },
        ),
        "RobertaForSequenceClassification": Head(
            "HeadwiseForSequenceClassification",
            {"classifier.dense.*": "pooler.*", "classifier.out_proj.*": "classifier.*"},
            config=_CLASSES,
        ),
    },
)
_GPT2 = KeyMap(
    config={
        **_TOKENS,
        "kind": "decoder",
        "d_model": Read("n_embd"),
        "num_layers": Read("n_layer"),
        "num_heads": Read("n_head"),
        "hidden_dim": Read("n_inner"),
        "activation": Read("activation_function", _ACTIVATIONS),
        "eps": Read("layer_norm_epsilon"),
        "positions": "learned",
        "max_positions": Read("n_positions"),
        "dropout": Read("resid_pdrop"),
        "attention_dropout": Read("attn_pdrop"),
        "initializer_range": Read("initializer_range"),
        "tie_word_embeddings": Read("tie_word_embeddings"),
    },
    demanded={
        "scale_attn_weights": (True,),
        "scale_attn_by_inverse_layer_idx": (False,),
        "add_cross_attention": (False,),
    },
    equal=(("resid_pdrop", "embd_pdrop"),),
    names={
        "wte.weight": "decoder.tokens.weight",
        "wpe.weight": "decoder.positions.weight",
        "h.*.ln_1.*": "decoder.blocks.*.attention_norm.*",
        "h.*.attn.c_attn.*": Taken(
            (
                "decoder.blocks.*.attention.W_q.*",
                "decoder.blocks.*.attention.W_k.*",
                "decoder.blocks.*.attention.W_v.*",
            ),
            transposed=True,
        ),
        "h.*.attn.c_proj.*": Taken(("decoder.blocks.*.attention.W_o.*",), transposed=True),
        "h.*.ln_2.*": "decoder.blocks.*.feed_forward_norm.*",
        "h.*.mlp.c_fc.*": Taken(("decoder.blocks.*.feed_forward.W_up.*",), transposed=True),
        "h.*.mlp.c_proj.*": Taken(("decoder.blocks.*.feed_forward.W_down.*",), transposed=True),
        "ln_f.*": "decoder.final_norm.*",
    },
    heads={
        "GPT2Model": Head("HeadwiseModel"),
        "GPT2LMHeadModel": Head("HeadwiseForCausalLM", {"lm_head.weight": "lm_head.weight"}),
    },
)
_LLAMA = KeyMap(
    config={
        **_TOKENS,
        "kind": "decoder",
        "d_model": Read("hidden_size"),
        "num_layers": Read("num_hidden_layers"),
        "num_heads": Read("num_attention_heads"),
        "num_kv_heads": Read("num_key_value_heads"),
        "head_dim": Read("head_dim"),
        "hidden_dim": Read("intermediate_size"),
        "activation": Read("hidden_act", _ACTIVATIONS),
        "gated": True,
        "bias": Read("mlp_bias"),
        "attention_bias": Read("attention_bias"),
        "norm": "rms",
        "eps": Read("rms_norm_eps"),
        "positions": {
            "kind": "rotary",
            "base": Read("rope_parameters.rope_theta"),
            "scaling": Read("rope_parameters"),
        },
        "max_positions": Read("max_position_embeddings"),
        "attention_dropout": Read("attention_dropout"),
        "initializer_range": Read("initializer_range"),
        "tie_word_embeddings": Read("tie_word_embeddings"),
    },
    names={
        "embed_tokens.weight": "decoder.tokens.weight",
        "layers.*.self_attn.q_proj.*": "decoder.blocks.*.attention.W_q.*",
        "layers.*.self_attn.k_proj.*": "decoder.blocks.*.attention.W_k.*",
        "layers.*.self_attn.v_proj.*": "decoder.blocks.*.attention.W_v.*",
        "layers.*.self_attn.o_proj.*": "decoder.blocks.*.attention.W_o.*",
        "layers.*.mlp.gate_proj.*": "decoder.blocks.*.feed_forward.W_gate.*",
        "layers.*.mlp.up_proj.*": "decoder.blocks.*.feed_forward.W_up.*",
        "layers.*.mlp.down_proj.*": "decoder.blocks.*.feed_forward.W_down.*",
        "layers.*.input_layernorm.weight": "decoder.blocks.*.attention_norm.weight",
        "layers.*.post_attention_layernorm.weight": "decoder.blocks.*.feed_forward_norm.weight",
        "norm.weight": "decoder.final_norm.weight",
    },
    heads={
        "LlamaModel": Head("HeadwiseModel"),
        "LlamaForCausalLM": Head("HeadwiseForCausalLM", {"lm_head.weight": "lm_head.weight"}),
    },
)
_MARIAN = KeyMap(
    config={
        **_TOKENS,
        "kind": "encoder_decoder",
        "decoder_start_token_id": Read("decoder_start_token_id"),
        "d_model": Read("d_model"),
        "num_layers": Read("decoder_layers"),
        "encoder_layers": Read("encoder_layers"),
        "num_heads": Read("encoder_attention_heads"),
        "hidden_dim": Read("encoder_ffn_dim"),
        "activation": Read("activation_function", _ACTIVATIONS),
        "norm_first": False,
        "scale_embeddings": Read("scale_embedding"),
        "positions": {"kind": "sinusoidal", "interleaved": False},
        "max_positions": Read("max_position_embeddings"),
        "dropout": Read("dropout"),
        "attention_dropout": Read("attention_dropout"),
        "activation_dropout": Read("activation_dropout"),
        "lm_bias": True,
        "initializer_range": Read("init_std"),
    },
    demanded={
        "share_encoder_decoder_embeddings": (True,),
        "tie_word_embeddings": (True,),
        "encoder_layerdrop": (0,),
        "decoder_layerdrop": (0,),
    },
    equal=(
        ("vocab_size", "decoder_vocab_size"),
        ("encoder_attention_heads", "decoder_attention_heads"),
        ("encoder_ffn_dim", "decoder_ffn_dim"),
    ),
    names={
        "shared.weight": "encoder.tokens.weight",
        "*.embed_tokens.weight": "encoder.tokens.weight",
        "*.layers.*.self_attn.q_proj.*": "*.blocks.*.attention.W_q.*",
        "*.layers.*.self_attn.k_proj.*": "*.blocks.*.attention.W_k.*",
        "*.layers.*.self_attn.v_proj.*": "*.blocks.*.attention.W_v.*",
        "*.layers.*.self_attn.out_proj.*": "*.blocks.*.attention.W_o.*",
        "*.layers.*.self_attn_layer_norm.*": "*.blocks.*.attention_norm.*",
        "*.layers.*.encoder_attn.q_proj.*": "*.blocks.*.cross_attention.W_q.*",
        "*.layers.*.encoder_attn.k_proj.*": "*.blocks.*.cross_attention.W_k.*",
        "*.layers.*.encoder_attn.v_proj.*": "*.blocks.*.cross_attention.W_v.*",
        "*.layers.*.encoder_attn.out_proj.*": "*.blocks.*.cross_attention.W_o.*",
        "*.layers.*.encoder_attn_layer_norm.*": "*.blocks.*.cross_attention_norm.*",
        "*.layers.*.fc1.*": "*.blocks.*.feed_forward.W_up.*",
        "*.layers.*.fc2.*": "*.blocks.*.feed_forward.W_down.*",
        "*.layers.*.final_layer_norm.*": "*.blocks.*.feed_forward_norm.*",
    },
    waves=("*.embed_positions.weight",),
    heads={
        "MarianModel": Head("HeadwiseModel"),
        "MarianMTModel": Head(
            "HeadwiseForSeq2SeqLM",
            {
                "lm_head.weight": "lm_head.weight",
                "final_logits_bias": Taken(("lm_head.bias",), flat=True),
            },
        ),
    },
)

KEY_MAPS: dict[str, KeyMap] = {
    "bert": _BERT,
    "roberta": _ROBERTA,
    "gpt2": _GPT2,
    "llama": _LLAMA,
    "marian": _MARIAN,
}
