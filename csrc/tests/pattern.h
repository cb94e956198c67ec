// Who may attend to whom, spelled out pair by pair, and as the kernels read it.
#pragma once

#include <cstdint>
#include <vector>

#include "draw.h"
#include "guarded.h"
#include "kernel_table.h"

namespace headwise::testing {

class Pattern {
 public:
  Pattern() = default;  // everybody sees everything
  Pattern(Draw& draw, int64_t batches, int64_t heads, int64_t q_len, int64_t kv_len, Side side);

  bool there() const { return there_; }
  bool allows(int64_t b, int64_t h, int64_t i, int64_t j) const {
    return !there_ || allowed_[static_cast<size_t>((plain(b, h) * q_len_ + i) * kv_len_ + j)];
  }
  Layout layout() const;

 private:
  int64_t plain(int64_t b, int64_t h) const {
    return which_.as<int32_t>()[b * which_batch_ + h * which_head_];
  }
  void draw_pairs(Draw& draw, int64_t number);
  void spell_tiles(Draw& draw, int64_t count, Side side);
  void find_ranges(int64_t count, Side side);

  bool there_ = false;
  int64_t q_len_ = 0, kv_len_ = 0;
  int64_t which_batch_ = 0, which_head_ = 0;
  std::vector<bool> allowed_;  // plain layouts x queries x keys
  int64_t blocks_ = 0;         // that somebody sees; 0 where ranges are not told
  GuardedMemory which_, starts_, entries_, bitmaps_, ranges_;
};

}  // namespace headwise::testing
