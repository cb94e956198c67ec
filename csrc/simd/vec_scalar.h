// One lane, plain C++: what every other vector header has to mean.
#pragma once

#include <cstdint>

#include "kernel_table.h"

namespace {

using headwise::BFloat16;
using headwise::Float16;

struct Vec {
  using Reg = float;
  using Mask = bool;
  using Int = uint32_t;
  static constexpr int64_t width = 1;
  static constexpr int64_t block_rows = 4;
  static constexpr int64_t block_regs = 4;
  static constexpr int64_t few_rows = 4;
  static constexpr int64_t chain = 16;      // numbers summed in a row; see product.h
  static constexpr int64_t chain_rows = 4;  // rows of a register block of such sums

  static Reg load(const float* p) noexcept { return *p; }
  static void store(float* p, Reg a) noexcept { *p = a; }

  static Reg load(const BFloat16* p) noexcept { return number(uint32_t{p->bits} << 16U); }
  static Reg load(const Float16* p) noexcept {
    const uint32_t sign = (p->bits & 0x8000U) << 16U;
    const uint32_t size = p->bits & 0x7FFFU;
    if (size < 0x0400U) return number(sign | bits_of(static_cast<float>(size) * 0x1p-24F));
    return number(sign | ((size << 13U) + (size < 0x7C00U ? 112U << 23U : 224U << 23U)));
  }
  static Reg load(const int8_t* p) noexcept { return static_cast<float>(*p); }
  template <class T>
  static Reg load_partial(const T* p, int64_t n) noexcept {
    return n > 0 ? load(p) : 0.0F;
  }
  // Rounds to nearest, ties to even, as every set does.
  static void store(BFloat16* p, Reg a) noexcept {
    const uint32_t bits = bits_of(a);
    const uint32_t rounded = (bits + 0x7FFFU + ((bits >> 16U) & 1U)) >> 16U;
    p->bits = static_cast<uint16_t>(a != a ? 0x7FC0U : rounded);
  }
  static void store(Float16* p, Reg a) noexcept {
    const uint32_t sign = bits_of(a) & 0x80000000U;
    const uint32_t size = bits_of(a) ^ sign;
    uint32_t half = 0;
    if (a != a) {
      half = 0x7E00U;
    } else if (size >= 0x477FF000U) {
      half = 0x7C00U;
    } else if (size < 0x38800000U) {
      half = bits_of(number(size) + 0.5F) - bits_of(0.5F);
    } else {
      half = (size + 0xFFFU + ((size >> 13U) & 1U) - (112U << 23U)) >> 13U;
    }
    p->bits = static_cast<uint16_t>(half | (sign >> 16U));
  }
  template <class T>
  static void store_partial(T* p, Reg a, int64_t n) noexcept {
    if (n > 0) store(p, a);
  }

  static Reg set(float x) noexcept { return x; }
  static Reg count_up() noexcept { return 0.0F; }
  static Reg add(Reg a, Reg b) noexcept { return a + b; }
  static Reg sub(Reg a, Reg b) noexcept { return a - b; }
  static Reg mul(Reg a, Reg b) noexcept { return a * b; }
  static Reg div(Reg a, Reg b) noexcept { return a / b; }
  static Reg abs(Reg a) noexcept { return __builtin_fabsf(a); }
  // Rounded once, as the processors do it, but for a rounding of the sum to double before.
  static Reg fma(Reg a, Reg b, Reg c) noexcept {
    return static_cast<float>(double{a} * double{b} + double{c});
  }
  // The second argument where either is NaN, as on x86.
  static Reg max(Reg a, Reg b) noexcept { return a > b ? a : b; }
  static float sum(Reg a) noexcept { return a; }
  static float highest(Reg a) noexcept { return a; }

  static void four_sums(const Reg* four, float* sums) noexcept {
    for (int i = 0; i < 4; ++i) sums[i] = four[i];
  }

  static Mask bits(uint64_t word, int64_t lane) noexcept { return ((word >> lane) & 1U) != 0; }
  static Mask equal(Reg a, Reg b) noexcept { return a == b; }
  static Mask less(Reg a, Reg b) noexcept { return a < b; }
  static Reg select(Mask m, Reg yes, Reg no) noexcept { return m ? yes : no; }

  static Reg power_of_two(Reg shifted) noexcept { return number(bits_of(shifted) << 23U); }

  static Int set_int(uint32_t x) noexcept { return x; }
  static Int count_up_int() noexcept { return 0; }
  static Int add_int(Int a, Int b) noexcept { return a + b; }
  static Int xor_int(Int a, Int b) noexcept { return a ^ b; }
  // The low half of the product; the high half goes to `high`.
  static Int mul_wide(Int a, uint32_t b, Int& high) noexcept {
    const uint64_t product = uint64_t{a} * b;
    high = static_cast<uint32_t>(product >> 32U);
    return static_cast<uint32_t>(product);
  }
  static Mask at_least(Int a, uint32_t least) noexcept { return a >= least; }

  static void transpose(const float* from, int64_t /*from_stride*/, float* to,
                        int64_t /*to_stride*/) noexcept {
    *to = *from;
  }

 private:
  static float number(uint32_t bits) noexcept { return __builtin_bit_cast(float, bits); }
  static uint32_t bits_of(float x) noexcept { return __builtin_bit_cast(uint32_t, x); }
};

}  // namespace
