// Weighted sums of values of 8 bits, by the processor's products of 16 bits: the weights of some
// keys become integers of 15 bits. For outputs of bfloat16, whose own rounding is coarser.
#pragma once

#include "kernels/key_chunk.h"

namespace {

#ifdef HEADWISE_HAS_BYTES
constexpr int64_t kColumns = 64;     // a block of them, in four registers
constexpr int64_t kKeysSummed = 64;  // keys whose weights share a unit
constexpr float kHighestWeight = 32767.0F;

// Turns the weights of keys `from` to `to` into pairs of integers; returns what a unit is worth.
// Weights that are not finite make it NaN.
inline float pair_weights(const float* weights, int64_t from, int64_t to, int32_t* pairs) noexcept {
  Vec::Reg most = Vec::set(0.0F);
  for (int64_t j = from; j < to; j += Vec::width) {
    most = Vec::max(most, Vec::abs(Vec::load_partial(weights + j, smaller(to - j, Vec::width))));
  }
  const float highest = Vec::highest(most);
  const bool finite = all_finite(weights + from, 0, 1, to - from);
  const float factor = finite && highest > 0.0F ? kHighestWeight / highest : 0.0F;
  int32_t whole[kKeysSummed];
  for (int64_t j = from; j < to; j += Vec::width) {
    const Vec::Reg part = Vec::load_partial(weights + j, smaller(to - j, Vec::width));
    const Vec::Reg scaled = factor > 0.0F ? Vec::mul(part, Vec::set(factor)) : Vec::set(0.0F);
    Vec::store_int(whole + j - from, Vec::to_int(scaled));
  }
  for (int64_t j = 0; j < to - from; j += 2) {
    const int32_t next = j + 1 < to - from ? whole[j + 1] : 0;
    pairs[j / 2] = static_cast<int32_t>((static_cast<uint32_t>(next) << 16U) |
                                        (static_cast<uint32_t>(whole[j]) & 0xFFFFU));
  }
  return finite ? highest / kHighestWeight : __builtin_nanf("");
}

// Adds the weighted values of one piece to the outputs of kQueries queries.
template <int64_t kQueries>
void mix_bytes(const Chunk& chunk, const Piece& piece, int64_t row, float* const* output) noexcept {
  const AttendArgs& a = *chunk.args;
  const int64_t stride = a.value.row;
  for (int64_t from = piece.from; from < piece.to; from += kKeysSummed) {
    const int64_t to = smaller(from + kKeysSummed, piece.to);
    int32_t weights[kQueries][kKeysSummed / 2];
    float unit[kQueries];
    for (int64_t r = 0; r < kQueries; ++r) {
      unit[r] = pair_weights(chunk.scores + (row + r) * kChunk, from, to, weights[r]);
    }
    const int8_t* first = stored_at<int8_t>(chunk, a.value, from);
    for (int64_t c = 0; c < a.value_dim; c += kColumns) {
      const int64_t left = a.value_dim - c;
      Vec::Int sums[kQueries][4];
#pragma GCC unroll 4
      for (int64_t r = 0; r < kQueries; ++r) {
#pragma GCC unroll 4
        for (int64_t v = 0; v < 4; ++v) sums[r][v] = Vec::set_int(0);
      }
      const int8_t* value = first + c;
      for (int64_t j = 0; j < to - from; j += 2, value += 2 * stride) {
        __builtin_prefetch(value + 64 * stride, 0, 0);
        __builtin_prefetch(value + 65 * stride, 0, 0);
        const bool two = j + 1 < to - from;
        Vec::Int pairs[4];
        Vec::pair_bytes(Vec::load_bytes(value, left),
                        two ? Vec::load_bytes(value + stride, left) : Vec::set_int(0), pairs);
#pragma GCC unroll 4
        for (int64_t r = 0; r < kQueries; ++r) {
          const Vec::Int weight = Vec::set_int(static_cast<uint32_t>(weights[r][j / 2]));
#pragma GCC unroll 4
          for (int64_t v = 0; v < 4; ++v) {
            sums[r][v] = Vec::dot_words(pairs[v], weight, sums[r][v]);
          }
        }
      }
#pragma GCC unroll 4
      for (int64_t r = 0; r < kQueries; ++r) {
        Vec::natural(sums[r]);
        const Vec::Reg worth = Vec::set(unit[r]);
        for (int64_t v = 0; v < 4 && v * Vec::width < left; ++v) {
          const int64_t columns = smaller(left - v * Vec::width, Vec::width);
          float* at = output[r] + c + v * Vec::width;
          const Vec::Reg sum =
              Vec::fma(Vec::to_float(sums[r][v]), worth, Vec::load_partial(at, columns));
          Vec::store_partial(at, sum, columns);
        }
      }
    }
  }
}
#endif

}  // namespace
