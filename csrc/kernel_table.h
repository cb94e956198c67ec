// Plain argument structs, and the table of functions that every instruction set fills.
#pragma once

#include <cstdint>

// Never a symbol of its own: one inline function compiled for two instruction sets would be merged
// by the linker, and an old processor would run the new one's code.
#define HEADWISE_INLINE __attribute__((always_inline)) inline

namespace headwise {

constexpr int64_t kQueryTile = 48;   // queries of a tile: the lanes of the kernels
constexpr int64_t kKeyTile = 128;    // keys of a tile
constexpr int64_t kFewQueries = 16;  // up to here keys are split among tasks
constexpr int64_t kChunkTiles = 2;   // key tiles that one such task takes
constexpr int64_t kRunTiles = 4;     // neighbouring query tiles that one task may take
constexpr int64_t kBlockTiles = 4;   // key tiles whose gradients one task of the backward owns

constexpr int64_t kFeatureRows = 32;  // tokens of a task for random features
constexpr int64_t kSegment = 1024;    // tokens whose sums for linear attention are made apart

// Numbers of 16 bits, widened to float32 before anything is done with them.
struct BFloat16 {
  uint16_t bits;
};
struct Float16 {
  uint16_t bits;
};

enum class Dtype { kFloat32, kBFloat16, kFloat16 };
constexpr int kDtypes = 3;

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

// A tensor (batch, heads, length, dim) with innermost stride 1; strides in elements.
template <class Untyped>
struct Tensor4 {
  Untyped* data = nullptr;
  int64_t batch = 0;
  int64_t head = 0;
  int64_t row = 0;

  template <class T>
  HEADWISE_INLINE T* at(int64_t b, int64_t h, int64_t i) const noexcept {
    return static_cast<T*>(data) + b * batch + h * head + i * row;
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
//   output = exp(powers - peak) + least,   gain = peak - |x|^2 / 2 - log_norm,
// with x = factor * input, powers = x @ directions and the highest power of the row as peak.
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

// Functions that compute one task on one thread. Sizes of workspaces are in floats.
struct Functions {
  // A run of query tiles of one head against all their live key tiles.
  int64_t (*tile_workspace)(const AttendArgs&) noexcept;
  void (*attend_tile)(const AttendArgs&, int64_t task, float* workspace) noexcept;

  // Few queries: all rows of one key/value head against one chunk of keys, into `partials`;
  // then the partial results of one row are merged in the order of the keys.
  int64_t (*chunk_workspace)(const AttendArgs&) noexcept;
  int64_t (*partial_size)(const AttendArgs&) noexcept;
  void (*attend_chunk)(const AttendArgs&, int64_t task, float* partials, float* workspace) noexcept;
  void (*attend_scaled_chunk)(const AttendArgs&, int64_t task, float* partials,
                              float* workspace) noexcept;
  int64_t (*merge_workspace)(const AttendArgs&) noexcept;
  void (*merge_row)(const AttendArgs&, int64_t task, const float* partials,
                    float* workspace) noexcept;

  // Fills `delta` for one query tile.
  int64_t (*delta_workspace)(const BackwardArgs&) noexcept;
  void (*fill_delta)(const BackwardArgs&, int64_t task, float* workspace) noexcept;
  // Blocks of keys of one key/value head against all query tiles that see them.
  int64_t (*backward_workspace)(const BackwardArgs&) noexcept;
  void (*attend_backward)(const BackwardArgs&, int64_t task, float* workspace) noexcept;

  // A part of the gradient of a bias.
  int64_t (*bias_workspace)(const BiasBackwardArgs&) noexcept;
  int64_t (*bias_tasks)(const BiasBackwardArgs&) noexcept;
  void (*bias_backward)(const BiasBackwardArgs&, int64_t task, float* workspace) noexcept;

  // A linear map of few rows, for a run of outputs.
  void (*linear_rows)(const LinearArgs&, int64_t task) noexcept;

  // Linear attention: all of one key/value head, or one segment of its tokens. The state of a
  // segment goes to or comes from `segments`.
  int64_t (*linear_state_size)(const LinearSumsArgs&) noexcept;
  int64_t (*linear_workspace)(const LinearSumsArgs&) noexcept;
  void (*linear_head)(const LinearSumsArgs&, int64_t task, float* workspace) noexcept;
  void (*linear_write)(const LinearSumsArgs&, int64_t task, float* workspace) noexcept;
  void (*linear_join)(const LinearSumsArgs&, int64_t task, float* workspace) noexcept;
  void (*linear_read)(const LinearSumsArgs&, int64_t task, float* workspace) noexcept;

  // Random features of a block of tokens of one head.
  int64_t (*feature_workspace)(const FeatureArgs&) noexcept;
  void (*random_features)(const FeatureArgs&, int64_t task, float* workspace) noexcept;

  // Multiplies and adds in registers for so many rounds; returns the number of operations.
  double (*multiply_add)(int64_t rounds, float* result) noexcept;
};

struct KernelTable {
  const char* name;
  Functions of[kDtypes];

  HEADWISE_INLINE const Functions& operator[](Dtype dtype) const noexcept {
    return of[static_cast<int>(dtype)];
  }
};

}  // namespace headwise
