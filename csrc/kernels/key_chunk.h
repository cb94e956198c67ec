// What a task of attend_few works on: a chunk of keys, which of them somebody may see, and how the
// scores of a row are shaped.
#pragma once

#include "kernels/numbers.h"
#include "kernels/philox.h"

namespace {

using headwise::AttendArgs;
using headwise::kChunkTiles;
using headwise::kKeyTile;

constexpr int64_t kChunk = kChunkTiles * kKeyTile;

// The keys of a chunk that somebody may see: `from` to `to`, counted from the chunk's first key.
struct Piece {
  int64_t from, to;
  const uint64_t* bits;  // per key, counted from the piece's tile; null where all may see all
  int64_t bits_from;
};

struct Chunk {
  const AttendArgs* args;
  int64_t batch, kv_head, first;
  int64_t query_room;
  float* queries;  // rows x query_room
  float* scores;   // rows x kChunk, weights after the softmax

  int64_t rows() const noexcept { return args->group() * args->q_len; }
  int64_t head(int64_t row) const noexcept { return kv_head * args->group() + row / args->q_len; }
  int64_t query(int64_t row) const noexcept { return row % args->q_len; }
};

// Key or value `j` of the chunk, or its scale.
template <class T>
HEADWISE_INLINE const T* stored_at(const Chunk& chunk, const headwise::Tensor4<const void>& tensor,
                                   int64_t j) noexcept {
  const headwise::Store& store = chunk.args->store;
  const int64_t token = chunk.first + j;
  if (store.pages == nullptr) return tensor.at<const T>(chunk.batch, chunk.kv_head, token);
  const int32_t* pages = store.pages + chunk.batch * store.pages_batch;
  return tensor.at<const T>(pages[token / store.page_tokens], chunk.kv_head,
                            token % store.page_tokens);
}

// Multiplies numbers of a row, one for each key of a piece, by a factor and by the keys' scales.
void scale_piece(const Chunk& chunk, const Piece& piece, float* numbers,
                 const headwise::Tensor4<const void>& scales, float factor) noexcept {
  const float* scale = stored_at<float>(chunk, scales, piece.from);
  if (scales.row != 1) {
    for (int64_t j = piece.from; j < piece.to; ++j, scale += scales.row) {
      numbers[j] *= factor * *scale;
    }
    return;
  }
  const Vec::Reg all = Vec::set(factor);
  for (int64_t j = piece.from; j < piece.to; j += Vec::width, scale += Vec::width) {
    const int64_t left = smaller(piece.to - j, Vec::width);
    const Vec::Reg scaled = Vec::mul(all, Vec::load_partial(scale, left));
    Vec::store_partial(numbers + j, Vec::mul(Vec::load(numbers + j), scaled), left);
  }
}

// Lists the live pieces of a chunk for one query head; returns how many.
int64_t live_pieces(const Chunk& chunk, int64_t head, Piece* pieces) noexcept {
  const AttendArgs& a = *chunk.args;
  const int64_t end = smaller(a.kv_len - chunk.first, kChunk);
  // A piece lies in one page.
  const int64_t most = a.store.pages == nullptr ? kChunk : kKeyTile;
  int64_t count = 0;
  const auto add = [&](int64_t from, int64_t to, const uint64_t* bits) noexcept {
    for (int64_t at = from; at < to; at += most) {
      pieces[count++] = {at, smaller(at + most, to), bits, from};
    }
  };
  if (a.layout.which == nullptr) {
    add(0, end, nullptr);
    return count;
  }
  const int32_t* starts = a.layout.starts_of(chunk.batch, head);
  const int64_t first_tile = chunk.first / kKeyTile;
  for (int32_t e = starts[0]; e < starts[1]; ++e) {
    const int32_t* entry = a.layout.entries + int64_t{e} * 3;
    const int64_t low = entry[0] < first_tile ? first_tile : entry[0];
    const int64_t high = smaller(int64_t{entry[0]} + entry[1], first_tile + kChunkTiles);
    if (low >= high) continue;
    const int64_t from = (low - first_tile) * kKeyTile;
    const uint64_t* bits = entry[2] < 0 ? nullptr : a.layout.bitmaps + entry[2] * kKeyTile;
    add(from, smaller((high - first_tile) * kKeyTile, end), bits);
  }
  return count;
}

// The number that the bias adds to the score of key `j` of the chunk.
float bias_of(const Chunk& chunk, int64_t row, int64_t j) noexcept {
  const headwise::Bias& b = chunk.args->bias;
  const int64_t head = chunk.head(row);
  const int64_t i = chunk.query(row);
  if (b.dense.data != nullptr) {
    return b.dense.at<const float>(chunk.batch, head, i)[(chunk.first + j) * b.dense_column];
  }
  const int64_t distance = b.distance(chunk.batch, i, chunk.first + j);
  if (b.table != nullptr) return b.table[head * b.table_width + distance];
  return -b.slopes[head] * __builtin_fabsf(static_cast<float>(distance));
}

bool is_closed(const Chunk& chunk, const Piece& piece, int64_t row, int64_t j) noexcept {
  const int64_t i = chunk.query(row);
  if (piece.bits != nullptr && ((piece.bits[j - piece.bits_from] >> i) & 1U) == 0) return true;
  return chunk.args->bias.any() && bias_of(chunk, row, j) == kMinusInfinity;
}

// Softcap, then the bias, then the pattern.
void shape_row(const Chunk& chunk, const Piece& piece, int64_t row) noexcept {
  const AttendArgs& a = *chunk.args;
  float* scores = chunk.scores + row * kChunk;
  if (a.softcap > 0.0F) {
    const Vec::Reg cap = Vec::set(a.softcap);
    const Vec::Reg inverse = Vec::set(1.0F / a.softcap);
    for (int64_t j = piece.from; j < piece.to; j += Vec::width) {
      const Vec::Reg score = tanh(Vec::mul(Vec::load(scores + j), inverse));
      Vec::store_partial(scores + j, Vec::mul(score, cap), smaller(piece.to - j, Vec::width));
    }
  }
  for (int64_t j = piece.from; a.bias.any() && j < piece.to; ++j) {
    const float number = bias_of(chunk, row, j);
    scores[j] = number == kMinusInfinity ? number : scores[j] + number;
  }
  const int64_t i = chunk.query(row);
  for (int64_t j = piece.from; piece.bits != nullptr && j < piece.to; ++j) {
    if (((piece.bits[j - piece.bits_from] >> i) & 1U) == 0) scores[j] = kMinusInfinity;
  }
}

// Drops weights of a row, `keys` of them; the generator counts keys in fours.
void drop_row(const Chunk& chunk, int64_t row, int64_t keys) noexcept {
  const headwise::Dropout& dropout = chunk.args->dropout;
  float* weights = chunk.scores + row * kChunk;
  for (int64_t j = 0; j < keys; j += 4 * Vec::width) {
    const auto first = static_cast<uint32_t>((chunk.first + j) / 4);
    Vec::Int words[4] = {Vec::set_int(static_cast<uint32_t>(chunk.query(row))),
                         Vec::add_int(Vec::set_int(first), Vec::count_up_int()),
                         Vec::set_int(static_cast<uint32_t>(chunk.head(row))),
                         Vec::set_int(static_cast<uint32_t>(chunk.batch))};
    philox(dropout.key, words);
    for (int64_t k = 0; k < 4; ++k) {
      float kept[Vec::width];
      const Vec::Mask mask = Vec::at_least(words[k], dropout.threshold);
      Vec::store(kept, Vec::select(mask, Vec::set(1.0F), Vec::set(0.0F)));
      for (int64_t lane = 0; lane < Vec::width && j + 4 * lane + k < keys; ++lane) {
        weights[j + 4 * lane + k] *= kept[lane];
      }
    }
  }
}

}  // namespace
