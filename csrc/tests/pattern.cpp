#include "pattern.h"

#include <algorithm>
#include <cstring>

namespace headwise::testing {

namespace {

template <class T>
GuardedMemory copied(const std::vector<T>& from, Side side) {
  GuardedMemory memory(from.size() * sizeof(T), side);
  if (!from.empty()) std::memcpy(memory.as<void>(), from.data(), from.size() * sizeof(T));
  memory.seal();
  return memory;
}

int64_t tiles(int64_t length, int64_t tile) { return (length + tile - 1) / tile; }

}  // namespace

Pattern::Pattern(Draw& draw, int64_t batches, int64_t heads, int64_t q_len, int64_t kv_len,
                 Side side)
    : there_(true), q_len_(q_len), kv_len_(kv_len) {
  const int64_t rows = draw.chance(50) ? batches : 1;
  const int64_t columns = draw.chance(50) ? heads : 1;
  which_batch_ = rows == 1 ? 0 : columns;
  which_head_ = columns == 1 ? 0 : 1;
  const int64_t count = draw.between(1, 3);
  std::vector<int32_t> which(static_cast<size_t>(rows * columns));
  for (int32_t& number : which) number = static_cast<int32_t>(draw.below(count));
  which_ = copied(which, side);
  allowed_.resize(static_cast<size_t>(count * q_len * kv_len));
  for (int64_t number = 0; number < count; ++number) draw_pairs(draw, number);
  spell_tiles(draw, count, side);
  if (draw.chance(70)) find_ranges(count, side);
}

void Pattern::draw_pairs(Draw& draw, int64_t number) {
  const int64_t kind = draw.below(6);
  const int64_t offset = draw.chance(50) ? kv_len_ - q_len_ : draw.between(-q_len_, kv_len_);
  const int64_t reach = draw.between(0, 200);
  const int64_t keys = draw.between(0, kv_len_);
  const int percent = draw.one_of({1, 10, 50, 95});
  const int64_t columns = tiles(kv_len_, kKeyTile);
  std::vector<bool> live(static_cast<size_t>(tiles(q_len_, kQueryTile) * columns));
  for (size_t tile = 0; tile < live.size(); ++tile) live[tile] = draw.chance(60);
  for (int64_t i = 0; i < q_len_; ++i) {
    const bool closed_row = draw.chance(10);
    for (int64_t j = 0; j < kv_len_; ++j) {
      const int64_t distance = i + offset - j;
      const int64_t tile = i / kQueryTile * columns + j / kKeyTile;
      bool open = false;
      switch (kind) {
        case 0: open = distance >= 0; break;                        // causal
        case 1: open = distance >= 0 && distance <= reach; break;   // window
        case 2: open = !closed_row && draw.chance(percent); break;  // at random
        case 3: open = live[static_cast<size_t>(tile)]; break;      // whole tiles
        case 4: open = j < keys && !closed_row; break;              // padding
        default: open = false; break;                               // nobody sees anything
      }
      allowed_[static_cast<size_t>((number * q_len_ + i) * kv_len_ + j)] = open;
    }
  }
}

void Pattern::spell_tiles(Draw& draw, int64_t count, Side side) {
  std::vector<int32_t> starts;
  std::vector<int32_t> entries;
  std::vector<uint64_t> bitmaps;
  for (int64_t number = 0; number < count; ++number) {
    starts.push_back(static_cast<int32_t>(entries.size() / 3));
    for (int64_t first = 0; first < q_len_; first += kQueryTile) {
      int32_t run_end = -1;  // where the last entry ends, if it is a run without a bitmap
      for (int64_t key = 0; key < kv_len_; key += kKeyTile) {
        std::vector<uint64_t> bits(static_cast<size_t>(kKeyTile));
        bool any = false;
        bool all = true;
        for (int64_t i = first; i < std::min(first + kQueryTile, q_len_); ++i) {
          for (int64_t j = key; j < std::min(key + kKeyTile, kv_len_); ++j) {
            const bool open = allowed_[static_cast<size_t>((number * q_len_ + i) * kv_len_ + j)];
            any = any || open;
            all = all && open;
            if (open) bits[static_cast<size_t>(j - key)] |= uint64_t{1} << (i - first);
          }
        }
        const auto tile = static_cast<int32_t>(key / kKeyTile);
        if (!any) continue;
        if (all && run_end == tile && draw.chance(80)) {
          ++entries[entries.size() - 2];
          ++run_end;
          continue;
        }
        const bool whole = all && draw.chance(90);
        const auto bitmap = static_cast<int32_t>(bitmaps.size() / kKeyTile);
        entries.insert(entries.end(), {tile, 1, whole ? -1 : bitmap});
        if (!whole) bitmaps.insert(bitmaps.end(), bits.begin(), bits.end());
        run_end = whole ? tile + 1 : -1;
      }
      starts.push_back(static_cast<int32_t>(entries.size() / 3));
    }
  }
  starts_ = copied(starts, side);
  entries_ = copied(entries, side);
  bitmaps_ = copied(bitmaps, side);
}

// The first query tile that sees some of a block of keys, and the one behind the last.
void Pattern::find_ranges(int64_t count, Side side) {
  const int64_t keys = kBlockTiles * kKeyTile;
  const int64_t all = tiles(kv_len_, keys);
  std::vector<int32_t> ranges(static_cast<size_t>(count * all * 2));
  for (int64_t number = 0; number < count; ++number) {
    for (int64_t i = 0; i < q_len_; ++i) {
      for (int64_t j = 0; j < kv_len_; ++j) {
        if (!allowed_[static_cast<size_t>((number * q_len_ + i) * kv_len_ + j)]) continue;
        int32_t* range = &ranges[static_cast<size_t>((number * all + j / keys) * 2)];
        const auto tile = static_cast<int32_t>(i / kQueryTile);
        if (range[1] == 0) range[0] = tile;
        range[1] = tile + 1;
        blocks_ = std::max(blocks_, j / keys + 1);
      }
    }
  }
  std::vector<int32_t> seen;  // without the blocks behind the last that somebody sees
  for (int64_t number = 0; number < count; ++number) {
    const auto from = ranges.begin() + number * all * 2;
    seen.insert(seen.end(), from, from + blocks_ * 2);
  }
  ranges_ = copied(seen, side);
}

Layout Pattern::layout() const {
  Layout layout;
  if (!there_) return layout;
  layout.which = which_.as<int32_t>();
  layout.which_batch = which_batch_;
  layout.which_head = which_head_;
  layout.starts = starts_.as<int32_t>();
  layout.starts_stride = tiles(q_len_, kQueryTile) + 1;
  layout.entries = entries_.as<int32_t>();
  layout.bitmaps = bitmaps_.as<uint64_t>();
  layout.ranges = ranges_.as<int32_t>();
  layout.range_blocks = blocks_;
  return layout;
}

}  // namespace headwise::testing
