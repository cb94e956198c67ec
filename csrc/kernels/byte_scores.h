// Scores of keys of 8 bits, by the processor's products of bytes: a query becomes integers of 15
// bits, of which each is two bytes. For bfloat16 queries, whose own rounding is coarser.
#pragma once

#include "kernels/key_chunk.h"

namespace {

constexpr int64_t kRegisterBytes = 64;  // numbers of a register
constexpr int64_t kHighest = 16256;     // 127 * 128
constexpr int64_t kWhole = 1024;        // numbers of a row whose products fit into 32 bits
constexpr int32_t kSplit = 128;         // a number is kSplit * high + low
constexpr uint32_t kLowZero = 64;
constexpr uint32_t kKeyZero = 128;  // what is added to a key, for the products want it without sign

// A query: its halves, what the products begin with to undo kKeyZero, and what a unit of it is
// worth. It fits into the room of a query in floats.
struct ByteQuery {
  int8_t* high;
  int8_t* low;
  int32_t* start;
  float* unit;

  ByteQuery(float* room, int64_t dim) noexcept
      : high(reinterpret_cast<int8_t*>(room)),
        low(high + padded(dim)),
        start(reinterpret_cast<int32_t*>(low + padded(dim))),
        unit(reinterpret_cast<float*>(start + Vec::width)) {}
  static int64_t padded(int64_t dim) noexcept {
    return (dim + kRegisterBytes - 1) / kRegisterBytes * kRegisterBytes;
  }
};

// In floats.
constexpr int64_t byte_query_room(int64_t dim) noexcept {
  return (dim + kRegisterBytes - 1) / kRegisterBytes * (2 * kRegisterBytes / 4) + Vec::width + 1;
}

#ifdef HEADWISE_HAS_BYTES
// Splits one query; numbers that are not finite make its unit NaN, and so all its scores.
template <class T>
void split_query(const T* from, int64_t dim, float* room) noexcept {
  const ByteQuery query(room, dim);
  const auto part = [&](int64_t c) noexcept {
    return c < dim ? Vec::load_partial(from + c, smaller(dim - c, Vec::width)) : Vec::set(0.0F);
  };
  Vec::Reg most = Vec::set(0.0F);
  for (int64_t c = 0; c < dim; c += Vec::width) most = Vec::max(most, Vec::abs(part(c)));
  const float highest = Vec::highest(most);
  const bool finite = all_finite(from, 0, 1, dim);
  const float most_units = static_cast<float>(dim <= kWhole ? kHighest : kHighest * kWhole / dim);
  *query.unit = finite ? highest / most_units : __builtin_nanf("");
  const bool usual = finite && highest > 0.0F;
  const Vec::Reg scale = Vec::set(usual ? most_units / highest : 0.0F);
  const Vec::Int low_zero = Vec::set_int(kLowZero);
  Vec::Int zeros = Vec::set_int(0);
  for (int64_t c = 0; c < ByteQuery::padded(dim); c += Vec::width) {
    const Vec::Int whole = usual ? Vec::to_int(Vec::mul(part(c), scale)) : Vec::set_int(0);
    const Vec::Int high = Vec::shift_right_int(Vec::add_int(whole, low_zero), 7);
    Vec::store_bytes(query.high + c, high);
    Vec::store_bytes(query.low + c, Vec::sub_int(whole, Vec::multiply_int(high, kSplit)));
    zeros = Vec::sub_int(zeros, Vec::multiply_int(whole, int32_t{kKeyZero}));
  }
  Vec::store_int(query.start, zeros);
}

// The products of two keys and kQueries queries, in units of the queries, before lanes are added
// up.
template <int64_t kQueries>
HEADWISE_INLINE void multiply_bytes(const ByteQuery* queries, const int8_t* const* keys,
                                    int64_t ahead, int64_t dim, Vec::Int (*sums)[4]) noexcept {
  const Vec::Int zero = Vec::set_int(0x80808080U);
  Vec::Int high[kQueries][2];
  Vec::Int low[kQueries][2];
#pragma GCC unroll 2
  for (int64_t k = 0; k < 2; ++k) {
#pragma GCC unroll 4
    for (int64_t r = 0; r < kQueries; ++r) {
      high[r][k] = Vec::set_int(0);
      low[r][k] = Vec::load_bytes(queries[r].start, kRegisterBytes);
    }
  }
  for (int64_t d = 0; d < dim; d += kRegisterBytes) {
    Vec::Int bytes[2];
#pragma GCC unroll 2
    for (int64_t k = 0; k < 2; ++k) {
      __builtin_prefetch(keys[k] + ahead + d, 0, 0);
      bytes[k] = Vec::xor_int(Vec::load_bytes(keys[k] + d, dim - d), zero);
    }
#pragma GCC unroll 4
    for (int64_t r = 0; r < kQueries; ++r) {
      const Vec::Int upper = Vec::load_bytes(queries[r].high + d, kRegisterBytes);
      const Vec::Int lower = Vec::load_bytes(queries[r].low + d, kRegisterBytes);
#pragma GCC unroll 2
      for (int64_t k = 0; k < 2; ++k) {
        high[r][k] = Vec::dot_bytes(bytes[k], upper, high[r][k]);
        low[r][k] = Vec::dot_bytes(bytes[k], lower, low[r][k]);
      }
    }
  }
#pragma GCC unroll 2
  for (int64_t k = 0; k < 2; ++k) {
#pragma GCC unroll 4
    for (int64_t r = 0; r < kQueries; ++r) {
      sums[r][k] = Vec::add_int(Vec::shift_left_int(high[r][k], 7), low[r][k]);
    }
  }
}

template <int64_t kQueries>
void score_bytes(const Chunk& chunk, const Piece& piece, int64_t row) noexcept {
  const AttendArgs& a = *chunk.args;
  const int64_t stride = a.key.row;
  const int8_t* key = stored_at<int8_t>(chunk, a.key, piece.from);
  const auto query = [&](int64_t r) noexcept {
    const int64_t last = smaller(r, kQueries - 1);
    return ByteQuery(chunk.queries + (row + last) * chunk.query_room, a.head_dim);
  };
  const ByteQuery queries[4] = {query(0), query(1), query(2), query(3)};
  for (int64_t j = piece.from; j < piece.to; j += 4, key += 4 * stride) {
    const int64_t left = piece.to - j;
    const int8_t* keys[4] = {key, left > 1 ? key + stride : key, left > 2 ? key + 2 * stride : key,
                             left > 3 ? key + 3 * stride : key};
    Vec::Int sums[4][4];
    multiply_bytes<kQueries>(queries, keys, 64 * stride, a.head_dim, sums);
    Vec::Int behind[kQueries][4];
    multiply_bytes<kQueries>(queries, keys + 2, 64 * stride, a.head_dim, behind);
#pragma GCC unroll 4
    for (int64_t r = 0; r < 4; ++r) {
      const int64_t row_of = smaller(r, kQueries - 1);
      sums[r][0] = sums[row_of][0];
      sums[r][1] = sums[row_of][1];
      sums[r][2] = behind[row_of][0];
      sums[r][3] = behind[row_of][1];
    }
    float found[Vec::width];
    Vec::store(found, Vec::to_float(Vec::sixteen_sums(sums)));
    for (int64_t r = 0; r < kQueries; ++r) {
      float* to = chunk.scores + (row + r) * kChunk + j;
      if (left >= 4) {
        __builtin_memcpy(to, found + 4 * r, 4 * sizeof(float));
      } else {
        for (int64_t k = 0; k < left; ++k) to[k] = found[4 * r + k];
      }
    }
  }
  for (int64_t r = 0; r < kQueries; ++r) {
    scale_piece(chunk, piece, chunk.scores + (row + r) * kChunk, a.store.key_scale,
                *queries[r].unit * a.scale);
  }
}
#endif

}  // namespace
