// Few queries against keys, a register block at a time: the sums, and the scores they give.
#pragma once

#include "kernels/key_chunk.h"

namespace {

constexpr int64_t kRowBlock = Vec::few_rows;
constexpr int64_t kThree = kRowBlock < 3 ? kRowBlock : 3;
constexpr int64_t kRegs = 4;  // registers of keys, or of value columns, beside the queries

// Keys and values are asked for so many ahead: where several queries share a key, the processor's
// own prefetcher falls behind by half. They pass by the outer caches (the 0 of the hint), where
// they would drive out what is needed between calls. All of it was found by measurement; addresses
// past the end are harmless.
template <class T>
constexpr int64_t kAhead = sizeof(T) == 4 ? 16 : 64;
constexpr int64_t kLine = 64;  // bytes that are asked for at a time

template <class T>
HEADWISE_INLINE void ask_for(const T* at, int64_t register_number) noexcept {
  if (register_number * Vec::width * static_cast<int64_t>(sizeof(T)) % kLine != 0) return;
  __builtin_prefetch(at + register_number * Vec::width, 0, 0);
}

// kQueries queries x kRegs registers, of keys or of value columns.
template <int64_t kQueries>
struct Sums {
  Vec::Reg of[kQueries][kRegs];

  HEADWISE_INLINE void clear() noexcept {
#pragma GCC unroll 4
    for (int64_t r = 0; r < kQueries; ++r) {
#pragma GCC unroll 4
      for (int64_t v = 0; v < kRegs; ++v) of[r][v] = Vec::set(0.0F);
    }
  }
  HEADWISE_INLINE void add(const Sums& other) noexcept {
#pragma GCC unroll 4
    for (int64_t r = 0; r < kQueries; ++r) {
#pragma GCC unroll 4
      for (int64_t v = 0; v < kRegs; ++v) of[r][v] = Vec::add(of[r][v], other.of[r][v]);
    }
  }
};

constexpr int64_t kChainSteps = 16;  // so many products of a lane are summed and then added

// ---- scores -----------------------------------------------------------------------------------

// Adds the products of queries and keys from `d` on, `left` of them; the lanes run along head_dim.
template <class Numbers, int64_t kQueries>
HEADWISE_INLINE void add_products(Sums<kQueries>& sums, const float* const* queries,
                                  const typename Numbers::Element* const* keys, int64_t d,
                                  int64_t left) noexcept {
  Vec::Reg key[kRegs];
#pragma GCC unroll 4
  for (int64_t k = 0; k < kRegs; ++k) key[k] = Numbers::load(keys[k] + d, 0, left);
#pragma GCC unroll 4
  for (int64_t r = 0; r < kQueries; ++r) {
    const Vec::Reg query = Vec::load(queries[r] + d / Numbers::per_word);
#pragma GCC unroll 4
    for (int64_t k = 0; k < kRegs; ++k) {
      sums.of[r][k] = Numbers::multiply_add(query, key[k], sums.of[r][k]);
    }
  }
}

template <class Numbers, int64_t kQueries>
void score_rows(const Chunk& chunk, const Piece& piece, int64_t row) noexcept {
  using T = typename Numbers::Element;
  constexpr int64_t kStep = Vec::width * Numbers::per_word;
  const AttendArgs& a = *chunk.args;
  const float* queries[kQueries];
  for (int64_t r = 0; r < kQueries; ++r) {
    queries[r] = chunk.queries + (row + r) * chunk.query_room;
  }
  const int64_t rest = a.head_dim % kStep;
  const int64_t whole = a.head_dim - rest;
  const int64_t stride = a.key.row;
  const T* key = stored_at<T>(chunk, a.key, piece.from);
  float* scores = chunk.scores + row * kChunk;
  for (int64_t j = piece.from; j < piece.to; j += kRegs, key += kRegs * stride) {
    const int64_t left = piece.to - j;
    const T* keys[kRegs] = {key, left > 1 ? key + stride : key, left > 2 ? key + 2 * stride : key,
                            left > 3 ? key + 3 * stride : key};
    Sums<kQueries> total;
    total.clear();
    for (int64_t first = 0; first < whole; first += kChainSteps * kStep) {
      Sums<kQueries> sums;
      sums.clear();
      for (int64_t d = first; d < smaller(first + kChainSteps * kStep, whole); d += kStep) {
        for (int64_t k = 0; k < kRegs; ++k) {
          __builtin_prefetch(key + (kAhead<T> + k) * stride + d, 0, 0);
        }
        add_products<Numbers>(sums, queries, keys, d, kStep);
      }
      total.add(sums);
    }
    if (rest > 0) add_products<Numbers>(total, queries, keys, whole, rest);
#pragma GCC unroll 4
    for (int64_t r = 0; r < kQueries; ++r) {
      float four[kRegs];
      Vec::four_sums(total.of[r], four);
      for (int64_t k = 0; k < kRegs && k < left; ++k) {
        scores[r * kChunk + j + k] = four[k] * a.scale;
      }
    }
  }
  if constexpr (Numbers::is_scaled) {
    for (int64_t r = 0; r < kQueries; ++r) {
      scale_piece(chunk, piece, scores + r * kChunk, a.store.key_scale, 1.0F);
    }
  }
}

}  // namespace
