// One lane, plain C++: what every other vector header has to mean.
#pragma once

#include <cstdint>

namespace {

struct Vec {
  using Reg = float;
  using Mask = bool;
  static constexpr int64_t width = 1;
  static constexpr int64_t block_rows = 4;
  static constexpr int64_t block_regs = 4;
  static constexpr int64_t few_rows = 4;

  static Reg load(const float* p) noexcept { return *p; }
  static Reg load_partial(const float* p, int64_t n) noexcept { return n > 0 ? *p : 0.0F; }
  static void store(float* p, Reg a) noexcept { *p = a; }
  static void store_partial(float* p, Reg a, int64_t n) noexcept {
    if (n > 0) *p = a;
  }
  static Reg set(float x) noexcept { return x; }
  static Reg add(Reg a, Reg b) noexcept { return a + b; }
  static Reg sub(Reg a, Reg b) noexcept { return a - b; }
  static Reg mul(Reg a, Reg b) noexcept { return a * b; }
  static Reg fma(Reg a, Reg b, Reg c) noexcept { return a * b + c; }
  // The second argument where either is NaN, as on x86.
  static Reg max(Reg a, Reg b) noexcept { return a > b ? a : b; }
  static float sum(Reg a) noexcept { return a; }

  static void four_sums(const Reg* four, float* sums) noexcept {
    for (int i = 0; i < 4; ++i) sums[i] = four[i];
  }

  static Mask bits(uint64_t word, int64_t lane) noexcept { return ((word >> lane) & 1U) != 0; }
  static Mask equal(Reg a, Reg b) noexcept { return a == b; }
  static Reg select(Mask m, Reg yes, Reg no) noexcept { return m ? yes : no; }

  static Reg power_of_two(Reg shifted) noexcept {
    return __builtin_bit_cast(float, __builtin_bit_cast(uint32_t, shifted) << 23U);
  }

  static void transpose(const float* from, int64_t /*from_stride*/, float* to,
                        int64_t /*to_stride*/) noexcept {
    *to = *from;
  }
};

}  // namespace
