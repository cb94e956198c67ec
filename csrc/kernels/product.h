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

// Multiplies `rows` rows by `registers` registers of lanes over `steps` words. Each sum starts from
// zero; `finish(row, lane, sum)` says what becomes of it. Over few steps no chains are needed.
template <class Numbers, bool kManySteps = true, class Finish>
void multiply(Left left, int64_t rows, Right right, int64_t registers, int64_t steps,
              Finish finish) noexcept {
  constexpr int64_t kChain = kManySteps && Numbers::per_word == 1 ? Vec::chain : 0;
  constexpr int64_t kRows = kChain == 0 ? Vec::block_rows : Vec::chain_rows;
  const int64_t blocks = (registers + Vec::block_regs - 1) / Vec::block_regs;
  const int64_t share = (registers + blocks - 1) / (blocks == 0 ? 1 : blocks);
  for (int64_t i = 0; i < rows; i += kRows) {
    const Word* row[kRows];
    for (int64_t r = 0; r < kRows; ++r) row[r] = left.data + smaller(i + r, rows - 1) * left.row;
    const int64_t real = rows - i;
    for (int64_t v = 0; v < registers; v += share) {
      const int64_t lane = v * Vec::width;
      const auto keep = [&](int64_t r, int64_t k, Vec::Reg sum) noexcept {
        if (r < real) finish(i + r, lane + k * Vec::width, sum);
      };
      const float* from = right.data + lane;
      switch (smaller(registers - v, share)) {
        case 1:
          product_block<Numbers, kRows, 1, kChain>(row, left.step, from, right.step, steps, keep);
          break;
        case 2:
          product_block<Numbers, kRows, 2, kChain>(row, left.step, from, right.step, steps, keep);
          break;
        case 3:
          product_block<Numbers, kRows, 3, kChain>(row, left.step, from, right.step, steps, keep);
          break;
        default:
          product_block<Numbers, kRows, Vec::block_regs, kChain>(row, left.step, from, right.step,
                                                                 steps, keep);
      }
    }
  }
}

}  // namespace
