// A linear map of few rows: what costs is reading the weights, and each is read once.

#include "kernels/numbers.h"

namespace {

using headwise::LinearArgs;

constexpr int64_t kSideBySide = 4;  // outputs that are summed at the same time
constexpr int64_t kRowsAtOnce = 4;
// Registers that one sum is spread over, so that narrow ones round no worse.
constexpr int64_t kSpread = Vec::width >= 8 ? 1 : 8 / Vec::width;

// The sums of one row and one output are made in an order that depends on the inputs alone, so that
// a row comes out the same whatever rows are beside it.
template <class Numbers, int64_t kRows>
HEADWISE_INLINE void multiply(const LinearArgs& a, int64_t row, int64_t output) noexcept {
  using T = typename Numbers::Element;
  constexpr int64_t step = Vec::width * Numbers::per_word;
  const T* from[kRows];
  for (int64_t r = 0; r < kRows; ++r)
    from[r] = static_cast<const T*>(a.input) + (row + r) * a.input_row;
  const T* weight[kSideBySide];
  for (int64_t o = 0; o < kSideBySide; ++o) {
    const int64_t there = output + o < a.outputs ? output + o : a.outputs - 1;
    weight[o] = static_cast<const T*>(a.weight) + there * a.weight_row;
  }
  Vec::Reg sum[kSpread][kRows][kSideBySide];
  const auto each = [&](auto take) noexcept {
#pragma GCC unroll 4
    for (int64_t r = 0; r < kRows; ++r) {
#pragma GCC unroll 4
      for (int64_t o = 0; o < kSideBySide; ++o) take(r, o);
    }
  };
#pragma GCC unroll 8
  for (int64_t s = 0; s < kSpread; ++s) {
    each([&](int64_t r, int64_t o) noexcept { sum[s][r][o] = Vec::set(0.0F); });
  }
  const auto add = [&](int64_t s, int64_t at, int64_t left) noexcept {
    Vec::Reg words[kRows];
#pragma GCC unroll 4
    for (int64_t r = 0; r < kRows; ++r) words[r] = Numbers::load(from[r] + at, 0, left);
#pragma GCC unroll 4
    for (int64_t o = 0; o < kSideBySide; ++o) {
      const Vec::Reg weights = Numbers::load(weight[o] + at, 0, left);
#pragma GCC unroll 4
      for (int64_t r = 0; r < kRows; ++r) {
        sum[s][r][o] = Numbers::multiply_add(words[r], weights, sum[s][r][o]);
      }
    }
  };
  int64_t at = 0;
  for (; at + kSpread * step <= a.inputs; at += kSpread * step) {
#pragma GCC unroll 8
    for (int64_t s = 0; s < kSpread; ++s) add(s, at + s * step, step);
  }
  for (; at < a.inputs; at += step) add(0, at, smaller(step, a.inputs - at));

  const int64_t count = smaller(kSideBySide, a.outputs - output);
#pragma GCC unroll 4
  for (int64_t r = 0; r < kRows; ++r) {
    Vec::Reg total[kSideBySide];
#pragma GCC unroll 4
    for (int64_t o = 0; o < kSideBySide; ++o) {
      total[o] = sum[0][r][o];
#pragma GCC unroll 8
      for (int64_t s = 1; s < kSpread; ++s) total[o] = Vec::add(total[o], sum[s][r][o]);
    }
    float found[kSideBySide];
    Vec::four_sums(total, found);
    for (int64_t o = 0; o < count; ++o) {
      if (a.bias != nullptr) found[o] += number_at(static_cast<const T*>(a.bias) + output + o);
      T* to = static_cast<T*>(a.output) + (row + r) * a.output_row + output + o;
      Vec::store_partial(to, Vec::set(found[o]), 1);
    }
  }
}

template <class Numbers>
void linear_rows(const LinearArgs& a, int64_t task) noexcept {
  const int64_t end = smaller(a.outputs, (task + 1) * a.task_outputs);
  for (int64_t output = task * a.task_outputs; output < end; output += kSideBySide) {
    int64_t row = 0;
    for (; row + kRowsAtOnce <= a.rows; row += kRowsAtOnce) {
      multiply<Numbers, kRowsAtOnce>(a, row, output);
    }
    switch (a.rows - row) {
      case 3: multiply<Numbers, 3>(a, row, output); break;
      case 2: multiply<Numbers, 2>(a, row, output); break;
      case 1: multiply<Numbers, 1>(a, row, output); break;
      default: break;
    }
  }
}

}  // namespace

namespace headwise::HEADWISE_ISA {

void fill_linear_rows(KernelTable& table) noexcept {
  table.of[0].linear_rows = linear_rows<Widened<float>>;
  table.of[1].linear_rows = linear_rows<ForBFloat16>;
  table.of[2].linear_rows = linear_rows<Widened<Float16>>;
}

}  // namespace headwise::HEADWISE_ISA
