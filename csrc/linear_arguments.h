// What Python hands over for linear attention's sums, checked.
#pragma once

#include "call_arguments.h"

namespace headwise {

struct LinearFactors {
  const Maybe& gain;
  const Maybe& offset;
  const Maybe& log_decay;
};

struct GivenState {
  const Maybe& sums;
  const Maybe& normaliser;
  const Maybe& log_scale;
};

// Heads of a tensor are those of keys times a group.
inline int64_t group_of(int64_t heads, int64_t kv_heads) {
  if (heads == kv_heads) return 1;
  require(kv_heads > 0 && heads % kv_heads == 0, "heads must be a multiple of the fewer ones");
  return heads / kv_heads;
}

inline Tensor4<const void> of_any_dtype(const BorrowedTensor& tensor, Dtype& dtype) {
  require(tensor.view.ndim == 4 && tensor.find_dtype(dtype),
          "query, key and value must be 4-D float32, bfloat16 or float16 on the CPU");
  return strided<const void>(tensor, dtype);
}

inline LinearSumsArgs linear_arguments(const BorrowedTensor& query, const BorrowedTensor& key,
                                       const BorrowedTensor& value, LinearFactors factors,
                                       GivenState before, const BorrowedTensor& output,
                                       const Maybe& total, const BorrowedTensor& sums_after,
                                       const BorrowedTensor& normaliser_after,
                                       const BorrowedTensor& log_scale_after, bool causal,
                                       bool backwards) {
  LinearSumsArgs a;
  a.query = of_any_dtype(query, a.query_dtype);
  a.key = of_any_dtype(key, a.key_dtype);
  a.value = of_any_dtype(value, a.value_dtype);
  a.batches = query.size(0);
  a.q_len = query.size(2);
  a.kv_len = key.size(2);
  a.features = key.size(3);
  a.value_dim = value.size(3);
  a.kv_heads = query.size(1) < key.size(1) ? query.size(1) : key.size(1);
  a.readers = group_of(query.size(1), a.kv_heads);
  a.writers = group_of(key.size(1), a.kv_heads);
  a.causal = causal;
  a.backwards = backwards;
  require(has_sizes(query, {a.batches, a.kv_heads * a.readers, a.q_len, a.features}) &&
              has_sizes(key, {a.batches, a.kv_heads * a.writers, a.kv_len, a.features}) &&
              has_sizes(value, {a.batches, a.kv_heads * a.writers, a.kv_len, a.value_dim}),
          "query, key and value do not fit together");
  require(!causal || a.q_len == a.kv_len, "causal sums need as many queries as keys");
  require(causal || !factors.log_decay, "a decay is for causal sums");
  const int64_t readers = a.kv_heads * a.readers;
  const int64_t writers = a.kv_heads * a.writers;
  if (factors.gain) {
    a.gain = packed(*factors.gain, {a.batches, writers, a.kv_len},
                    "gain must be (batch, heads of key, kv_len) float32, contiguous");
  }
  if (factors.offset) {
    a.offset = packed(*factors.offset, {a.batches, readers, a.q_len},
                      "offset must be (batch, heads of query, q_len) float32, contiguous");
  }
  if (factors.log_decay) {
    a.log_decay = packed(*factors.log_decay, {a.kv_heads},
                         "log_decay must be (kv_heads,) float32, contiguous");
  }
  const char* state =
      "a state is (batch, kv_heads, features, value_dim), one without the last axis, and "
      "(batch, kv_heads), float32, contiguous";
  if (before.sums) {
    require(before.normaliser && before.log_scale, state);
    a.before.sums = packed(*before.sums, {a.batches, a.kv_heads, a.features, a.value_dim}, state);
    a.before.normaliser = packed(*before.normaliser, {a.batches, a.kv_heads, a.features}, state);
    a.before.log_scale = packed(*before.log_scale, {a.batches, a.kv_heads}, state);
  }
  a.after.sums = packed(sums_after, {a.batches, a.kv_heads, a.features, a.value_dim}, state);
  a.after.normaliser = packed(normaliser_after, {a.batches, a.kv_heads, a.features}, state);
  a.after.log_scale = packed(log_scale_after, {a.batches, a.kv_heads}, state);
  a.output = packed(output, {a.batches, readers, a.q_len, a.value_dim},
                    "output must be (batch, heads of query, q_len, value_dim) float32, contiguous");
  if (total) {
    a.normaliser = packed(*total, {a.batches, readers, a.q_len},
                          "total must be (batch, heads of query, q_len) float32, contiguous");
  }
  return a;
}

inline FeatureArgs feature_arguments(const BorrowedTensor& input, const BorrowedTensor& directions,
                                     const BorrowedTensor& output, const BorrowedTensor& gain,
                                     float factor, float log_norm, float least) {
  FeatureArgs a;
  a.input = of_any_dtype(input, a.dtype);
  a.batches = input.size(0);
  a.heads = input.size(1);
  a.length = input.size(2);
  a.dim = input.size(3);
  require(directions.view.ndim == 2 && directions.size(1) % 16 == 0,
          "directions must have columns in multiples of 16");
  a.wide = directions.size(1);
  a.directions =
      packed(directions, {a.dim, a.wide}, "directions must be (dim, columns) float32, contiguous");
  require(output.view.ndim == 4 && output.is_dtype(a.dtype) && output.size(3) <= a.wide &&
              rows_of(output) == a.batches * a.heads * a.length,
          "output must be (batch, heads, length, count) in the dtype of input, contiguous");
  a.count = output.size(3);
  a.output = output.data<void>();
  a.gain = packed(gain, {a.batches, a.heads, a.length},
                  "gain must be (batch, heads, length) float32, contiguous");
  a.factor = factor;
  a.log_norm = log_norm;
  a.least = least;
  return a;
}

}  // namespace headwise
