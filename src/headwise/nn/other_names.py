"""What arguments of other libraries are called here."""

_CAUSAL = "pattern=headwise.Causal()"
_CACHE = "cache=headwise.KVCache()"
_BIAS = "bias= (numbers added to the scores)"
_MASK = "mask= (True = may attend) or bias= (numbers added to the scores)"
_PADDING = "kv_mask= (True = real token; torch means the opposite, so turn it round with ~)"
_OFFSET = "q_offset= (the position of the first token; an int, or one for each sample)"
_ROTARY = "positions=headwise.positions.Rotary(…), where the attention is made"
_DROPOUT = "dropout=, where the attention is made"
_PACKED = "pattern=headwise.Documents.from_cu_seqlens(…), with all documents in one sample"
_LENGTHS = "pattern=headwise.Documents.from_cu_seqlens(…) alone; it knows the lengths"
_HEADS = "the columns of W_o.weight that belong to a head, multiplied by its number"

_ALIKE = {
    # torch
    "key_padding_mask": _PADDING,
    "src_key_padding_mask": _PADDING,
    "tgt_key_padding_mask": _PADDING,
    "attn_mask": _MASK,
    "src_mask": _MASK,
    "tgt_mask": _MASK,
    "is_causal": _CAUSAL,
    "tgt_is_causal": _CAUSAL,
    # transformers
    "attention_mask": "kv_mask= for (batch, kv_len) with 1 = real token, or bias= for numbers "
    "added to the scores",
    "position_bias": _BIAS,
    "position_ids": _OFFSET,
    "cache_position": _OFFSET,
    "position_embeddings": _ROTARY,
    "past_key_value": _CACHE,
    "past_key_values": _CACHE,
    "layer_past": _CACHE,
    "use_cache": _CACHE,
    "head_mask": _HEADS,
    "layer_head_mask": _HEADS,
    # x-transformers
    "attn_bias": _BIAS,
    "rotary_pos_emb": _ROTARY,
    "pos": _OFFSET,
    # torchtune
    "input_pos": _OFFSET,
    # flash-attention
    "causal": _CAUSAL,
    "window_size": "pattern=headwise.Window(left, right), with None for -1",
    "alibi_slopes": "bias=headwise.positions.Alibi(num_heads, slopes)",
    "dropout_p": _DROPOUT,
    "cu_seqlens": _PACKED,
    "max_seqlen": _LENGTHS,
    "inference_params": _CACHE,
}
_WEIGHTS_ASKED = (
    "need_weights",
    "average_attn_weights",
    "output_attentions",
    "return_attn_probs",
)


def _weights(project: str) -> dict[str, str]:
    words = f"headwise.attention_weights, with the q and k of {project}"
    return dict.fromkeys(_WEIGHTS_ASKED, words)


OF_ATTENTION = {
    **_ALIKE,
    **_weights("layer.project(…)"),
    "Q": "query=",
    "K": "key=",
    "V": "value=",
    "x": "query=",
    "src": "query=",
    "tgt": "query=",
    "hidden_states": "query=",
    "y": "key=",
    "x_kv": "key=",
    "context": "key=",
    "memory": "key=",
    "encoder_hidden_states": "key=",
    "key_value_states": "key=",
    "memory_mask": _MASK,
    "memory_key_padding_mask": _PADDING,
    "context_mask": "kv_mask= (True = real token)",
    "encoder_attention_mask": "kv_mask= (1 = real token)",
}

OF_BLOCK = {
    **_ALIKE,
    **_weights("block.attention.project(…)"),
    "src": "x=",
    "tgt": "x=",
    "query": "x=",
    "hidden_states": "x=",
    "key": "memory=",
    "context": "memory=",
    "encoder_input": "memory=",
    "encoder_hidden_states": "memory=",
    "key_value_states": "memory=",
    "memory_key_padding_mask": _PADDING.replace("kv_mask", "memory_mask"),
    "context_mask": "memory_mask= (True = real token)",
    "encoder_attention_mask": "memory_mask= (1 = real token)",
}
