// How the numbers of a tensor become the words of 32 bits that the kernels multiply.
//
// A word is a float32, to which every dtype is widened, or a pair of bfloat16 where the
// instruction set multiplies pairs. A kernel is written on words, once.
#pragma once

#include "kernel_table.h"
#include "simd/vec_math.h"

namespace {

using headwise::BFloat16;
using headwise::Float16;

// Any 32 bits, wherever they lie.
typedef float Word __attribute__((may_alias, aligned(2)));

// Words of several rows, `row` words apart.
struct Rows {
  const Word* data;
  int64_t row;
};

constexpr int64_t whole_registers(int64_t lanes) noexcept {
  return (lanes + Vec::width - 1) / Vec::width * Vec::width;
}

// One number a word. Rows of float32 are used where they lie.
template <class T>
struct Widened {
  using Element = T;
  static constexpr int64_t per_word = 1;
  static constexpr bool is_direct = sizeof(T) == sizeof(float);
  static constexpr bool is_scaled = sizeof(T) == 1;  // every row times a scale of its own

  static Vec::Reg multiply_add(Vec::Reg a, Vec::Reg b, Vec::Reg sum) noexcept {
    return Vec::fma(a, b, sum);
  }
  static bool reads_in_place(int64_t /*dim*/, int64_t /*stride*/) noexcept { return is_direct; }
  static bool reads_rows_in_place() noexcept { return is_direct; }

  // Words of one row from column `c` on, `left` numbers of it; 0 behind them.
  static Vec::Reg load(const T* row, int64_t c, int64_t left) noexcept {
    return left >= Vec::width ? Vec::load(row + c) : Vec::load_partial(row + c, left);
  }
  // Words that go over rows: here, those of the one row.
  static Vec::Reg load_over(const T* row, const T* /*next*/, int64_t c, int64_t left) noexcept {
    return load(row, c, left);
  }
  static void clear_odd(float* words, int64_t count) noexcept {
    for (int64_t i = 0; i < count; ++i) {
      if (!(words[i] - words[i] == 0.0F)) words[i] = 0.0F;
    }
  }
  // Clears row `i` of words over rows.
  static void clear_row(float* words, int64_t row, int64_t i) noexcept {
    for (int64_t c = 0; c < row; ++c) words[i * row + c] = 0.0F;
  }
};

#ifdef HEADWISE_HAS_PAIRS
// Two numbers a word: neighbours of a row, or the same column of two rows.
struct Paired {
  using Element = BFloat16;
  static constexpr int64_t per_word = 2;
  static constexpr bool is_direct = false;
  static constexpr bool is_scaled = false;

  static Vec::Reg multiply_add(Vec::Reg a, Vec::Reg b, Vec::Reg sum) noexcept {
    return Vec::dot(a, b, sum);
  }
  static Vec::Reg pair(Vec::Reg low, Vec::Reg high) noexcept { return Vec::pair(low, high); }
  static void store_narrow(float* to, Vec::Reg numbers) noexcept {
    Vec::store_narrow(reinterpret_cast<BFloat16*>(to), numbers);
  }
  static bool reads_in_place(int64_t dim, int64_t stride) noexcept {
    return dim % 2 == 0 && stride % 2 == 0;
  }
  static bool reads_rows_in_place() noexcept { return false; }

  static Vec::Reg load(const BFloat16* row, int64_t c, int64_t left) noexcept {
    return Vec::load_pairs(row + 2 * c, smaller(left, 2 * Vec::width));
  }
  static Vec::Reg load_over(const BFloat16* row, const BFloat16* next, int64_t c,
                            int64_t left) noexcept {
    return Vec::load_row_pairs(row + c, next == nullptr ? nullptr : next + c,
                               smaller(left, Vec::width));
  }
  static void clear_odd(float* words, int64_t count) noexcept {
    for (int64_t i = 0; i < count; ++i) {
      auto pair = __builtin_bit_cast(uint32_t, words[i]);
      if ((pair & 0x7F80U) == 0x7F80U) pair &= 0xFFFF0000U;
      if ((pair & 0x7F800000U) == 0x7F800000U) pair &= 0xFFFFU;
      words[i] = __builtin_bit_cast(float, pair);
    }
  }
  static void clear_row(float* words, int64_t row, int64_t i) noexcept {
    const uint32_t stays = i % 2 == 0 ? 0xFFFF0000U : 0xFFFFU;
    for (float* at = words + i / 2 * row; at < words + (i / 2 + 1) * row; ++at) {
      *at = __builtin_bit_cast(float, __builtin_bit_cast(uint32_t, *at) & stays);
    }
  }
};

using ForBFloat16 = Paired;
#else
using ForBFloat16 = Widened<BFloat16>;
#endif

template <class Numbers>
constexpr int64_t words_of(int64_t dim) noexcept {
  return (dim + Numbers::per_word - 1) / Numbers::per_word;
}

// Copies `count` rows as words along the rows into `room`, rows of whole registers.
template <class Numbers>
Rows copy_words(const typename Numbers::Element* from, int64_t stride, int64_t count, int64_t dim,
                float* room) noexcept {
  const int64_t words = words_of<Numbers>(dim);
  const int64_t row = whole_registers(words);
  for (int64_t i = 0; i < count; ++i) {
    for (int64_t w = 0; w < words; w += Vec::width) {
      Vec::store(room + i * row + w,
                 Numbers::load(from + i * stride, w, dim - w * Numbers::per_word));
    }
  }
  return {room, row};
}

// Copies `count` rows as words over the rows: `per_word` rows become one of `dim` words.
template <class Numbers>
Rows copy_over(const typename Numbers::Element* from, int64_t stride, int64_t count, int64_t dim,
               float* room) noexcept {
  const int64_t row = whole_registers(dim);
  for (int64_t i = 0; i < count; i += Numbers::per_word) {
    const auto* here = from + i * stride;
    const auto* next = i + 1 < count ? here + stride : nullptr;
    float* to = room + i / Numbers::per_word * row;
    for (int64_t c = 0; c < dim; c += Vec::width) {
      Vec::store(to + c, Numbers::load_over(here, next, c, dim - c));
    }
  }
  return {room, row};
}

// Rows as words along the rows, in place where that is possible.
template <class Numbers>
Rows words_along(const typename Numbers::Element* from, int64_t stride, int64_t count, int64_t dim,
                 float* room) noexcept {
  if (Numbers::reads_in_place(dim, stride)) {
    return {reinterpret_cast<const Word*>(from), stride / Numbers::per_word};
  }
  return copy_words<Numbers>(from, stride, count, dim, room);
}

template <class T>
bool all_finite(const T* from, int64_t stride, int64_t count, int64_t dim) noexcept {
  const Vec::Reg zero = Vec::set(0.0F);
  Vec::Reg sum = zero;
  for (int64_t i = 0; i < count; ++i, from += stride) {
    int64_t c = 0;
    for (; c + Vec::width <= dim; c += Vec::width) {
      sum = Vec::fma(Vec::load(from + c), zero, sum);
    }
    if (c < dim) sum = Vec::fma(Vec::load_partial(from + c, dim - c), zero, sum);
  }
  return Vec::sum(sum) == 0.0F;
}

template <class T>
float number_at(const T* at) noexcept {
  float lanes[Vec::width];
  Vec::store(lanes, Vec::load_partial(at, 1));
  return lanes[0];
}

// Turns whole registers of rows round: word w of row i goes to `to[w * to_row + i]`.
inline void turn(Rows from, int64_t count, int64_t words, float* to, int64_t to_row) noexcept {
  const auto* data = reinterpret_cast<const float*>(from.data);
  for (int64_t i = 0; i < count; i += Vec::width) {
    for (int64_t w = 0; w < words; w += Vec::width) {
      Vec::transpose(data + i * from.row + w, from.row, to + w * to_row + i, to_row);
    }
  }
}

}  // namespace
