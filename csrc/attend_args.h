// The arguments of softmax attention and its gradients.
#pragma once

#include "kernel_types.h"

namespace headwise {

// Live tiles of every query tile, as headwise.patterns.tiles describes them.
struct Layout {
  const int32_t* which = nullptr;  // null: every query sees every key
  int64_t which_batch = 0;         // strides of `which`, 0 where all are alike
  int64_t which_head = 0;
  const int32_t* starts = nullptr;
  int64_t starts_stride = 0;
  const int32_t* entries = nullptr;
  const uint64_t* bitmaps = nullptr;
  // For every plain layout and block of keys, the first query tile that sees some of it and the one
  // behind the last; nobody sees later blocks. Null where that is not known.
  const int32_t* ranges = nullptr;
  int64_t range_blocks = 0;

  HEADWISE_INLINE const int32_t* starts_of(int64_t b, int64_t h) const noexcept {
    return starts + which[b * which_batch + h * which_head] * starts_stride;
  }
  HEADWISE_INLINE int64_t first_query_tile(int64_t b, int64_t h, int64_t block) const noexcept {
    if (ranges == nullptr) return 0;
    return block < range_blocks ? range_of(b, h, block)[0] : 0;
  }
  HEADWISE_INLINE int64_t last_query_tile(int64_t b, int64_t h, int64_t block,
                                          int64_t all) const noexcept {
    if (ranges == nullptr) return all;
    return block < range_blocks ? range_of(b, h, block)[1] : 0;
  }

 private:
  HEADWISE_INLINE const int32_t* range_of(int64_t b, int64_t h, int64_t block) const noexcept {
    const int64_t row = which[b * which_batch + h * which_head];
    return ranges + (row * range_blocks + block) * 2;
  }
};

// Numbers added to the scores: spelled out, or computed from the distance between query i and key
// j, which is `shifts[b] + i - j`. At most one of them is there.
struct Bias {
  Tensor4<const void> dense;  // float32 (batch, q_heads, q_len, kv_len) with any strides
  int64_t dense_column = 0;
  const float* slopes = nullptr;  // (q_heads,): adds -slope * |distance|
  const float* table = nullptr;   // (q_heads, width): adds the number in column `distance`
  int64_t table_width = 0;
  const int64_t* shifts = nullptr;  // one per sample, or one for all
  int64_t shifts_batch = 0;

  HEADWISE_INLINE bool any() const noexcept {
    return dense.data != nullptr || slopes != nullptr || table != nullptr;
  }
  HEADWISE_INLINE int64_t distance(int64_t b, int64_t i, int64_t j) const noexcept {
    return shifts[b * shifts_batch] + i - j;
  }
};

// How keys and values are stored where they are not in one tensor of the query's dtype; only few
// queries read them so.
struct Store {
  // Numbers of 8 bits: each row times its scale, at (batch, head, token) with any strides.
  bool is_scaled = false;
  Tensor4<const void> key_scale, value_scale;
  // Which page holds the tokens from so many on; the first axis of keys, values and scales then
  // counts pages. Null where it counts samples.
  const int32_t* pages = nullptr;
  int64_t pages_batch = 0;
  int64_t page_tokens = 0;  // a multiple of kKeyTile
};

// Weights are dropped by a generator that counts (Philox), so that they can be dropped again.
struct Dropout {
  uint32_t threshold = 0;  // weights whose word is below are dropped; 0: none are
  uint32_t key[2] = {0, 0};
  float factor = 1.0F;  // of the weights that stay
};

struct AttendArgs {
  Dtype dtype = Dtype::kFloat32;  // of query, key, value and output
  Tensor4<const void> query, key, value;
  Tensor4<void> output;
  Store store;
  // (batch, q_heads, q_len, 2) contiguous, or null: the log-sum-exp in two parts, the highest score
  // and the rest. The backward takes exp(score - lse) for a weight, and their sum would leave no
  // digits of it where scores are large. The highest score is -infinity for a row that sees
  // nothing.
  float* lse = nullptr;
  Bias bias;
  const float* sinks = nullptr;  // (q_heads,)
  Dropout dropout;

  int64_t batches = 0, q_heads = 0, kv_heads = 0, q_len = 0, kv_len = 0;
  int64_t head_dim = 0, value_dim = 0;
  float scale = 1.0F;
  float softcap = 0.0F;  // 0: none
  Layout layout;
  int64_t run_tiles = 1;  // query tiles of a task, up to kRunTiles; no result depends on it

  HEADWISE_INLINE int64_t group() const noexcept { return q_heads / kv_heads; }
  HEADWISE_INLINE int64_t query_tiles() const noexcept {
    return (q_len + kQueryTile - 1) / kQueryTile;
  }
  HEADWISE_INLINE int64_t query_runs() const noexcept {
    return (query_tiles() + run_tiles - 1) / run_tiles;
  }
  HEADWISE_INLINE int64_t key_tiles() const noexcept { return (kv_len + kKeyTile - 1) / kKeyTile; }
  HEADWISE_INLINE void write_lse(int64_t row, double highest, double rest) const noexcept {
    const auto rounded = static_cast<float>(highest);
    lse[2 * row] = rounded;
    lse[2 * row + 1] = static_cast<float>(highest - double{rounded} + rest);
  }
  HEADWISE_INLINE void write_closed_lse(int64_t row) const noexcept {
    lse[2 * row] = -__builtin_huge_valf();
    lse[2 * row + 1] = 0.0F;
  }
  HEADWISE_INLINE bool sees_something(int64_t row) const noexcept {
    return lse[2 * row] != -__builtin_huge_valf();
  }
  HEADWISE_INLINE int64_t row_number(int64_t b, int64_t h, int64_t i) const noexcept {
    return (b * q_heads + h) * q_len + i;
  }
  // Whether keys are split among tasks. It depends on the number of queries alone, so that keys
  // padded on the right change no bits. With more, a tile has rows enough and needs no merging.
  HEADWISE_INLINE bool splits_keys() const noexcept { return kv_len > 0 && q_len <= kFewQueries; }
  HEADWISE_INLINE int64_t chunks() const noexcept {
    return (key_tiles() + kChunkTiles - 1) / kChunkTiles;
  }
};

struct BackwardArgs {
  AttendArgs call;  // `output` and `lse` are read
  Tensor4<const void> d_output;
  const float* d_lse = nullptr;  // (batch, q_heads, q_len) contiguous, or null
  // (batch, q_heads, q_len) contiguous: the sum of output * d_output of a row, less d_lse.
  float* delta = nullptr;

  Tensor4<void> d_key, d_value;
  // float32 (slots, batch, q_heads, q_len, head_dim) contiguous: each slot takes the gradients of
  // one block of keys after the other, from `first_block` on.
  float* d_query = nullptr;
  int64_t slots = 1, first_block = 0, last_block = 0;

  HEADWISE_INLINE int64_t blocks() const noexcept {
    return (call.key_tiles() + kBlockTiles - 1) / kBlockTiles;
  }
};

// The gradient of a bias, summed over the axes along which the bias is broadcast.
struct BiasBackwardArgs {
  BackwardArgs backward;
  float* d_bias = nullptr;  // contiguous (batches, heads, rows, columns), each all or 1
  int64_t batches = 0, heads = 0;
  bool sums_rows = false, sums_columns = false;
  double* d_table = nullptr;  // (parts, q_heads, width)
  int64_t parts = 1;
};

}  // namespace headwise
