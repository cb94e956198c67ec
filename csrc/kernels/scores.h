// What happens to the scores of a tile between the product and the softmax: softcap, bias, pattern;
// and to its weights after it: dropout.
#pragma once

#include "kernels/philox.h"
#include "kernels/query_tile.h"

namespace {

bool is_shaped(const AttendArgs& a) noexcept { return a.bias.any() || a.softcap > 0.0F; }

// The factor of scores on their way into the softmax. Its sign, or a zero, goes into the queries,
// for the highest score decides what is subtracted. Shaped scores have theirs already.
template <class Numbers>
void settle_scale(Tile& tile) noexcept {
  const AttendArgs& a = *tile.args;
  const float size = a.scale < 0.0F ? -a.scale : a.scale;
  tile.scale = is_shaped(a) || size == 0.0F ? 1.0F : size;
  if (a.scale > 0.0F || is_shaped(a)) return;
  const uint32_t signs = Numbers::per_word == 2 ? 0x80008000U : 0x80000000U;
  const int64_t count = words_of<Numbers>(a.head_dim) * kLanes;
  for (int64_t i = 0; i < count; ++i) {
    const auto word = __builtin_bit_cast(uint32_t, tile.query[i]);
    tile.query[i] = __builtin_bit_cast(float, size == 0.0F ? 0U : word ^ signs);
  }
}

void load_dense_bias(const Tile& tile, const Keys& keys) noexcept {
  const headwise::Bias& b = tile.args->bias;
  const float* from =
      b.dense.at<const float>(tile.batch, tile.head, tile.first) + keys.first * b.dense_column;
  for (int64_t r = 0; r < tile.lanes(); r += Vec::width) {
    int64_t j = keys.from;
    if (b.dense_column == 1 && r + Vec::width <= tile.rows) {
      for (; j + Vec::width <= keys.to; j += Vec::width) {
        Vec::transpose(from + r * b.dense.row + j, b.dense.row, tile.bias + j * kLanes + r, kLanes);
      }
    }
    for (; j < keys.to; ++j) {
      for (int64_t i = r; i < r + Vec::width; ++i) {
        const float* number = from + i * b.dense.row + j * b.dense_column;
        tile.bias[j * kLanes + i] = i < tile.rows ? *number : 0.0F;
      }
    }
  }
}

// A bias by distance grows by one column per lane, so that a row of lanes lies in one piece.
void load_bias(const Tile& tile, const Keys& keys) noexcept {
  const AttendArgs& a = *tile.args;
  if (a.bias.dense.data != nullptr) {
    load_dense_bias(tile, keys);
    return;
  }
  const int64_t start = a.bias.distance(tile.batch, tile.first, keys.first);
  for (int64_t j = keys.from; j < keys.to; ++j) {
    const int64_t distance = start - j;
    for (int64_t r = 0; r < tile.rows; r += Vec::width) {
      float* to = tile.bias + j * kLanes + r;
      if (a.bias.slopes != nullptr) {
        const Vec::Reg far = Vec::add(Vec::set(static_cast<float>(distance + r)), Vec::count_up());
        Vec::store(to, Vec::mul(Vec::set(-a.bias.slopes[tile.head]), Vec::abs(far)));
      } else {
        const float* from = a.bias.table + tile.head * a.bias.table_width + distance + r;
        const int64_t real = smaller(tile.rows - r, Vec::width);
        Vec::store(to, real == Vec::width ? Vec::load(from) : Vec::load_partial(from, real));
      }
    }
  }
}

// Turns products into scores: softcap, then the bias. A lane is closed where its bit is 0 or its
// bias is minus infinity, whatever the score is. `slope`, where asked for, takes the derivative of
// the softcap.
void shape_scores(const Tile& tile, const Keys& keys, float* slope) noexcept {
  const AttendArgs& a = *tile.args;
  const bool biased = a.bias.any();
  if (biased) load_bias(tile, keys);
  const int64_t lanes = tile.lanes();
  const uint64_t all = kAllLanes >> (kLanes - lanes);
  // Lanes behind the last row are closed, too: the backward multiplies their weights by 0.
  const uint64_t used = biased ? tile.lanes_used() : all;
  const Vec::Reg closed = Vec::set(kMinusInfinity);
  const Vec::Reg one = Vec::set(1.0F);
  const Vec::Reg scale = Vec::set(a.softcap > 0.0F ? a.scale / a.softcap : a.scale);
  const Vec::Reg cap = Vec::set(a.softcap > 0.0F ? a.softcap : 1.0F);
  for (int64_t j = keys.from; j < keys.to; ++j) {
    float* scores = tile.scores + j * kLanes;
    for (int64_t r = 0; is_shaped(a) && r < lanes; r += Vec::width) {
      Vec::Reg score = Vec::mul(Vec::load(scores + r), scale);
      if (a.softcap > 0.0F) {
        score = tanh(score);
        if (slope != nullptr) {
          const Vec::Reg bend = Vec::sub(one, Vec::mul(score, score));
          // A closed score may be NaN; an open one has made its weight NaN already.
          Vec::store(slope + j * kLanes + r,
                     Vec::select(Vec::equal(bend, bend), bend, Vec::set(0.0F)));
        }
      }
      if (biased) {
        const Vec::Reg bias = Vec::load(tile.bias + j * kLanes + r);
        score = Vec::select(Vec::equal(bias, closed), closed, Vec::fma(score, cap, bias));
      } else {
        score = Vec::mul(score, cap);
      }
      Vec::store(scores + r, score);
    }
    const uint64_t open = keys.bits == nullptr ? used : keys.bits[j];
    if ((open & all) == all) continue;
    for (int64_t r = 0; r < lanes; r += Vec::width) {
      Vec::store(scores + r, Vec::select(Vec::bits(open, r), Vec::load(scores + r), closed));
    }
  }
}

// Calls `take(lane, key, kept)` for every register of lanes and every key: which lanes keep it.
template <class Take>
void for_kept(const Tile& tile, const Keys& keys, Take take) noexcept {
  const headwise::Dropout& dropout = tile.args->dropout;
  for (int64_t r = 0; r < tile.rows; r += Vec::width) {
    const auto first = static_cast<uint32_t>(tile.first + r);
    for (int64_t j = keys.from - keys.from % 4; j < keys.to; j += 4) {
      Vec::Int words[4] = {Vec::add_int(Vec::set_int(first), Vec::count_up_int()),
                           Vec::set_int(static_cast<uint32_t>((keys.first + j) / 4)),
                           Vec::set_int(static_cast<uint32_t>(tile.head)),
                           Vec::set_int(static_cast<uint32_t>(tile.batch))};
      philox(dropout.key, words);
      for (int64_t k = 0; k < 4; ++k) {
        if (j + k < keys.from || j + k >= keys.to) continue;
        take(r, j + k, Vec::at_least(words[k], dropout.threshold));
      }
    }
  }
}

}  // namespace
