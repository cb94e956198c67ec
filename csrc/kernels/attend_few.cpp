// Few queries against many keys (decoding): every chunk of keys is read once for all query heads
// that share it, chunks are cut by length alone, and their results are merged in order.

#include "kernels/byte_scores.h"
#include "kernels/byte_values.h"
#include "kernels/few_scores.h"
#include "kernels/key_chunk.h"

namespace {

// Whether integers are multiplied: for queries of bfloat16, where keys have 8 bits.
template <class Queries, class Numbers>
constexpr bool by_bytes() noexcept {
#ifdef HEADWISE_HAS_BYTES
  return Numbers::is_scaled && __is_same(typename Queries::Element, BFloat16);
#else
  return false;
#endif
}

template <class Queries, class Numbers, int64_t kQueries>
void score_block(const Chunk& chunk, const Piece& piece, int64_t row) noexcept {
#ifdef HEADWISE_HAS_BYTES
  if constexpr (by_bytes<Queries, Numbers>()) {
    score_bytes<kQueries>(chunk, piece, row);
    return;
  }
#endif
  score_rows<Numbers, kQueries>(chunk, piece, row);
}

template <class Queries, class Numbers>
void score(const Chunk& chunk, const Piece& piece, int64_t row, int64_t rows) noexcept {
  switch (rows) {
    case 1: score_block<Queries, Numbers, 1>(chunk, piece, row); break;
    case 2: score_block<Queries, Numbers, 2>(chunk, piece, row); break;
    case 3: score_block<Queries, Numbers, kThree>(chunk, piece, row); break;
    default: score_block<Queries, Numbers, kRowBlock>(chunk, piece, row); break;
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
  const T* value = stored_at<T>(chunk, a.value, from) + column;
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

template <int64_t kQueries, class Queries, class Numbers>
void mix_block(const Chunk& chunk, const Piece* pieces, int64_t count, int64_t row,
               float* const* output) noexcept {
#ifdef HEADWISE_HAS_BYTES
  if constexpr (by_bytes<Queries, Numbers>()) {
    for (int64_t p = 0; p < count; ++p) mix_bytes<kQueries>(chunk, pieces[p], row, output);
    return;
  }
#endif
  for (int64_t c = 0; c < chunk.args->value_dim; c += kRegs * Vec::width) {
    mix_rows<typename Numbers::Element, kQueries>(chunk, pieces, count, row, c, output);
  }
}

template <class Queries, class Numbers>
void mix(const Chunk& chunk, const Piece* pieces, int64_t count, int64_t row, int64_t rows,
         float* const* output) noexcept {
  switch (rows) {
    case 1: mix_block<1, Queries, Numbers>(chunk, pieces, count, row, output); break;
    case 2: mix_block<2, Queries, Numbers>(chunk, pieces, count, row, output); break;
    case 3: mix_block<kThree, Queries, Numbers>(chunk, pieces, count, row, output); break;
    default: mix_block<kRowBlock, Queries, Numbers>(chunk, pieces, count, row, output); break;
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
          const T* value = stored_at<T>(chunk, a.value, j) + c;
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

template <class Queries, class Numbers>
void take_rows(const Chunk& chunk, const Piece* pieces, int64_t count, int64_t row, int64_t rows,
               float* partials) noexcept {
  using T = typename Numbers::Element;
  const AttendArgs& a = *chunk.args;
  float* output[kRowBlock];
  const int64_t last = count == 0 ? 0 : pieces[count - 1].to;
  const int64_t keys = (last + Vec::width - 1) / Vec::width * Vec::width;
  for (int64_t p = 0; p < count; ++p) score<Queries, Numbers>(chunk, pieces[p], row, rows);
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
    for (int64_t p = 0; Numbers::is_scaled && p < count; ++p) {
      scale_piece(chunk, pieces[p], scores, a.store.value_scale, 1.0F);
    }
    output[r] = partial + 2;
    for (int64_t c = 0; c < a.value_dim; ++c) output[r][c] = 0.0F;
  }
  mix<Queries, Numbers>(chunk, pieces, count, row, rows, output);
  for (int64_t r = 0; r < rows; ++r) {
    if (!all_finite(output[r], 0, 1, a.value_dim)) {
      mix_open_keys<T>(chunk, pieces, count, row + r, output[r]);
    }
  }
}

int64_t query_room(const AttendArgs& a) noexcept {
  const int64_t words = whole_registers(a.head_dim);
  const int64_t bytes = a.store.is_scaled ? byte_query_room(a.head_dim) : 0;
  return words > bytes ? words : bytes;
}

int64_t chunk_workspace(const AttendArgs& a) noexcept {
  return a.group() * a.q_len * (kChunk + query_room(a));
}

int64_t partial_size(const AttendArgs& a) noexcept {
  return a.group() * a.q_len * partial_stride(a);
}

// `Queries` says how queries become words, `Numbers` how keys do.
template <class Queries, class Numbers>
void attend_chunk(const AttendArgs& a, int64_t task, float* partials, float* workspace) noexcept {
  using T = typename Queries::Element;
  const int64_t number = task % a.chunks();
  const int64_t kv_head = task / a.chunks() % a.kv_heads;
  Chunk chunk{
      &a,     task / a.chunks() / a.kv_heads, kv_head, number * kChunk, query_room(a), workspace,
      nullptr};
  chunk.scores = workspace + chunk.rows() * chunk.query_room;
  for (int64_t row = 0; row < chunk.rows(); ++row) {
    const T* query = a.query.at<const T>(chunk.batch, chunk.head(row), chunk.query(row));
    float* room = chunk.queries + row * chunk.query_room;
#ifdef HEADWISE_HAS_BYTES
    if constexpr (by_bytes<Queries, Numbers>()) {
      split_query(query, a.head_dim, room);
      continue;
    }
#endif
    copy_words<Queries>(query, 0, 1, a.head_dim, room);
  }
  float* mine = partials + task * partial_size(a);
  Piece pieces[kChunkTiles];
  // Rows of heads that see different keys are worked on apart.
  const bool alike = a.layout.which == nullptr || a.layout.which_head == 0;
  const int64_t share = alike ? chunk.rows() : a.q_len;
  for (int64_t start = 0; start < chunk.rows(); start += share) {
    const int64_t count = live_pieces(chunk, chunk.head(start), pieces);
    for (int64_t row = start; row < start + share; row += kRowBlock) {
      take_rows<Queries, Numbers>(chunk, pieces, count, row,
                                  smaller(start + share - row, kRowBlock), mine);
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
  functions.attend_chunk = attend_chunk<Numbers, Numbers>;
  functions.attend_scaled_chunk = attend_chunk<Widened<typename Numbers::Element>, Widened<int8_t>>;
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
