// What a task of attend_tile works on; how queries come in and results go out, turned round.
#pragma once

#include "kernel_table.h"
#include "simd/vec_math.h"

namespace {

using headwise::AttendArgs;
using headwise::kKeyTile;
using headwise::kQueryTile;

constexpr int64_t kLanes = kQueryTile;
constexpr int64_t kRows = Vec::block_rows;
constexpr uint64_t kAllLanes = (uint64_t{1} << kLanes) - 1;

// What one task works on; the arrays lie in the workspace.
struct Tile {
  const AttendArgs* args;
  int64_t batch, head, kv_head, first, rows;
  float* query;    // head_dim x 48
  float* scores;   // keys x 48, weights after the softmax
  float* output;   // value_dim x 48
  float* bias;     // keys x 48, where there is one
  float* highest;  // 48: the highest score so far
  float* total;    // 48: the sum of the weights so far
  float* fade;     // 48: by what earlier sums shrink
  float scale;     // of scores on their way into the softmax

  int64_t registers() const noexcept { return (rows + Vec::width - 1) / Vec::width; }
  uint64_t lanes_used() const noexcept { return kAllLanes >> (kLanes - rows); }
};

// The keys of a tile that are worked on: `from` to `to`, counted from `first`.
struct Keys {
  int64_t first, from, to;
  const uint64_t* bits;  // per key, counted from `first`; null where all lanes may see all
};

void turn_queries(const Tile& tile) noexcept {
  const AttendArgs& a = *tile.args;
  const float* from = a.query.at(tile.batch, tile.head, tile.first);
  const int64_t rest = a.head_dim % Vec::width;
  const int64_t whole = a.head_dim - rest;
  const int64_t lanes = tile.registers() * Vec::width;
  float block[Vec::width * Vec::width];
  for (int64_t r = 0; r < lanes; r += Vec::width) {
    const bool cut = r + Vec::width > tile.rows;
    // Lanes behind the last row repeat it; nobody reads them.
    const auto row = [&](int64_t i) noexcept {
      return from + smaller(r + i, tile.rows - 1) * a.query.row;
    };
    for (int64_t d = 0; d < whole; d += Vec::width) {
      float* to = tile.query + d * kLanes + r;
      if (!cut) {
        Vec::transpose(row(0) + d, a.query.row, to, kLanes);
        continue;
      }
      for (int64_t i = 0; i < Vec::width; ++i) {
        Vec::store(block + i * Vec::width, Vec::load(row(i) + d));
      }
      Vec::transpose(block, Vec::width, to, kLanes);
    }
    for (int64_t i = 0; rest > 0 && i < Vec::width; ++i) {
      for (int64_t d = whole; d < a.head_dim; ++d) tile.query[d * kLanes + r + i] = row(i)[d];
    }
  }
  if (a.scale > 0.0F || a.bias.data != nullptr) return;
  // The softmax multiplies by |scale|; its sign, or the zero, goes into the queries.
  const Vec::Reg factor = Vec::set(a.scale < 0.0F ? -1.0F : 0.0F);
  for (int64_t i = 0; i < a.head_dim * kLanes; i += Vec::width) {
    Vec::store(tile.query + i, Vec::mul(Vec::load(tile.query + i), factor));
  }
}

void store_output(const Tile& tile) noexcept {
  const AttendArgs& a = *tile.args;
  float inverse[kLanes];
  for (int64_t r = 0; r < kLanes; ++r) {
    inverse[r] = tile.total[r] == 0.0F ? 0.0F : 1.0F / tile.total[r];
  }
  float block[Vec::width * Vec::width];
  for (int64_t r = 0; r < tile.rows; r += Vec::width) {
    const Vec::Reg factor = Vec::load(inverse + r);
    for (int64_t c = 0; c < a.value_dim; ++c) {
      float* numbers = tile.output + c * kLanes + r;
      Vec::store(numbers, Vec::mul(Vec::load(numbers), factor));
    }
    const int64_t rows = smaller(tile.rows - r, Vec::width);
    float* to = a.output.at(tile.batch, tile.head, tile.first + r);
    for (int64_t c = 0; c < a.value_dim; c += Vec::width) {
      const int64_t columns = smaller(a.value_dim - c, Vec::width);
      const float* from = tile.output + c * kLanes + r;
      if (rows == Vec::width && columns == Vec::width) {
        Vec::transpose(from, kLanes, to + c, a.output.row);
        continue;
      }
      // The workspace has room behind the last column for a whole block.
      Vec::transpose(from, kLanes, block, Vec::width);
      for (int64_t i = 0; i < rows; ++i) {
        Vec::store_partial(to + i * a.output.row + c, Vec::load(block + i * Vec::width), columns);
      }
    }
  }
}

void store_lse(const Tile& tile) noexcept {
  const AttendArgs& a = *tile.args;
  if (a.lse == nullptr) return;
  float* to = a.lse + (tile.batch * a.q_heads + tile.head) * a.q_len + tile.first;
  for (int64_t r = 0; r < tile.rows; ++r) {
    const float highest = tile.highest[r] * tile.scale;
    to[r] = tile.total[r] == 0.0F ? kMinusInfinity : highest + __builtin_logf(tile.total[r]);
  }
}

}  // namespace
