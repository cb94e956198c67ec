// The arguments of linear maps, of linear attention and of its features.
#pragma once

#include "kernel_types.h"

namespace headwise {

// output = input @ weight^T + bias, with innermost strides of 1; strides in elements.
struct LinearArgs {
  Dtype dtype = Dtype::kFloat32;  // of all tensors
  const void* input = nullptr;    // (rows, inputs)
  const void* weight = nullptr;   // (outputs, inputs)
  const void* bias = nullptr;     // (outputs,) or null
  void* output = nullptr;         // (rows, outputs)
  int64_t input_row = 0, weight_row = 0, output_row = 0;
  int64_t rows = 0, inputs = 0, outputs = 0;
  int64_t task_outputs = 4;  // outputs of a task, a multiple of 4; no result depends on it
};

// Linear attention's sums over keys, before they are normalised. Reader i and writer j weigh
//
//   (query_i . key_j) * exp(gain_j + |i - j| * log_decay + offset_i),
//
// where the caller sees to it that no exponent is above 0; sums that are not causal and have no
// offset stay divided by the factor of the state after them. A key/value head has several readers
// or several writers, all over the same state. `causal`: reader i sees writers up to i; with
// `backwards`, those from i on. The state stands for writers before the first, or behind the last.
struct LinearState {
  float* sums = nullptr;        // (batch, kv_heads, features, value_dim) contiguous
  float* normaliser = nullptr;  // (batch, kv_heads, features) contiguous
  float* log_scale = nullptr;   // (batch, kv_heads) contiguous: what they are divided by
};

struct LinearSumsArgs {
  Tensor4<const void> query, key, value;
  Dtype query_dtype = Dtype::kFloat32, key_dtype = Dtype::kFloat32, value_dtype = Dtype::kFloat32;
  const float* gain = nullptr;       // (batch, kv_heads * writers, kv_len) contiguous, or null: 0
  const float* offset = nullptr;     // (batch, kv_heads * readers, q_len) contiguous, or null: 0
  const float* log_decay = nullptr;  // (kv_heads,) or null: 0
  float* output = nullptr;           // (batch, kv_heads * readers, q_len, value_dim) contiguous
  float* normaliser = nullptr;       // (batch, kv_heads * readers, q_len) contiguous, or null
  LinearState before;                // null: nothing
  LinearState after;
  bool causal = false;  // q_len is kv_len then
  bool backwards = false;

  int64_t batches = 0, kv_heads = 0, readers = 1, writers = 1, q_len = 0, kv_len = 0;
  int64_t features = 0, value_dim = 0;
  float* segments = nullptr;  // states of segments, of `state_size` each; see linear_sums.cpp

  HEADWISE_INLINE int64_t segment_count() const noexcept {
    const int64_t count = (kv_len + kSegment - 1) / kSegment;
    return count > 0 ? count : 1;
  }
  HEADWISE_INLINE int64_t query_segments() const noexcept {
    return (q_len + kSegment - 1) / kSegment;
  }
};

// Positive random features of queries or keys:
//   output = exp(exponents - peak) + least,   gain = peak - |x|^2 / 2 - log_norm,
// with x = factor * input, exponents = x @ directions, and the highest of the row as peak.
struct FeatureArgs {
  Dtype dtype = Dtype::kFloat32;  // of input and output
  Tensor4<const void> input;
  const float* directions = nullptr;  // (dim, wide) contiguous; `count` columns of whole registers
  void* output = nullptr;             // (batch, heads, length, count) contiguous
  float* gain = nullptr;              // (batch, heads, length) contiguous
  float factor = 1.0F, log_norm = 0.0F, least = 0.0F;
  int64_t batches = 0, heads = 0, length = 0, dim = 0, count = 0, wide = 0;

  HEADWISE_INLINE int64_t blocks() const noexcept {
    return (length + kFeatureRows - 1) / kFeatureRows;
  }
};

}  // namespace headwise
