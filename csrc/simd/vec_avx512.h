// AVX-512: 16 lanes of float32; with AVX512_BF16, dot products of bfloat16 pairs as well.
#pragma once

#include <immintrin.h>

#include <cstdint>

#include "kernel_table.h"

#ifdef __AVX512BF16__
#define HEADWISE_HAS_PAIRS
#endif
#ifdef __AVX512VNNI__
#define HEADWISE_HAS_BYTES
#endif

namespace {

using headwise::BFloat16;
using headwise::Float16;

struct Vec {
  using Reg = __m512;
  using Mask = __mmask16;
  using Int = __m512i;
  static constexpr int64_t width = 16;
  static constexpr int64_t block_rows = 8;  // rows of a register block
  static constexpr int64_t block_regs = 3;  // registers of lanes beside them
  static constexpr int64_t few_rows = 4;    // queries of a block when there are few
  static constexpr int64_t chain = 16;      // numbers summed in a row; see product.h
  static constexpr int64_t chain_rows = 4;  // rows of a register block of such sums

  static Reg load(const float* p) noexcept { return _mm512_loadu_ps(p); }
  static Reg load_partial(const float* p, int64_t n) noexcept {
    return _mm512_maskz_loadu_ps(first(n), p);
  }
  static void store(float* p, Reg a) noexcept { _mm512_storeu_ps(p, a); }
  static void store_partial(float* p, Reg a, int64_t n) noexcept {
    _mm512_mask_storeu_ps(p, first(n), a);
  }

  static Reg load(const BFloat16* p) noexcept { return widen_bf16(load16(p)); }
  static Reg load(const Float16* p) noexcept { return _mm512_cvtph_ps(load16(p)); }
  static Reg load(const int8_t* p) noexcept {
    return widen_int8(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p)));
  }
  static Reg load_partial(const int8_t* p, int64_t n) noexcept {
    return widen_int8(_mm_maskz_loadu_epi8(first(n), p));
  }
  static Reg load_partial(const BFloat16* p, int64_t n) noexcept {
    return widen_bf16(_mm256_maskz_loadu_epi16(first(n), p));
  }
  static Reg load_partial(const Float16* p, int64_t n) noexcept {
    return _mm512_cvtph_ps(_mm256_maskz_loadu_epi16(first(n), p));
  }
  static void store(BFloat16* p, Reg a) noexcept { store_partial(p, a, width); }
  static void store(Float16* p, Reg a) noexcept { store_partial(p, a, width); }
  static void store_partial(BFloat16* p, Reg a, int64_t n) noexcept {
    const __m512i bits = _mm512_castps_si512(a);
    const __m512i odd = _mm512_and_si512(_mm512_srli_epi32(bits, 16), _mm512_set1_epi32(1));
    const __m512i sum = _mm512_add_epi32(bits, _mm512_add_epi32(odd, _mm512_set1_epi32(0x7FFF)));
    const Mask nan = _mm512_cmp_ps_mask(a, a, _CMP_UNORD_Q);
    const __m512i all =
        _mm512_mask_blend_epi32(nan, _mm512_srli_epi32(sum, 16), _mm512_set1_epi32(0x7FC0));
    _mm256_mask_storeu_epi16(p, first(n), _mm512_cvtepi32_epi16(all));
  }
  static void store_partial(Float16* p, Reg a, int64_t n) noexcept {
    _mm256_mask_storeu_epi16(p, first(n), _mm512_cvtps_ph(a, _MM_FROUND_TO_NEAREST_INT));
  }

  static Reg set(float x) noexcept { return _mm512_set1_ps(x); }
  static Reg count_up() noexcept { return _mm512_cvtepi32_ps(count_up_int()); }
  static Reg add(Reg a, Reg b) noexcept { return _mm512_add_ps(a, b); }
  static Reg sub(Reg a, Reg b) noexcept { return _mm512_sub_ps(a, b); }
  static Reg mul(Reg a, Reg b) noexcept { return _mm512_mul_ps(a, b); }
  static Reg div(Reg a, Reg b) noexcept { return _mm512_div_ps(a, b); }
  static Reg abs(Reg a) noexcept { return _mm512_abs_ps(a); }
  static Reg fma(Reg a, Reg b, Reg c) noexcept { return _mm512_fmadd_ps(a, b, c); }
  static Reg max(Reg a, Reg b) noexcept { return _mm512_max_ps(a, b); }
  static float sum(Reg a) noexcept { return _mm512_reduce_add_ps(a); }
  static float highest(Reg a) noexcept { return _mm512_reduce_max_ps(a); }

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
  static Mask less(Reg a, Reg b) noexcept { return _mm512_cmp_ps_mask(a, b, _CMP_LT_OQ); }
  static Reg select(Mask m, Reg yes, Reg no) noexcept { return _mm512_mask_blend_ps(m, no, yes); }

  // 2^n where the low bits of the float `shifted` hold n + 127; see vec_math.h.
  static Reg power_of_two(Reg shifted) noexcept {
    return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_castps_si512(shifted), 23));
  }

  static Int set_int(uint32_t x) noexcept { return _mm512_set1_epi32(static_cast<int32_t>(x)); }
  static Int count_up_int() noexcept {
    return _mm512_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15);
  }
  static Int add_int(Int a, Int b) noexcept { return _mm512_add_epi32(a, b); }
  static Int xor_int(Int a, Int b) noexcept { return _mm512_xor_si512(a, b); }
  static Int mul_wide(Int a, uint32_t b, Int& high) noexcept {
    const Int even = _mm512_mul_epu32(a, set_int(b));
    const Int odd = _mm512_mul_epu32(_mm512_srli_epi64(a, 32), set_int(b));
    high = _mm512_mask_blend_epi32(0xAAAA, _mm512_srli_epi64(even, 32), odd);
    return _mm512_mask_blend_epi32(0xAAAA, even, _mm512_slli_epi64(odd, 32));
  }
  static Mask at_least(Int a, uint32_t least) noexcept {
    return _mm512_cmp_epu32_mask(a, set_int(least), _MM_CMPINT_NLT);
  }

#ifdef HEADWISE_HAS_PAIRS
  // sum + a.low * b.low + a.high * b.high, where each lane holds a pair of bfloat16.
  static Reg dot(Reg a, Reg b, Reg sum) noexcept {
    return _mm512_dpbf16_ps(sum, reinterpret_cast<__m512bh>(a), reinterpret_cast<__m512bh>(b));
  }
  // Rounds two registers to bfloat16 and joins them lane by lane.
  static Reg pair(Reg low, Reg high) noexcept {
    const __m512i both = reinterpret_cast<__m512i>(_mm512_cvtne2ps_pbh(high, low));
    const __m512i order =
        _mm512_set_epi16(31, 15, 30, 14, 29, 13, 28, 12, 27, 11, 26, 10, 25, 9, 24, 8, 23, 7, 22, 6,
                         21, 5, 20, 4, 19, 3, 18, 2, 17, 1, 16, 0);
    return _mm512_castsi512_ps(_mm512_permutexvar_epi16(order, both));
  }
  // Rounds a register to bfloat16.
  static void store_narrow(BFloat16* p, Reg a) noexcept {
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(p),
                        reinterpret_cast<__m256i>(_mm512_cvtneps_pbh(a)));
  }
  // Neighbours of a row as pairs, and neighbouring rows as pairs; what is not there is 0.
  static Reg load_pairs(const BFloat16* p, int64_t numbers) noexcept {
    const auto there = static_cast<__mmask32>((uint64_t{1} << numbers) - 1U);
    return _mm512_castsi512_ps(_mm512_maskz_loadu_epi16(there, p));
  }
  static Reg load_row_pairs(const BFloat16* low, const BFloat16* high, int64_t n) noexcept {
    const Int lows = _mm512_cvtepu16_epi32(_mm256_maskz_loadu_epi16(first(n), low));
    if (high == nullptr) return _mm512_castsi512_ps(lows);
    const Int highs = _mm512_cvtepu16_epi32(_mm256_maskz_loadu_epi16(first(n), high));
    return _mm512_castsi512_ps(_mm512_or_si512(lows, _mm512_slli_epi32(highs, 16)));
  }
#endif

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

#ifdef HEADWISE_HAS_BYTES
  // 64 numbers of 8 bits, `n` of them from memory and 0 behind them.
  static Int load_bytes(const void* p, int64_t n) noexcept {
    const auto mask = n < 64 ? (uint64_t{1} << n) - 1 : ~uint64_t{0};
    return _mm512_maskz_loadu_epi8(mask, p);
  }
  // Adds the products of four neighbours to each lane: those of `a` without, of `b` with a sign.
  static Int dot_bytes(Int a, Int b, Int sum) noexcept { return _mm512_dpbusd_epi32(sum, a, b); }
  // Lane 4 * r + k: the sum of the lanes of parts[r][k].
  static Int sixteen_sums(const Int (*parts)[4]) noexcept {
    Int rows[4];
#pragma GCC unroll 4
    for (int r = 0; r < 4; ++r) {
      const Int* x = parts[r];
      const Int ab = add_int(_mm512_unpacklo_epi32(x[0], x[1]), _mm512_unpackhi_epi32(x[0], x[1]));
      const Int cd = add_int(_mm512_unpacklo_epi32(x[2], x[3]), _mm512_unpackhi_epi32(x[2], x[3]));
      rows[r] = add_int(_mm512_unpacklo_epi64(ab, cd), _mm512_unpackhi_epi64(ab, cd));
    }
    const auto lanes = [](Int a, Int b) noexcept {
      return add_int(_mm512_shuffle_i32x4(a, b, 0x88), _mm512_shuffle_i32x4(a, b, 0xDD));
    };
    return lanes(lanes(rows[0], rows[1]), lanes(rows[2], rows[3]));
  }
  // Two rows of 64 bytes as pairs of 16 bits: 64 columns in four registers, each lane one column
  // of both rows, in the order that `natural` undoes.
  static void pair_bytes(Int a, Int b, Int* pairs) noexcept {
    const Int low = _mm512_unpacklo_epi8(a, b);
    const Int high = _mm512_unpackhi_epi8(a, b);
    pairs[0] = _mm512_cvtepi8_epi16(_mm512_castsi512_si256(low));
    pairs[1] = _mm512_cvtepi8_epi16(_mm512_castsi512_si256(high));
    pairs[2] = _mm512_cvtepi8_epi16(_mm512_extracti64x4_epi64(low, 1));
    pairs[3] = _mm512_cvtepi8_epi16(_mm512_extracti64x4_epi64(high, 1));
  }
  static void natural(Int* four) noexcept {
    for (int i = 0; i < 4; i += 2) {
      const Int low = _mm512_shuffle_i64x2(four[i], four[i + 1], 0x44);
      four[i + 1] = _mm512_shuffle_i64x2(four[i], four[i + 1], 0xEE);
      four[i] = low;
    }
  }
  // Adds the products of pairs of 16 bits to each lane.
  static Int dot_words(Int a, Int b, Int sum) noexcept { return _mm512_dpwssd_epi32(sum, a, b); }
  // The lowest byte of each lane.
  static void store_bytes(int8_t* p, Int a) noexcept {
    _mm_storeu_si128(reinterpret_cast<__m128i*>(p), _mm512_cvtepi32_epi8(a));
  }
  static void store_int(int32_t* p, Int a) noexcept { _mm512_storeu_si512(p, a); }
  static Reg to_float(Int a) noexcept { return _mm512_cvtepi32_ps(a); }
  static Int to_int(Reg a) noexcept { return _mm512_cvtps_epi32(a); }
  static Int sub_int(Int a, Int b) noexcept { return _mm512_sub_epi32(a, b); }
  static Int shift_right_int(Int a, uint32_t bits) noexcept { return _mm512_srai_epi32(a, bits); }
  static Int multiply_int(Int a, int32_t b) noexcept {
    return _mm512_mullo_epi32(a, _mm512_set1_epi32(b));
  }
  static Int shift_left_int(Int a, uint32_t bits) noexcept { return _mm512_slli_epi32(a, bits); }
#endif

 private:
  static __m256i load16(const void* p) noexcept {
    return _mm256_loadu_si256(static_cast<const __m256i*>(p));
  }
  static Reg widen_int8(__m128i numbers) noexcept {
    return _mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(numbers));
  }
  static Reg widen_bf16(__m256i bits) noexcept {
    return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(bits), 16));
  }
  static Mask first(int64_t n) noexcept { return static_cast<Mask>((1U << n) - 1U); }
};

}  // namespace
