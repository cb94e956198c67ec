// NEON on 64-bit Arm: 4 lanes of float32.
#pragma once

#include <arm_neon.h>

#include <cstdint>

#include "kernel_table.h"

namespace {

using headwise::BFloat16;
using headwise::Float16;

struct Vec {
  using Reg = float32x4_t;
  using Mask = uint32x4_t;
  using Int = uint32x4_t;
  static constexpr int64_t width = 4;
  static constexpr int64_t block_rows = 8;
  static constexpr int64_t block_regs = 3;
  static constexpr int64_t few_rows = 4;
  static constexpr int64_t chain = 16;      // numbers summed in a row; see product.h
  static constexpr int64_t chain_rows = 4;  // rows of a register block of such sums

  static Reg load(const float* p) noexcept { return vld1q_f32(p); }
  static Reg load(const BFloat16* p) noexcept {
    return vreinterpretq_f32_u32(vshll_n_u16(vld1_u16(&p->bits), 16));
  }
  static Reg load(const Float16* p) noexcept {
    return vcvt_f32_f16(vreinterpret_f16_u16(vld1_u16(&p->bits)));
  }
  static Reg load(const int8_t* p) noexcept {
    int32_t four;
    __builtin_memcpy(&four, p, sizeof(four));
    const int16x8_t wide = vmovl_s8(vreinterpret_s8_s32(vdup_n_s32(four)));
    return vcvtq_f32_s32(vmovl_s16(vget_low_s16(wide)));
  }
  template <class T>
  static Reg load_partial(const T* p, int64_t n) noexcept {
    T lanes[4] = {};
    for (int64_t i = 0; i < n; ++i) lanes[i] = p[i];
    return load(lanes);
  }
  static void store(float* p, Reg a) noexcept { vst1q_f32(p, a); }
  static void store(BFloat16* p, Reg a) noexcept {
    const Int bits = vreinterpretq_u32_f32(a);
    const Int odd = vandq_u32(vshrq_n_u32(bits, 16), vdupq_n_u32(1));
    const Int sum = vaddq_u32(bits, vaddq_u32(odd, vdupq_n_u32(0x7FFF)));
    const Int all = vbslq_u32(vceqq_f32(a, a), vshrq_n_u32(sum, 16), vdupq_n_u32(0x7FC0));
    vst1_u16(&p->bits, vmovn_u32(all));
  }
  static void store(Float16* p, Reg a) noexcept {
    vst1_u16(&p->bits, vreinterpret_u16_f16(vcvt_f16_f32(a)));
  }
  template <class T>
  static void store_partial(T* p, Reg a, int64_t n) noexcept {
    T lanes[4];
    store(lanes, a);
    for (int64_t i = 0; i < n; ++i) p[i] = lanes[i];
  }
  static Reg set(float x) noexcept { return vdupq_n_f32(x); }
  static Reg count_up() noexcept { return vcvtq_f32_u32(count_up_int()); }
  static Reg add(Reg a, Reg b) noexcept { return vaddq_f32(a, b); }
  static Reg sub(Reg a, Reg b) noexcept { return vsubq_f32(a, b); }
  static Reg mul(Reg a, Reg b) noexcept { return vmulq_f32(a, b); }
  static Reg div(Reg a, Reg b) noexcept { return vdivq_f32(a, b); }
  static Reg abs(Reg a) noexcept { return vabsq_f32(a); }
  static Reg fma(Reg a, Reg b, Reg c) noexcept { return vfmaq_f32(c, a, b); }
  static Reg max(Reg a, Reg b) noexcept { return vbslq_f32(vcgtq_f32(a, b), a, b); }
  static float sum(Reg a) noexcept { return vaddvq_f32(a); }
  static float highest(Reg a) noexcept { return vmaxvq_f32(a); }

  static void four_sums(const Reg* four, float* sums) noexcept {
    store(sums, vpaddq_f32(vpaddq_f32(four[0], four[1]), vpaddq_f32(four[2], four[3])));
  }

  static Mask bits(uint64_t word, int64_t lane) noexcept {
    const uint32_t weights[4] = {1, 2, 4, 8};
    const uint32x4_t each = vld1q_u32(weights);
    return vtstq_u32(vdupq_n_u32(static_cast<uint32_t>((word >> lane) & 0xFU)), each);
  }
  static Mask equal(Reg a, Reg b) noexcept { return vceqq_f32(a, b); }
  static Mask less(Reg a, Reg b) noexcept { return vcltq_f32(a, b); }
  static Reg select(Mask m, Reg yes, Reg no) noexcept { return vbslq_f32(m, yes, no); }

  static Reg power_of_two(Reg shifted) noexcept {
    return vreinterpretq_f32_u32(vshlq_n_u32(vreinterpretq_u32_f32(shifted), 23));
  }

  static Int set_int(uint32_t x) noexcept { return vdupq_n_u32(x); }
  static Int count_up_int() noexcept {
    const uint32_t numbers[4] = {0, 1, 2, 3};
    return vld1q_u32(numbers);
  }
  static Int add_int(Int a, Int b) noexcept { return vaddq_u32(a, b); }
  static Int xor_int(Int a, Int b) noexcept { return veorq_u32(a, b); }
  static Int mul_wide(Int a, uint32_t b, Int& high) noexcept {
    const uint64x2_t lower = vmull_u32(vget_low_u32(a), vdup_n_u32(b));
    const uint64x2_t upper = vmull_u32(vget_high_u32(a), vdup_n_u32(b));
    high = vcombine_u32(vshrn_n_u64(lower, 32), vshrn_n_u64(upper, 32));
    return vcombine_u32(vmovn_u64(lower), vmovn_u64(upper));
  }
  static Mask at_least(Int a, uint32_t least) noexcept { return vcgeq_u32(a, vdupq_n_u32(least)); }

  // Writes the 4 x 4 block at `from` turned round to `to`.
  static void transpose(const float* from, int64_t from_stride, float* to,
                        int64_t to_stride) noexcept {
    const float32x4x2_t upper = vtrnq_f32(load(from), load(from + from_stride));
    const float32x4x2_t lower =
        vtrnq_f32(load(from + 2 * from_stride), load(from + 3 * from_stride));
    for (int i = 0; i < 2; ++i) {
      store(to + i * to_stride,
            vcombine_f32(vget_low_f32(upper.val[i]), vget_low_f32(lower.val[i])));
      store(to + (i + 2) * to_stride,
            vcombine_f32(vget_high_f32(upper.val[i]), vget_high_f32(lower.val[i])));
    }
  }
};

}  // namespace
