// What a task of attend_few works on: a chunk of keys, and which of them somebody may see.
#pragma once

#include "kernel_table.h"
#include "simd/vec_math.h"

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
  float* scores;  // rows x kChunk, weights after the softmax

  int64_t rows() const noexcept { return args->group() * args->q_len; }
  int64_t head(int64_t row) const noexcept { return kv_head * args->group() + row / args->q_len; }
  int64_t query(int64_t row) const noexcept { return row % args->q_len; }
};

// Lists the live pieces of a chunk for one query head; returns how many.
int64_t live_pieces(const Chunk& chunk, int64_t head, Piece* pieces) noexcept {
  const AttendArgs& a = *chunk.args;
  const int64_t end = smaller(a.kv_len - chunk.first, kChunk);
  if (a.layout.which == nullptr) {
    pieces[0] = {0, end, nullptr, 0};
    return 1;
  }
  const int32_t* starts = a.layout.starts_of(chunk.batch, head);
  const int64_t first_tile = chunk.first / kKeyTile;
  int64_t count = 0;
  for (int32_t e = starts[0]; e < starts[1]; ++e) {
    const int32_t* entry = a.layout.entries + int64_t{e} * 3;
    const int64_t low = entry[0] < first_tile ? first_tile : entry[0];
    const int64_t high = smaller(int64_t{entry[0]} + entry[1], first_tile + kChunkTiles);
    if (low >= high) continue;
    const int64_t from = (low - first_tile) * kKeyTile;
    const uint64_t* bits = entry[2] < 0 ? nullptr : a.layout.bitmaps + entry[2] * kKeyTile;
    pieces[count++] = {from, smaller((high - first_tile) * kKeyTile, end), bits, from};
  }
  return count;
}

bool is_closed(const Chunk& chunk, const Piece& piece, int64_t row, int64_t j) noexcept {
  const AttendArgs& a = *chunk.args;
  const int64_t i = chunk.query(row);
  if (piece.bits != nullptr && ((piece.bits[j - piece.bits_from] >> i) & 1U) == 0) return true;
  return a.bias.data != nullptr &&
         a.bias.at(chunk.batch, chunk.head(row), i)[(chunk.first + j) * a.bias_column] ==
             kMinusInfinity;
}

}  // namespace
