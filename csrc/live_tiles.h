// Live tiles as the kernels read them: tensors that come from Python, checked once.
#pragma once

#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>

#include <utility>
#include <vector>

#include "kernel_table.h"

namespace headwise {

inline void require(bool holds, const char* rule) {
  if (!holds) throw nanobind::value_error(rule);
}

using Table32 = nanobind::ndarray<const int32_t, nanobind::pytorch, nanobind::ndim<2>,
                                  nanobind::c_contig, nanobind::device::cpu>;
using Table64 = nanobind::ndarray<const int64_t, nanobind::pytorch, nanobind::ndim<2>,
                                  nanobind::c_contig, nanobind::device::cpu>;

// Keeps the tensors alive.
class LiveTiles {
 public:
  LiveTiles(Table32 which, Table32 starts, Table32 entries, Table64 bitmaps)
      : which_(std::move(which)),
        starts_(std::move(starts)),
        entries_(std::move(entries)),
        bitmaps_(std::move(bitmaps)) {
    require(size(bitmaps_, 1) == kKeyTile && size(entries_, 1) == 3 && size(starts_, 1) > 0,
            "the tables do not describe tiles of these kernels");
    check_which();
    check_entries();
    find_ranges();
  }

  Layout layout(int64_t batches, int64_t q_heads, int64_t query_tiles, int64_t key_tiles) const {
    require((size(which_, 0) == 1 || size(which_, 0) == batches) &&
                (size(which_, 1) == 1 || size(which_, 1) == q_heads) &&
                size(starts_, 1) == query_tiles + 1 && key_tiles_ <= key_tiles,
            "the live tiles were made for a call of other sizes");
    Layout found;
    found.which = which_.data();
    found.which_batch = size(which_, 0) == 1 ? 0 : which_.stride(0);
    found.which_head = size(which_, 1) == 1 ? 0 : 1;
    found.starts = starts_.data();
    found.starts_stride = size(starts_, 1);
    found.entries = entries_.data();
    found.bitmaps = reinterpret_cast<const uint64_t*>(bitmaps_.data());
    found.ranges = ranges_.data();
    found.range_blocks = blocks();
    return found;
  }

 private:
  void check_which() const {
    for (int64_t i = 0; i < size(which_, 0) * size(which_, 1); ++i) {
      require(which_.data()[i] >= 0 && which_.data()[i] < size(starts_, 0),
              "a sample names a layout that is not there");
    }
  }

  // The kernels rely on runs that lie behind each other and name bitmaps that exist.
  void check_entries() {
    for (int64_t row = 0; row < size(starts_, 0); ++row) {
      const int32_t* starts = starts_.data() + row * size(starts_, 1);
      require(starts[0] >= 0, "entries start before the first one");
      for (int64_t tile = 0; tile + 1 < size(starts_, 1); ++tile) {
        require(starts[tile] <= starts[tile + 1] && starts[tile + 1] <= size(entries_, 0),
                "entries end behind the last one");
        int64_t free_from = 0;
        for (int32_t e = starts[tile]; e < starts[tile + 1]; ++e) {
          const int32_t* entry = entries_.data() + int64_t{e} * 3;
          require(entry[0] >= free_from && entry[1] > 0 && entry[2] >= -1 &&
                      entry[2] < size(bitmaps_, 0) && (entry[2] < 0 || entry[1] == 1),
                  "an entry overlaps another, names a bitmap that is not there, or one for several "
                  "tiles");
          free_from = int64_t{entry[0]} + entry[1];
          if (free_from > key_tiles_) key_tiles_ = free_from;
        }
      }
    }
  }

  int64_t blocks() const { return (key_tiles_ + kBlockTiles - 1) / kBlockTiles; }

  void find_ranges() {
    ranges_.assign(static_cast<size_t>(size(starts_, 0) * 2 * blocks()), 0);
    for (int64_t row = 0; row < size(starts_, 0); ++row) {
      const int32_t* starts = starts_.data() + row * size(starts_, 1);
      for (int32_t tile = 0; tile + 1 < size(starts_, 1); ++tile) {
        for (int32_t e = starts[tile]; e < starts[tile + 1]; ++e) {
          const int32_t* entry = entries_.data() + int64_t{e} * 3;
          const int64_t last = (entry[0] + int64_t{entry[1]} - 1) / kBlockTiles;
          for (int64_t block = entry[0] / kBlockTiles; block <= last; ++block) {
            int32_t* range = ranges_.data() + row * 2 * blocks() + 2 * block;
            if (range[1] == 0) range[0] = tile;
            range[1] = tile + 1;
          }
        }
      }
    }
  }

  static int64_t size(const auto& array, size_t axis) {
    return static_cast<int64_t>(array.shape(axis));
  }

  Table32 which_, starts_, entries_;
  Table64 bitmaps_;
  int64_t key_tiles_ = 0;        // behind the last one that anybody sees
  std::vector<int32_t> ranges_;  // for every plain layout and block: first query tile, behind last
};

}  // namespace headwise
