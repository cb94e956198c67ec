// NEON on 64-bit Arm: 4 lanes of float32.
#pragma once

#include <arm_neon.h>

#include <cstdint>

namespace {

struct Vec {
  using Reg = float32x4_t;
  using Mask = uint32x4_t;
  static constexpr int64_t width = 4;
  static constexpr int64_t block_rows = 8;
  static constexpr int64_t block_regs = 3;
  static constexpr int64_t few_rows = 4;

  static Reg load(const float* p) noexcept { return vld1q_f32(p); }
  static Reg load_partial(const float* p, int64_t n) noexcept {
    float lanes[4] = {0.0F, 0.0F, 0.0F, 0.0F};
    for (int64_t i = 0; i < n; ++i) lanes[i] = p[i];
    return vld1q_f32(lanes);
  }
  static void store(float* p, Reg a) noexcept { vst1q_f32(p, a); }
  static void store_partial(float* p, Reg a, int64_t n) noexcept {
    float lanes[4];
    vst1q_f32(lanes, a);
    for (int64_t i = 0; i < n; ++i) p[i] = lanes[i];
  }
  static Reg set(float x) noexcept { return vdupq_n_f32(x); }
  static Reg add(Reg a, Reg b) noexcept { return vaddq_f32(a, b); }
  static Reg sub(Reg a, Reg b) noexcept { return vsubq_f32(a, b); }
  static Reg mul(Reg a, Reg b) noexcept { return vmulq_f32(a, b); }
  static Reg fma(Reg a, Reg b, Reg c) noexcept { return vfmaq_f32(c, a, b); }
  static Reg max(Reg a, Reg b) noexcept { return vbslq_f32(vcgtq_f32(a, b), a, b); }
  static float sum(Reg a) noexcept { return vaddvq_f32(a); }

  static void four_sums(const Reg* four, float* sums) noexcept {
    store(sums, vpaddq_f32(vpaddq_f32(four[0], four[1]), vpaddq_f32(four[2], four[3])));
  }

  static Mask bits(uint64_t word, int64_t lane) noexcept {
    const uint32_t weights[4] = {1, 2, 4, 8};
    const uint32x4_t each = vld1q_u32(weights);
    return vtstq_u32(vdupq_n_u32(static_cast<uint32_t>((word >> lane) & 0xFU)), each);
  }
  static Mask equal(Reg a, Reg b) noexcept { return vceqq_f32(a, b); }
  static Reg select(Mask m, Reg yes, Reg no) noexcept { return vbslq_f32(m, yes, no); }

  static Reg power_of_two(Reg shifted) noexcept {
    return vreinterpretq_f32_u32(vshlq_n_u32(vreinterpretq_u32_f32(shifted), 23));
  }

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
