// Few queries against many keys (decoding): every chunk of keys is read once for all query heads
// that share it, chunks are cut by length alone, and their results are merged in order.

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
    queries[r] = chunk.queries + (row + r) * whole_registers(a.head_dim);
  }
  const int64_t rest = a.head_dim % kStep;
  const int64_t whole = a.head_dim - rest;
  const int64_t stride = a.key.row;
  const T* key = a.key.at<const T>(chunk.batch, chunk.kv_head, chunk.first + piece.from);
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
      for (int64_t k = 0; k < kRegs && k < left; ++k)
        scores[r * kChunk + j + k] = four[k] * a.scale;
    }
  }
}

template <class Numbers>
void score(const Chunk& chunk, const Piece& piece, int64_t row, int64_t rows) noexcept {
  switch (rows) {
    case 1: score_rows<Numbers, 1>(chunk, piece, row); break;
    case 2: score_rows<Numbers, 2>(chunk, piece, row); break;
    case 3: score_rows<Numbers, kThree>(chunk, piece, row); break;
    default: score_rows<Numbers, kRowBlock>(chunk, piece, row); break;
  }
}

// ---- softmax ----------------------------------------------------------------------------------

// Turns the scores of a row to weights, 0 to `keys`, whole registers; writes the highest score and
// the sum of the weights.
void soften(float* scores, int64_t keys, float* highest, float* total) noexcept {
  Vec::Reg top = Vec::set(kMinusInfinity);
  for (int64_t j = 0; j < keys; j += Vec::width) top = Vec::max(top, Vec::load(scores + j));
  const float most = Vec::highest(top);  // a NaN that it misses is in the sum
  const Vec::Reg base = Vec::set(most == kMinusInfinity ? 0.0F : most);
  const Factor factor(kLog2E);
  Vec::Reg sum = Vec::set(0.0F);
  for (int64_t j = 0; j < keys; j += Vec::width) {
    const Vec::Reg weight = exp2_below_zero(Vec::sub(Vec::load(scores + j), base), factor);
    Vec::store(scores + j, weight);
    sum = Vec::add(sum, weight);
  }
  *highest = most;
  *total = Vec::sum(sum);
}

// ---- values -----------------------------------------------------------------------------------

// So many keys are summed from zero and then added, which keeps rounding errors small.
constexpr int64_t kSummed = 64;

// Adds the weighted values of the keys `from` to `to`; the lanes run along value_dim.
template <class T, int64_t kQueries, class Load>
HEADWISE_INLINE void add_values(Sums<kQueries>& sums, const Chunk& chunk, int64_t from, int64_t to,
                                int64_t row, int64_t column, Load load) noexcept {
  const AttendArgs& a = *chunk.args;
  const int64_t stride = a.value.row;
  const float* weights = chunk.scores + row * kChunk;
  const T* value = a.value.at<const T>(chunk.batch, chunk.kv_head, chunk.first + from) + column;
  for (int64_t j = from; j < to; ++j, value += stride) {
    Vec::Reg number[kRegs];
#pragma GCC unroll 4
    for (int64_t v = 0; v < kRegs; ++v) {
      ask_for(value + kAhead<T> * stride, v);
      number[v] = load(value, v);
    }
#pragma GCC unroll 4
    for (int64_t r = 0; r < kQueries; ++r) {
      const Vec::Reg weight = Vec::set(weights[r * kChunk + j]);
#pragma GCC unroll 4
      for (int64_t v = 0; v < kRegs; ++v) {
        sums.of[r][v] = Vec::fma(weight, number[v], sums.of[r][v]);
      }
    }
  }
}

template <class T, int64_t kQueries>
void mix_rows(const Chunk& chunk, const Piece* pieces, int64_t count, int64_t row, int64_t column,
              float* const* output) noexcept {
  const int64_t columns = smaller(chunk.args->value_dim - column, kRegs * Vec::width);
  const auto left = [columns](int64_t v) noexcept {
    const int64_t n = columns - v * Vec::width;
    return n < 0 ? 0 : smaller(n, Vec::width);
  };
  for (int64_t p = 0; p < count; ++p) {
    for (int64_t from = pieces[p].from; from < pieces[p].to; from += kSummed) {
      const int64_t to = smaller(from + kSummed, pieces[p].to);
      Sums<kQueries> sums;
      sums.clear();
      if (columns == kRegs * Vec::width) {
        add_values<T>(sums, chunk, from, to, row, column, [](const T* at, int64_t v) noexcept {
          return Vec::load(at + v * Vec::width);
        });
      } else {
        add_values<T>(sums, chunk, from, to, row, column, [left](const T* at, int64_t v) noexcept {
          const int64_t n = left(v);
          return n == 0 ? Vec::set(0.0F) : Vec::load_partial(at + v * Vec::width, n);
        });
      }
#pragma GCC unroll 4
      for (int64_t r = 0; r < kQueries; ++r) {
#pragma GCC unroll 4
        for (int64_t v = 0; v < kRegs; ++v) {
          float* at = output[r] + column + v * Vec::width;
          const Vec::Reg whole = Vec::add(Vec::load_partial(at, left(v)), sums.of[r][v]);
          Vec::store_partial(at, whole, left(v));
        }
      }
    }
  }
}

template <class T>
void mix(const Chunk& chunk, const Piece* pieces, int64_t count, int64_t row, int64_t rows,
         float* const* output) noexcept {
  for (int64_t c = 0; c < chunk.args->value_dim; c += kRegs * Vec::width) {
    switch (rows) {
      case 1: mix_rows<T, 1>(chunk, pieces, count, row, c, output); break;
      case 2: mix_rows<T, 2>(chunk, pieces, count, row, c, output); break;
      case 3: mix_rows<T, kThree>(chunk, pieces, count, row, c, output); break;
      default: mix_rows<T, kRowBlock>(chunk, pieces, count, row, c, output); break;
    }
  }
}

// The same sums in the same order, leaving out keys that the row may not see: their weight is 0,
// and 0 times NaN would not be.
template <class T>
void mix_open_keys(const Chunk& chunk, const Piece* pieces, int64_t count, int64_t row,
                   float* output) noexcept {
  const AttendArgs& a = *chunk.args;
  const float* weights = chunk.scores + row * kChunk;
  for (int64_t c = 0; c < a.value_dim; c += Vec::width) {
    const int64_t columns = smaller(a.value_dim - c, Vec::width);
    Vec::Reg whole = Vec::set(0.0F);
    for (int64_t p = 0; p < count; ++p) {
      for (int64_t from = pieces[p].from; from < pieces[p].to; from += kSummed) {
        Vec::Reg sum = Vec::set(0.0F);
        for (int64_t j = from; j < smaller(from + kSummed, pieces[p].to); ++j) {
          if (is_closed(chunk, pieces[p], row, j)) continue;
          const T* value = a.value.at<const T>(chunk.batch, chunk.kv_head, chunk.first + j) + c;
          sum = Vec::fma(Vec::set(weights[j]), Vec::load_partial(value, columns), sum);
        }
        whole = Vec::add(whole, sum);
      }
    }
    Vec::store_partial(output + c, whole, columns);
  }
}

// ---- tasks ------------------------------------------------------------------------------------

// A partial result: the highest score, the sum of the weights, the weighted sum of the values.
int64_t partial_stride(const AttendArgs& a) noexcept { return a.value_dim + 2; }

template <class Numbers>
void take_rows(const Chunk& chunk, const Piece* pieces, int64_t count, int64_t row, int64_t rows,
               float* partials) noexcept {
  using T = typename Numbers::Element;
  const AttendArgs& a = *chunk.args;
  float* output[kRowBlock];
  const int64_t last = count == 0 ? 0 : pieces[count - 1].to;
  const int64_t keys = (last + Vec::width - 1) / Vec::width * Vec::width;
  for (int64_t p = 0; p < count; ++p) score<Numbers>(chunk, pieces[p], row, rows);
  for (int64_t r = 0; r < rows; ++r) {
    float* scores = chunk.scores + (row + r) * kChunk;
    int64_t done = 0;
    for (int64_t p = 0; p < count; ++p) {
      for (; done < pieces[p].from; ++done) scores[done] = kMinusInfinity;
      shape_row(chunk, pieces[p], row + r);
      done = pieces[p].to;
    }
    for (; done < keys; ++done) scores[done] = kMinusInfinity;
    float* partial = partials + (row + r) * partial_stride(a);
    soften(scores, keys, partial, partial + 1);
    if (a.dropout.threshold > 0) drop_row(chunk, row + r, keys);
    output[r] = partial + 2;
    for (int64_t c = 0; c < a.value_dim; ++c) output[r][c] = 0.0F;
  }
  mix<T>(chunk, pieces, count, row, rows, output);
  for (int64_t r = 0; r < rows; ++r) {
    if (!all_finite(output[r], 0, 1, a.value_dim)) {
      mix_open_keys<T>(chunk, pieces, count, row + r, output[r]);
    }
  }
}

int64_t chunk_workspace(const AttendArgs& a) noexcept {
  return a.group() * a.q_len * (kChunk + whole_registers(a.head_dim));
}

int64_t partial_size(const AttendArgs& a) noexcept {
  return a.group() * a.q_len * partial_stride(a);
}

template <class Numbers>
void attend_chunk(const AttendArgs& a, int64_t task, float* partials, float* workspace) noexcept {
  using T = typename Numbers::Element;
  const int64_t number = task % a.chunks();
  const int64_t kv_head = task / a.chunks() % a.kv_heads;
  Chunk chunk{&a, task / a.chunks() / a.kv_heads, kv_head, number * kChunk, workspace, nullptr};
  chunk.scores = workspace + chunk.rows() * whole_registers(a.head_dim);
  for (int64_t row = 0; row < chunk.rows(); ++row) {
    const T* query = a.query.at<const T>(chunk.batch, chunk.head(row), chunk.query(row));
    copy_words<Numbers>(query, 0, 1, a.head_dim, chunk.queries + row * whole_registers(a.head_dim));
  }
  float* mine = partials + task * partial_size(a);
  Piece pieces[kChunkTiles];
  // Rows of heads that see different keys are worked on apart.
  const bool alike = a.layout.which == nullptr || a.layout.which_head == 0;
  const int64_t share = alike ? chunk.rows() : a.q_len;
  for (int64_t start = 0; start < chunk.rows(); start += share) {
    const int64_t count = live_pieces(chunk, chunk.head(start), pieces);
    for (int64_t row = start; row < start + share; row += kRowBlock) {
      take_rows<Numbers>(chunk, pieces, count, row, smaller(start + share - row, kRowBlock), mine);
    }
  }
}

template <class T>
void merge_row(const AttendArgs& a, int64_t task, const float* partials, float* sums) noexcept {
  const int64_t i = task % a.q_len;
  const int64_t head = task / a.q_len % a.q_heads;
  const int64_t batch = task / a.q_len / a.q_heads;
  const int64_t row = head % a.group() * a.q_len + i;
  const int64_t first = (batch * a.kv_heads + head / a.group()) * a.chunks();
  const auto partial = [&](int64_t chunk) noexcept {
    return partials + (first + chunk) * partial_size(a) + row * partial_stride(a);
  };
  float highest = kMinusInfinity;
  bool sees = false;
  for (int64_t c = 0; c < a.chunks(); ++c) {
    const float most = partial(c)[0];
    highest = most > highest || most != most ? most : highest;
    sees = sees || partial(c)[1] != 0.0F;
  }
  float total = 0.0F;
  if (a.sinks != nullptr && sees) {
    const float sink = a.sinks[head];
    highest = sink > highest ? sink : highest;
    total = exp_of_one(sink - highest);
  }
  for (int64_t c = 0; c < a.value_dim; ++c) sums[c] = 0.0F;
  for (int64_t c = 0; c < a.chunks(); ++c) {
    const float* part = partial(c);
    if (part[1] == 0.0F) continue;  // sees nothing here; a NaN it does see is in the sum
    const float weight = part[0] == highest ? 1.0F : exp_of_one(part[0] - highest);
    total += part[1] * weight;
    for (int64_t v = 0; v < a.value_dim; ++v) sums[v] += part[2 + v] * weight;
  }
  const float factor = total == 0.0F ? 0.0F : a.dropout.factor / total;
  T* output = a.output.at<T>(batch, head, i);
  for (int64_t v = 0; v < a.value_dim; v += Vec::width) {
    const Vec::Reg whole = Vec::mul(Vec::load(sums + v), Vec::set(factor));
    Vec::store_partial(output + v, whole, smaller(a.value_dim - v, Vec::width));
  }
  if (a.lse == nullptr) return;
  if (total == 0.0F) {
    a.write_closed_lse(task);
  } else {
    a.write_lse(task, double{highest}, __builtin_log(double{total}));
  }
}

int64_t merge_workspace(const AttendArgs& a) noexcept { return whole_registers(a.value_dim); }

template <class Numbers>
void fill(headwise::Functions& functions) noexcept {
  functions.chunk_workspace = chunk_workspace;
  functions.partial_size = partial_size;
  functions.attend_chunk = attend_chunk<Numbers>;
  functions.merge_workspace = merge_workspace;
  functions.merge_row = merge_row<typename Numbers::Element>;
}

}  // namespace

namespace headwise::HEADWISE_ISA {

void fill_attend_few(KernelTable& table) noexcept {
  fill<Widened<float>>(table.of[0]);
  fill<ForBFloat16>(table.of[1]);
  fill<Widened<Float16>>(table.of[2]);
}

}  // namespace headwise::HEADWISE_ISA
