// The product of two matrices, a block of registers at a time.
#pragma once

#include "kernels/numbers.h"

namespace {

// The left factor: one word at a time, for all lanes. Word `s` of row `r` is at r * row + s * step.
struct Left {
  const Word* data;
  int64_t row, step;
};

// The right factor: lanes of words, `step` words apart.
struct Right {
  const float* data;
  int64_t step;
};

// kRows x kRegs registers, held over all steps; `finish(row, register, sum)` takes each sum. With
// chains, so many words are summed from zero and then added, which keeps rounding errors small.
template <class Numbers, int64_t kRows, int64_t kRegs, int64_t kChain, class Finish>
HEADWISE_INLINE void product_block(const Word* const* left, int64_t left_step, const float* right,
                                   int64_t right_step, int64_t steps, Finish finish) noexcept {
  Vec::Reg sum[kRows][kRegs];
  Vec::Reg total[kRows][kRegs];
  int64_t at = 0;
  const auto run = [&](int64_t count) noexcept {
#pragma GCC unroll 8
    for (int64_t r = 0; r < kRows; ++r) {
#pragma GCC unroll 4
      for (int64_t v = 0; v < kRegs; ++v) sum[r][v] = Vec::set(0.0F);
    }
    for (int64_t s = 0; s < count; ++s, at += left_step, right += right_step) {
      Vec::Reg lanes[kRegs];
#pragma GCC unroll 4
      for (int64_t v = 0; v < kRegs; ++v) lanes[v] = Vec::load(right + v * Vec::width);
#pragma GCC unroll 8
      for (int64_t r = 0; r < kRows; ++r) {
        const Vec::Reg word = Vec::set(left[r][at]);
#pragma GCC unroll 4
        for (int64_t v = 0; v < kRegs; ++v) {
          sum[r][v] = Numbers::multiply_add(lanes[v], word, sum[r][v]);
        }
      }
    }
  };
  const auto each = [&](auto take) noexcept {
#pragma GCC unroll 8
    for (int64_t r = 0; r < kRows; ++r) {
#pragma GCC unroll 4
      for (int64_t v = 0; v < kRegs; ++v) take(r, v);
    }
  };
  if constexpr (kChain == 0) {
    run(steps);
    each([&](int64_t r, int64_t v) noexcept { finish(r, v, sum[r][v]); });
  } else {
    each([&](int64_t r, int64_t v) noexcept { total[r][v] = Vec::set(0.0F); });
    for (int64_t s = 0; s < steps; s += kChain) {
      run(smaller(steps - s, kChain));
      each([&](int64_t r, int64_t v) noexcept { total[r][v] = Vec::add(total[r][v], sum[r][v]); });
    }
    each([&](int64_t r, int64_t v) noexcept { finish(r, v, total[r][v]); });
  }
}

// How many words are summed in a row, for sums over many; 0: all of them. See product_block.
template <class Numbers>
constexpr int64_t chain_of = Numbers::per_word == 1 ? Vec::chain : 0;

// Rows of a register block beside `registers` registers of lanes. One register alone needs more
// rows, for a sum waits for the one before it.
template <int64_t kChain>
constexpr int64_t rows_beside(int64_t registers) noexcept {
  if (registers == 1) return 8;
  return kChain == 0 ? Vec::block_rows : Vec::chain_rows;
}

template <class Numbers, int64_t kRegs, int64_t kChain, class Finish>
void multiply_lanes(Left left, int64_t rows, Right right, int64_t steps, Finish finish) noexcept {
  constexpr int64_t kRows = rows_beside<kChain>(kRegs);
  for (int64_t i = 0; i < rows; i += kRows) {
    const Word* row[kRows];
    for (int64_t r = 0; r < kRows; ++r) row[r] = left.data + smaller(i + r, rows - 1) * left.row;
    const int64_t real = rows - i;
    product_block<Numbers, kRows, kRegs, kChain>(row, left.step, right.data, right.step, steps,
                                                 [=](int64_t r, int64_t v, Vec::Reg sum) noexcept {
                                                   if (r < real) finish(i + r, v * Vec::width, sum);
                                                 });
  }
}

// Multiplies `rows` rows by `registers` registers of lanes over `steps` words. Each sum starts from
// zero; `finish(row, lane, sum)` says what becomes of it. Over few steps no chains are needed.
template <class Numbers, bool kManySteps = true, class Finish>
void multiply(Left left, int64_t rows, Right right, int64_t registers, int64_t steps,
              Finish finish) noexcept {
  constexpr int64_t kChain = kManySteps ? chain_of<Numbers> : 0;
  const int64_t blocks = (registers + Vec::block_regs - 1) / Vec::block_regs;
  const int64_t share = (registers + blocks - 1) / (blocks == 0 ? 1 : blocks);
  for (int64_t v = 0; v < registers; v += share) {
    const int64_t first = v * Vec::width;
    const Right lanes{right.data + first, right.step};
    const auto keep = [=](int64_t r, int64_t lane, Vec::Reg sum) noexcept {
      finish(r, first + lane, sum);
    };
    switch (smaller(registers - v, share)) {
      case 1: multiply_lanes<Numbers, 1, kChain>(left, rows, lanes, steps, keep); break;
      case 2: multiply_lanes<Numbers, 2, kChain>(left, rows, lanes, steps, keep); break;
      case 3: multiply_lanes<Numbers, 3, kChain>(left, rows, lanes, steps, keep); break;
      default: multiply_lanes<Numbers, Vec::block_regs, kChain>(left, rows, lanes, steps, keep);
    }
  }
}

}  // namespace
