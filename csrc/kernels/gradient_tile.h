// The gradient of the scores of one query tile and one key tile, from the log-sum-exp:
// weights = exp(scores - lse), d_scores = weights * (d_weights - delta), as in FlashAttention
// (Dao et al., 2022). Both are kept turned round, keys x 48 queries.
#pragma once

#include "kernels/product.h"
#include "kernels/scores.h"

namespace {

using headwise::BackwardArgs;

// Keys and values of a run of keys as words.
struct KeyWords {
  int64_t first;  // the run's first key
  Rows key, value;
};

template <class Numbers>
struct GradientTile {
  using T = typename Numbers::Element;

  Tile tile;
  const BackwardArgs* backward;
  float* d_output;  // words of value_dim x 48
  float* d_scores;  // keys x 48; the gradient of the weights before
  float* slope;     // keys x 48: derivative of the softcap, where there is one
  float* kept;      // keys x 48: factors of the weights, where some are dropped
  float* lse;       // 48: the highest score; infinite for rows that see nothing
  float* lse_rest;  // 48: what the log-sum-exp is above it
  float* delta;     // 48
  float* room;      // for 48 rows as words

  const AttendArgs& args() const noexcept { return backward->call; }

  static int64_t words(int64_t dim) noexcept { return whole_registers(words_of<Numbers>(dim)); }
  static int64_t row_room(const AttendArgs& a) noexcept {
    return kLanes *
           (words(a.head_dim) > words(a.value_dim) ? words(a.head_dim) : words(a.value_dim));
  }
  static int64_t workspace(const AttendArgs& a) noexcept {
    const int64_t tiles =
        2 + (a.bias.any() ? 1 : 0) + (a.softcap > 0.0F ? 1 : 0) + (a.dropout.threshold > 0 ? 1 : 0);
    return kLanes * (words(a.head_dim) + words(a.value_dim) + 3) + tiles * kTileScores +
           row_room(a);
  }

  // Lays the arrays out from `next` on; returns where they end.
  float* lay_out(const BackwardArgs& b, float* next) noexcept {
    backward = &b;
    const AttendArgs& a = b.call;
    const auto take = [&](int64_t floats) noexcept {
      float* mine = next;
      next += floats;
      return mine;
    };
    tile.query = take(kLanes * words(a.head_dim));
    d_output = take(kLanes * words(a.value_dim));
    lse = take(kLanes);
    lse_rest = take(kLanes);
    delta = take(kLanes);
    tile.scores = take(kTileScores);
    d_scores = take(kTileScores);
    tile.bias = take(a.bias.any() ? kTileScores : 0);
    slope = take(a.softcap > 0.0F ? kTileScores : 0);
    kept = take(a.dropout.threshold > 0 ? kTileScores : 0);
    room = take(row_room(a));
    return next;
  }

  // Turns to another query tile, in the same arrays; `load` then fills them.
  void turn_to(int64_t batch, int64_t head, int64_t number) noexcept {
    Tile next = make_tile(args(), batch, head, number);
    next.query = tile.query;
    next.scores = tile.scores;
    next.bias = tile.bias;
    tile = next;
  }

  void load() noexcept {
    const AttendArgs& a = args();
    const int64_t batch = tile.batch;
    const int64_t head = tile.head;
    const int64_t row = a.row_number(batch, head, tile.first);
    for (int64_t r = 0; r < kLanes; ++r) {
      const bool sees = r < tile.rows && a.sees_something(row + r);
      lse[r] = sees ? a.lse[2 * (row + r)] : -kMinusInfinity;
      lse_rest[r] = sees ? a.lse[2 * (row + r) + 1] : 0.0F;
      delta[r] = sees ? backward->delta[row + r] : 0.0F;
    }
    const T* query = a.query.template at<const T>(batch, head, tile.first);
    turn(copy_lanes<Numbers>(tile, query, a.query.row, a.head_dim, room), tile.rows,
         words_of<Numbers>(a.head_dim), tile.query, kLanes);
    settle_scale<Numbers>(tile);
    const headwise::Tensor4<const void>& from = backward->d_output;
    const Rows rows = copy_lanes<Numbers>(tile, from.template at<const T>(batch, head, tile.first),
                                          from.row, a.value_dim, room);
    for (int64_t r = 0; r < tile.rows; ++r) {
      for (int64_t w = 0; !sees_something(r) && w < rows.row; ++w) room[r * rows.row + w] = 0.0F;
    }
    turn(rows, tile.rows, words_of<Numbers>(a.value_dim), d_output, kLanes);
  }

  bool sees_something(int64_t r) const noexcept { return lse[r] != -kMinusInfinity; }

  // Leaves the weights in `tile.scores`, dropped ones at 0, and the gradient of the scores, before
  // the softcap, in `d_scores`.
  void take(const Keys& k, const KeyWords& words) noexcept {
    const AttendArgs& a = args();
    const int64_t offset = k.first + k.from - words.first;
    multiply_keys(words.key, offset, k, tile.query, words_of<Numbers>(a.head_dim), tile.scores);
    multiply_keys(words.value, offset, k, d_output, words_of<Numbers>(a.value_dim), d_scores);
    if (k.bits != nullptr || is_shaped(a)) {
      shape_scores(tile, k, a.softcap > 0.0F ? slope : nullptr);
    }
    if (a.dropout.threshold > 0) {
      float* to = kept;
      const Vec::Reg factor = Vec::set(a.dropout.factor);
      for_kept(tile, k, [=](int64_t r, int64_t j, Vec::Mask keep) noexcept {
        Vec::store(to + j * kLanes + r, Vec::select(keep, factor, Vec::set(0.0F)));
      });
    }
    const Vec::Reg scale = Vec::set(tile.scale);
    const Factor factor(kLog2E);
    for (int64_t r = 0; r < tile.lanes(); r += Vec::width) {
      const Vec::Reg minus_lse = Vec::sub(Vec::set(0.0F), Vec::load(lse + r));
      const Vec::Reg rest = Vec::load(lse_rest + r);
      const Vec::Reg mean = Vec::load(delta + r);
      for (int64_t j = k.from; j < k.to; ++j) {
        const int64_t at = j * kLanes + r;
        const Vec::Reg nearly = Vec::fma(Vec::load(tile.scores + at), scale, minus_lse);
        const Vec::Reg below = Vec::sub(nearly, rest);
        Vec::Reg weight = exp2_below_zero(below, factor);
        Vec::Reg gradient = Vec::load(d_scores + at);
        if (a.dropout.threshold > 0) gradient = Vec::mul(gradient, Vec::load(kept + at));
        gradient = Vec::mul(weight, Vec::sub(gradient, mean));
        // A closed pair takes nothing from a row whose mean is NaN.
        gradient = Vec::select(Vec::equal(weight, Vec::set(0.0F)), Vec::set(0.0F), gradient);
        Vec::store(d_scores + at, gradient);
        if (a.dropout.threshold > 0) weight = Vec::mul(weight, Vec::load(kept + at));
        Vec::store(tile.scores + at, weight);
      }
    }
  }

 private:
  void multiply_keys(Rows keys, int64_t offset, const Keys& k, const float* lanes, int64_t steps,
                     float* to) noexcept {
    to += k.from * kLanes;
    multiply<Numbers>({keys.data + offset * keys.row, keys.row, 1}, k.count(), {lanes, kLanes},
                      tile.registers(), steps, [=](int64_t j, int64_t lane, Vec::Reg sum) noexcept {
                        Vec::store(to + j * kLanes + lane, sum);
                      });
  }
};

}  // namespace
