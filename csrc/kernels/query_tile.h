// What a task works on: a query tile of one head, and the keys of one key tile.
#pragma once

#include "kernels/numbers.h"

namespace {

using headwise::AttendArgs;
using headwise::kKeyTile;
using headwise::kQueryTile;

constexpr int64_t kLanes = kQueryTile;
constexpr int64_t kTileScores = kKeyTile * kLanes;
constexpr uint64_t kAllLanes = (uint64_t{1} << kLanes) - 1;

// Numbers of keys x 48 queries lie turned round, one row per key, so that the softmax is vertical.
struct Tile {
  const AttendArgs* args;
  int64_t batch, head, kv_head, first, rows;
  float scale;    // of scores, once they are shaped
  float* query;   // words of head_dim x 48
  float* scores;  // keys x 48
  float* bias;    // keys x 48, where there is one

  int64_t registers() const noexcept { return (rows + Vec::width - 1) / Vec::width; }
  int64_t lanes() const noexcept { return registers() * Vec::width; }
  uint64_t lanes_used() const noexcept { return kAllLanes >> (kLanes - rows); }
};

// The keys of a tile that are worked on: `from` to `to`, counted from `first`.
struct Keys {
  int64_t first, from, to;
  const uint64_t* bits;  // per key, counted from `first`; null where all lanes may see all

  int64_t count() const noexcept { return to - from; }
};

Tile make_tile(const AttendArgs& a, int64_t batch, int64_t head, int64_t number) noexcept {
  Tile tile{};
  tile.args = &a;
  tile.batch = batch;
  tile.head = head;
  tile.kv_head = head / a.group();
  tile.first = number * kQueryTile;
  tile.rows = smaller(a.q_len - tile.first, kQueryTile);
  return tile;
}

// The keys of a key tile that a lane may see, cut so that pairs of keys stay whole; none where
// `from` equals `to`.
template <class Numbers>
Keys live_keys(const Tile& tile, int64_t key_tile, const uint64_t* bits) noexcept {
  Keys keys{key_tile * kKeyTile, 0, 0, bits};
  keys.to = smaller(tile.args->kv_len - keys.first, kKeyTile);
  if (bits == nullptr) return keys;
  const uint64_t used = tile.lanes_used();
  while (keys.from < keys.to && (bits[keys.from] & used) == 0) ++keys.from;
  while (keys.from < keys.to && (bits[keys.to - 1] & used) == 0) --keys.to;
  if (keys.from < keys.to) keys.from -= keys.from % Numbers::per_word;
  return keys;
}

// Walks over the live key tiles of a query tile from `begin` to `end`.
class TileWalk {
 public:
  TileWalk() noexcept = default;
  TileWalk(const Tile& tile, int64_t begin, int64_t end) noexcept : end_(end) {
    const headwise::Layout& layout = tile.args->layout;
    bitmaps_ = layout.bitmaps;
    if (layout.which == nullptr) {
      number_ = begin;
      run_end_ = end;
      return;
    }
    const int32_t* starts = layout.starts_of(tile.batch, tile.head) + tile.first / kQueryTile;
    int32_t low = starts[0];
    for (int32_t high = starts[1]; low < high;) {  // to the first entry that ends behind `begin`
      const int32_t middle = low + (high - low) / 2;
      const int32_t* entry = layout.entries + int64_t{middle} * 3;
      if (int64_t{entry[0]} + entry[1] <= begin) {
        low = middle + 1;
      } else {
        high = middle;
      }
    }
    next_ = layout.entries + int64_t{low} * 3;
    last_ = layout.entries + int64_t{starts[1]} * 3;
    take_entry();
    if (number_ < begin) number_ = begin;
  }

  bool done() const noexcept { return number_ >= end_; }
  int64_t number() const noexcept { return number_; }
  const uint64_t* bits() const noexcept { return bits_; }
  void step() noexcept {
    if (++number_ >= run_end_) take_entry();
  }

 private:
  void take_entry() noexcept {
    if (next_ == last_) {
      number_ = end_;
      return;
    }
    number_ = next_[0];
    run_end_ = number_ + next_[1];
    bits_ = next_[2] < 0 ? nullptr : bitmaps_ + next_[2] * kKeyTile;
    next_ += 3;
  }

  const int32_t* next_ = nullptr;  // entries to come: first key tile, how many, bitmap
  const int32_t* last_ = nullptr;
  const uint64_t* bitmaps_ = nullptr;
  const uint64_t* bits_ = nullptr;
  int64_t number_ = 0, run_end_ = 0, end_ = 0;
};

// Copies a tile's rows as words into `room`, zeros up to a whole register of rows.
template <class Numbers, class T>
Rows copy_lanes(const Tile& tile, const T* from, int64_t stride, int64_t dim,
                float* room) noexcept {
  const Rows rows = copy_words<Numbers>(from, stride, tile.rows, dim, room);
  for (int64_t i = tile.rows * rows.row; i < tile.lanes() * rows.row; i += Vec::width) {
    Vec::store(room + i, Vec::set(0.0F));
  }
  return rows;
}

}  // namespace
