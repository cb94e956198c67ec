// AVX-512: 16 lanes of float32.
#pragma once

#include <immintrin.h>

#include <cstdint>

namespace {

struct Vec {
  using Reg = __m512;
  using Mask = __mmask16;
  static constexpr int64_t width = 16;
  static constexpr int64_t block_rows = 8;  // rows of a register block
  static constexpr int64_t block_regs = 3;  // registers of lanes beside them
  static constexpr int64_t few_rows = 4;    // queries of a block when there are few

  static Reg load(const float* p) noexcept { return _mm512_loadu_ps(p); }
  static Reg load_partial(const float* p, int64_t n) noexcept {
    return _mm512_maskz_loadu_ps(first(n), p);
  }
  static void store(float* p, Reg a) noexcept { _mm512_storeu_ps(p, a); }
  static void store_partial(float* p, Reg a, int64_t n) noexcept {
    _mm512_mask_storeu_ps(p, first(n), a);
  }
  static Reg set(float x) noexcept { return _mm512_set1_ps(x); }
  static Reg add(Reg a, Reg b) noexcept { return _mm512_add_ps(a, b); }
  static Reg sub(Reg a, Reg b) noexcept { return _mm512_sub_ps(a, b); }
  static Reg mul(Reg a, Reg b) noexcept { return _mm512_mul_ps(a, b); }
  static Reg fma(Reg a, Reg b, Reg c) noexcept { return _mm512_fmadd_ps(a, b, c); }
  static Reg max(Reg a, Reg b) noexcept { return _mm512_max_ps(a, b); }
  static float sum(Reg a) noexcept { return _mm512_reduce_add_ps(a); }

  // Writes the sum of the lanes of each of four registers.
  static void four_sums(const Reg* four, float* sums) noexcept {
    const Reg ab = add(_mm512_unpacklo_ps(four[0], four[1]), _mm512_unpackhi_ps(four[0], four[1]));
    const Reg cd = add(_mm512_unpacklo_ps(four[2], four[3]), _mm512_unpackhi_ps(four[2], four[3]));
    const Reg abcd = add(_mm512_shuffle_ps(ab, cd, 0x44), _mm512_shuffle_ps(ab, cd, 0xEE));
    const __m256 half =
        _mm256_add_ps(_mm512_castps512_ps256(abcd), _mm512_extractf32x8_ps(abcd, 1));
    _mm_storeu_ps(sums, _mm_add_ps(_mm256_castps256_ps128(half), _mm256_extractf128_ps(half, 1)));
  }

  static Mask bits(uint64_t word, int64_t lane) noexcept { return static_cast<Mask>(word >> lane); }
  static Mask equal(Reg a, Reg b) noexcept { return _mm512_cmp_ps_mask(a, b, _CMP_EQ_OQ); }
  static Reg select(Mask m, Reg yes, Reg no) noexcept { return _mm512_mask_blend_ps(m, no, yes); }

  // 2^n where the low bits of the float `shifted` hold n + 127; see vec_math.h.
  static Reg power_of_two(Reg shifted) noexcept {
    return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_castps_si512(shifted), 23));
  }

  // Writes the 16 x 16 block at `from` turned round to `to`.
  static void transpose(const float* from, int64_t from_stride, float* to,
                        int64_t to_stride) noexcept {
    Reg row[16];
    Reg next[16];
    for (int i = 0; i < 16; ++i) row[i] = load(from + i * from_stride);
    for (int i = 0; i < 8; ++i) {
      next[2 * i] = _mm512_unpacklo_ps(row[2 * i], row[2 * i + 1]);
      next[2 * i + 1] = _mm512_unpackhi_ps(row[2 * i], row[2 * i + 1]);
    }
    for (int i = 0; i < 4; ++i) {
      const Reg a = next[4 * i];
      const Reg b = next[4 * i + 1];
      const Reg c = next[4 * i + 2];
      const Reg d = next[4 * i + 3];
      row[4 * i] = _mm512_shuffle_ps(a, c, 0x44);
      row[4 * i + 1] = _mm512_shuffle_ps(a, c, 0xEE);
      row[4 * i + 2] = _mm512_shuffle_ps(b, d, 0x44);
      row[4 * i + 3] = _mm512_shuffle_ps(b, d, 0xEE);
    }
    for (int i = 0; i < 4; ++i) {
      next[i] = _mm512_shuffle_f32x4(row[i], row[i + 4], 0x88);
      next[i + 4] = _mm512_shuffle_f32x4(row[i], row[i + 4], 0xDD);
      next[i + 8] = _mm512_shuffle_f32x4(row[i + 8], row[i + 12], 0x88);
      next[i + 12] = _mm512_shuffle_f32x4(row[i + 8], row[i + 12], 0xDD);
    }
    for (int i = 0; i < 8; ++i) {
      store(to + i * to_stride, _mm512_shuffle_f32x4(next[i], next[i + 8], 0x88));
      store(to + (i + 8) * to_stride, _mm512_shuffle_f32x4(next[i], next[i + 8], 0xDD));
    }
  }

 private:
  static Mask first(int64_t n) noexcept { return static_cast<Mask>((1U << n) - 1U); }
};

}  // namespace
