// Plain argument structs, and the table of functions that every instruction set fills.
#pragma once

#include <cstdint>

// Never a symbol of its own: one inline function compiled for two instruction sets would be merged
// by the linker, and an old processor would run the new one's code.
#define HEADWISE_INLINE __attribute__((always_inline)) inline

namespace headwise {

constexpr int64_t kQueryTile = 48;  // queries of a tile: the lanes of the kernels
constexpr int64_t kKeyTile = 128;   // keys of a tile
constexpr int64_t kFewQueries = 8;  // up to here keys are split among tasks
constexpr int64_t kChunkTiles = 2;  // key tiles that one such task takes

// Live tiles of every query tile, as headwise.patterns.tiles describes them.
struct Layout {
  const int32_t* which = nullptr;  // null: every query sees every key
  int64_t which_batch = 0;         // strides of `which`, 0 where all are alike
  int64_t which_head = 0;
  const int32_t* starts = nullptr;
  int64_t starts_stride = 0;
  const int32_t* entries = nullptr;
  const uint64_t* bitmaps = nullptr;

  HEADWISE_INLINE const int32_t* starts_of(int64_t b, int64_t h) const noexcept {
    return starts + which[b * which_batch + h * which_head] * starts_stride;
  }
};

// A tensor (batch, heads, length, dim) of float32 with innermost stride 1; strides in elements.
template <class T>
struct Tensor4 {
  T* data = nullptr;
  int64_t batch = 0;
  int64_t head = 0;
  int64_t row = 0;

  HEADWISE_INLINE T* at(int64_t b, int64_t h, int64_t i) const noexcept {
    return data + b * batch + h * head + i * row;
  }
};

struct AttendArgs {
  Tensor4<const float> query, key, value;
  Tensor4<float> output;
  float* lse = nullptr;  // (batch, q_heads, q_len) contiguous, or null

  // (batch, q_heads, q_len, kv_len) with any strides, or null.
  Tensor4<const float> bias;
  int64_t bias_column = 0;

  int64_t batches = 0, q_heads = 0, kv_heads = 0, q_len = 0, kv_len = 0;
  int64_t head_dim = 0, value_dim = 0;
  float scale = 1.0F;
  Layout layout;

  HEADWISE_INLINE int64_t group() const noexcept { return q_heads / kv_heads; }
  HEADWISE_INLINE int64_t query_tiles() const noexcept {
    return (q_len + kQueryTile - 1) / kQueryTile;
  }
  HEADWISE_INLINE int64_t key_tiles() const noexcept { return (kv_len + kKeyTile - 1) / kKeyTile; }
  // Whether keys are split among tasks. It depends on the number of queries alone, so that keys
  // padded on the right change no bits. With more, a tile has rows enough and needs no merging.
  HEADWISE_INLINE bool splits_keys() const noexcept { return kv_len > 0 && q_len <= kFewQueries; }
  HEADWISE_INLINE int64_t chunks() const noexcept {
    return (key_tiles() + kChunkTiles - 1) / kChunkTiles;
  }
};

// Functions that compute one task on one thread. Sizes of workspaces are in floats.
struct KernelTable {
  const char* name;

  // A query tile of one head against all its live key tiles.
  int64_t (*tile_workspace)(const AttendArgs&) noexcept;
  void (*attend_tile)(const AttendArgs&, int64_t task, float* workspace) noexcept;

  // Few queries: all rows of one key/value head against one chunk of keys, into `partials`;
  // then the partial results of one row are merged in the order of the keys.
  int64_t (*chunk_workspace)(const AttendArgs&) noexcept;
  int64_t (*partial_size)(const AttendArgs&) noexcept;
  void (*attend_chunk)(const AttendArgs&, int64_t task, float* partials, float* workspace) noexcept;
  void (*merge_row)(const AttendArgs&, int64_t task, const float* partials) noexcept;
};

}  // namespace headwise
