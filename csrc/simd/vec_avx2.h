// AVX2 with FMA: 8 lanes of float32.
#pragma once

#include <immintrin.h>

#include <cstdint>

#include "kernel_table.h"

namespace {

using headwise::BFloat16;
using headwise::Float16;

struct Vec {
  using Reg = __m256;
  using Mask = __m256;
  using Int = __m256i;
  static constexpr int64_t width = 8;
  static constexpr int64_t block_rows = 4;
  static constexpr int64_t block_regs = 3;
  static constexpr int64_t few_rows = 2;
  static constexpr int64_t chain = 32;      // numbers summed in a row; see product.h
  static constexpr int64_t chain_rows = 4;  // rows of a register block of such sums

  static Reg load(const float* p) noexcept { return _mm256_loadu_ps(p); }
  static Reg load_partial(const float* p, int64_t n) noexcept {
    return _mm256_maskload_ps(p, first(n));
  }
  static void store(float* p, Reg a) noexcept { _mm256_storeu_ps(p, a); }
  static void store_partial(float* p, Reg a, int64_t n) noexcept {
    _mm256_maskstore_ps(p, first(n), a);
  }

  static Reg load(const BFloat16* p) noexcept { return widen_bf16(load16(p)); }
  static Reg load(const Float16* p) noexcept { return _mm256_cvtph_ps(load16(p)); }
  static Reg load(const int8_t* p) noexcept {
    const __m128i numbers = _mm_loadl_epi64(reinterpret_cast<const __m128i*>(p));
    return _mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(numbers));
  }
  static Reg load_partial(const int8_t* p, int64_t n) noexcept {
    int8_t lanes[width] = {};
    for (int64_t i = 0; i < n; ++i) lanes[i] = p[i];
    return load(lanes);
  }
  static Reg load_partial(const BFloat16* p, int64_t n) noexcept {
    return widen_bf16(load16_partial(p, n));
  }
  static Reg load_partial(const Float16* p, int64_t n) noexcept {
    return _mm256_cvtph_ps(load16_partial(p, n));
  }
  static void store(BFloat16* p, Reg a) noexcept { store16(p, narrow_bf16(a), width); }
  static void store(Float16* p, Reg a) noexcept { store16(p, narrow_f16(a), width); }
  static void store_partial(BFloat16* p, Reg a, int64_t n) noexcept {
    store16(p, narrow_bf16(a), n);
  }
  static void store_partial(Float16* p, Reg a, int64_t n) noexcept { store16(p, narrow_f16(a), n); }

  static Reg set(float x) noexcept { return _mm256_set1_ps(x); }
  static Reg count_up() noexcept { return _mm256_cvtepi32_ps(count_up_int()); }
  static Reg add(Reg a, Reg b) noexcept { return _mm256_add_ps(a, b); }
  static Reg sub(Reg a, Reg b) noexcept { return _mm256_sub_ps(a, b); }
  static Reg mul(Reg a, Reg b) noexcept { return _mm256_mul_ps(a, b); }
  static Reg div(Reg a, Reg b) noexcept { return _mm256_div_ps(a, b); }
  static Reg abs(Reg a) noexcept { return _mm256_andnot_ps(_mm256_set1_ps(-0.0F), a); }
  static Reg fma(Reg a, Reg b, Reg c) noexcept { return _mm256_fmadd_ps(a, b, c); }
  static Reg max(Reg a, Reg b) noexcept { return _mm256_max_ps(a, b); }
  static float sum(Reg a) noexcept {
    __m128 half = _mm_add_ps(_mm256_castps256_ps128(a), _mm256_extractf128_ps(a, 1));
    half = _mm_add_ps(half, _mm_movehl_ps(half, half));
    return _mm_cvtss_f32(_mm_add_ss(half, _mm_movehdup_ps(half)));
  }
  static float highest(Reg a) noexcept {
    __m128 half = _mm_max_ps(_mm256_castps256_ps128(a), _mm256_extractf128_ps(a, 1));
    half = _mm_max_ps(half, _mm_movehl_ps(half, half));
    return _mm_cvtss_f32(_mm_max_ss(half, _mm_movehdup_ps(half)));
  }

  static void four_sums(const Reg* four, float* sums) noexcept {
    const Reg ab = add(_mm256_unpacklo_ps(four[0], four[1]), _mm256_unpackhi_ps(four[0], four[1]));
    const Reg cd = add(_mm256_unpacklo_ps(four[2], four[3]), _mm256_unpackhi_ps(four[2], four[3]));
    const Reg abcd = add(_mm256_shuffle_ps(ab, cd, 0x44), _mm256_shuffle_ps(ab, cd, 0xEE));
    _mm_storeu_ps(sums, _mm_add_ps(_mm256_castps256_ps128(abcd), _mm256_extractf128_ps(abcd, 1)));
  }

  static Mask bits(uint64_t word, int64_t lane) noexcept {
    const __m256i each = _mm256_setr_epi32(1, 2, 4, 8, 16, 32, 64, 128);
    const __m256i held = _mm256_set1_epi32(static_cast<int32_t>((word >> lane) & 0xFFU));
    return _mm256_castsi256_ps(_mm256_cmpeq_epi32(_mm256_and_si256(held, each), each));
  }
  static Mask equal(Reg a, Reg b) noexcept { return _mm256_cmp_ps(a, b, _CMP_EQ_OQ); }
  static Mask less(Reg a, Reg b) noexcept { return _mm256_cmp_ps(a, b, _CMP_LT_OQ); }
  static Reg select(Mask m, Reg yes, Reg no) noexcept { return _mm256_blendv_ps(no, yes, m); }

  static Reg power_of_two(Reg shifted) noexcept {
    return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_castps_si256(shifted), 23));
  }

  static Int set_int(uint32_t x) noexcept { return _mm256_set1_epi32(static_cast<int32_t>(x)); }
  static Int count_up_int() noexcept { return _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7); }
  static Int add_int(Int a, Int b) noexcept { return _mm256_add_epi32(a, b); }
  static Int xor_int(Int a, Int b) noexcept { return _mm256_xor_si256(a, b); }
  static Int mul_wide(Int a, uint32_t b, Int& high) noexcept {
    const Int even = _mm256_mul_epu32(a, set_int(b));
    const Int odd = _mm256_mul_epu32(_mm256_srli_epi64(a, 32), set_int(b));
    high = _mm256_blend_epi32(_mm256_srli_epi64(even, 32), odd, 0xAA);
    return _mm256_blend_epi32(even, _mm256_slli_epi64(odd, 32), 0xAA);
  }
  static Mask at_least(Int a, uint32_t least) noexcept {
    return _mm256_castsi256_ps(_mm256_cmpeq_epi32(_mm256_max_epu32(a, set_int(least)), a));
  }

  // Writes the 8 x 8 block at `from` turned round to `to`.
  static void transpose(const float* from, int64_t from_stride, float* to,
                        int64_t to_stride) noexcept {
    Reg row[8];
    Reg next[8];
    for (int i = 0; i < 8; ++i) row[i] = load(from + i * from_stride);
    for (int i = 0; i < 4; ++i) {
      next[2 * i] = _mm256_unpacklo_ps(row[2 * i], row[2 * i + 1]);
      next[2 * i + 1] = _mm256_unpackhi_ps(row[2 * i], row[2 * i + 1]);
    }
    for (int i = 0; i < 2; ++i) {
      row[4 * i] = _mm256_shuffle_ps(next[4 * i], next[4 * i + 2], 0x44);
      row[4 * i + 1] = _mm256_shuffle_ps(next[4 * i], next[4 * i + 2], 0xEE);
      row[4 * i + 2] = _mm256_shuffle_ps(next[4 * i + 1], next[4 * i + 3], 0x44);
      row[4 * i + 3] = _mm256_shuffle_ps(next[4 * i + 1], next[4 * i + 3], 0xEE);
    }
    for (int i = 0; i < 4; ++i) {
      store(to + i * to_stride, _mm256_permute2f128_ps(row[i], row[i + 4], 0x20));
      store(to + (i + 4) * to_stride, _mm256_permute2f128_ps(row[i], row[i + 4], 0x31));
    }
  }

 private:
  static __m128i load16(const void* p) noexcept {
    return _mm_loadu_si128(static_cast<const __m128i*>(p));
  }
  template <class T>
  static __m128i load16_partial(const T* p, int64_t n) noexcept {
    uint16_t lanes[width] = {};
    for (int64_t i = 0; i < n; ++i) lanes[i] = p[i].bits;
    return load16(lanes);
  }
  template <class T>
  static void store16(T* p, __m128i numbers, int64_t n) noexcept {
    if (n == width) {
      _mm_storeu_si128(reinterpret_cast<__m128i*>(p), numbers);
      return;
    }
    uint16_t lanes[width];
    _mm_storeu_si128(reinterpret_cast<__m128i*>(lanes), numbers);
    for (int64_t i = 0; i < n; ++i) p[i].bits = lanes[i];
  }
  static Reg widen_bf16(__m128i bits) noexcept {
    return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(bits), 16));
  }
  static __m128i narrow_bf16(Reg a) noexcept {
    const Int bits = _mm256_castps_si256(a);
    const Int odd = _mm256_and_si256(_mm256_srli_epi32(bits, 16), set_int(1));
    const Int sum = add_int(bits, add_int(odd, set_int(0x7FFF)));
    const Reg rounded = _mm256_castsi256_ps(_mm256_srli_epi32(sum, 16));
    const Reg nan = _mm256_castsi256_ps(set_int(0x7FC0));
    const Int all = _mm256_castps_si256(select(equal(a, a), rounded, nan));
    const Int packed = _mm256_packus_epi32(all, all);
    return _mm256_castsi256_si128(_mm256_permute4x64_epi64(packed, 0x08));
  }
  static __m128i narrow_f16(Reg a) noexcept {
    return _mm256_cvtps_ph(a, _MM_FROUND_TO_NEAREST_INT);
  }
  static __m256i first(int64_t n) noexcept {
    const __m256i lane = _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7);
    return _mm256_cmpgt_epi32(_mm256_set1_epi32(static_cast<int32_t>(n)), lane);
  }
};

}  // namespace
