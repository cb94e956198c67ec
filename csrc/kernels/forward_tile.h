// One query tile on its way through the keys: its scores, its softmax so far, its output so far.
//
// Queries are lanes. Scores are kept turned round, keys x 48 queries, so that the softmax is
// vertical, and keys and values are read one word at a time, float32 where it lies. The output is
// turned round while it grows, and turned back when it is stored.
#pragma once

#include "kernels/product.h"
#include "kernels/scores.h"

namespace {

// A key tile and its values as words; what is not finite in a value is left out.
template <class Numbers>
struct KeyTile {
  int64_t number;
  Rows keys, values;
  bool finite;  // nothing was left out
};

template <class Numbers>
struct Forward {
  using T = typename Numbers::Element;
  static constexpr bool kPairs = Numbers::per_word == 2;

  Tile tile;
  float* weights;  // words over keys x 48; the scores themselves where a word is one number
  float* output;   // value_dim x 48
  float* highest;  // 48: the highest score so far
  float* total;    // 48: the sum of the weights so far
  float* fade;     // 48: by what earlier sums shrink

  const AttendArgs& args() const noexcept { return *tile.args; }

  static int64_t workspace(const AttendArgs& a) noexcept {
    return kLanes *
           (whole_registers(words_of<Numbers>(a.head_dim)) + whole_registers(a.value_dim) + 3);
  }

  // Lays out what belongs to this tile alone.
  void lay_out(float* room) noexcept {
    const AttendArgs& a = args();
    tile.query = room;
    output = tile.query + whole_registers(words_of<Numbers>(a.head_dim)) * kLanes;
    highest = output + whole_registers(a.value_dim) * kLanes;
    total = highest + kLanes;
    fade = total + kLanes;
  }

  void load_queries(float* room) noexcept {
    const AttendArgs& a = args();
    const T* from = a.query.template at<const T>(tile.batch, tile.head, tile.first);
    const Rows rows = copy_lanes<Numbers>(tile, from, a.query.row, a.head_dim, room);
    turn(rows, tile.rows, words_of<Numbers>(a.head_dim), tile.query, kLanes);
    settle_scale<Numbers>(tile);
    for (int64_t i = 0; i < a.value_dim * kLanes; i += Vec::width) {
      Vec::store(output + i, Vec::set(0.0F));
    }
    for (int64_t r = 0; r < kLanes; ++r) {
      highest[r] = kMinusInfinity;
      total[r] = 0.0F;
    }
  }

  void score(const Keys& k, Rows keys) noexcept {
    float* scores = tile.scores + k.from * kLanes;
    multiply<Numbers>({keys.data + k.from * keys.row, keys.row, 1}, k.count(), {tile.query, kLanes},
                      tile.registers(), words_of<Numbers>(args().head_dim),
                      [=](int64_t j, int64_t lane, Vec::Reg sum) noexcept {
                        Vec::store(scores + j * kLanes + lane, sum);
                      });
  }

  template <int64_t kRegs>
  void soften(const Keys& k, int64_t lane, [[maybe_unused]] bool keeps_singles) noexcept {
    const Vec::Reg nothing = Vec::set(kMinusInfinity);
    const Factor factor(double{tile.scale} * kLog2E);
    float* scores = tile.scores + lane;
    Vec::Reg top[kRegs];
    Vec::Reg even[kRegs];
    Vec::Reg odd[kRegs];
    for (int64_t v = 0; v < kRegs; ++v) {
      top[v] = Vec::load(highest + lane + v * Vec::width);
      even[v] = top[v];
      odd[v] = top[v];
    }
    int64_t j = k.from;
    for (; j + 2 <= k.to; j += 2) {
#pragma GCC unroll 4
      for (int64_t v = 0; v < kRegs; ++v) {
        even[v] = Vec::max(even[v], Vec::load(scores + j * kLanes + v * Vec::width));
        odd[v] = Vec::max(odd[v], Vec::load(scores + (j + 1) * kLanes + v * Vec::width));
      }
    }
    for (; j < k.to; ++j) {
      for (int64_t v = 0; v < kRegs; ++v) {
        even[v] = Vec::max(even[v], Vec::load(scores + j * kLanes + v * Vec::width));
      }
    }
    Vec::Reg base[kRegs];
    Vec::Reg sum[kRegs];
    for (int64_t v = 0; v < kRegs; ++v) {
      const Vec::Reg most = Vec::max(even[v], odd[v]);
      // A lane that has seen nothing yet counts from 0, so that no infinity meets another.
      base[v] = Vec::select(Vec::equal(most, nothing), Vec::set(0.0F), most);
      Vec::store(highest + lane + v * Vec::width, most);
      Vec::store(fade + lane + v * Vec::width, exp2_below_zero(Vec::sub(top[v], base[v]), factor));
      sum[v] = Vec::set(0.0F);
    }
    const auto weigh = [&](int64_t row, int64_t v) noexcept {
      float* at = scores + row * kLanes + v * Vec::width;
      // The difference first: a score near the end of the range times the scale is infinite.
      const Vec::Reg below = Vec::sub(Vec::load(at), base[v]);
      const Vec::Reg weight = exp2_below_zero<kPairs>(below, factor);
      sum[v] = Vec::add(sum[v], weight);
      if (!kPairs || keeps_singles) Vec::store(at, weight);
      return weight;
    };
    for (j = k.from; j < k.to; j += Numbers::per_word) {
#pragma GCC unroll 4
      for (int64_t v = 0; v < kRegs; ++v) {
        [[maybe_unused]] const Vec::Reg weight = weigh(j, v);
        if constexpr (kPairs) {
          const Vec::Reg next = j + 1 < k.to ? weigh(j + 1, v) : Vec::set(0.0F);
          Vec::store(weights + j / 2 * kLanes + lane + v * Vec::width, Numbers::pair(weight, next));
        }
      }
    }
    for (int64_t v = 0; v < kRegs; ++v) {
      float* sums = total + lane + v * Vec::width;
      Vec::store(sums, Vec::fma(Vec::load(sums), Vec::load(fade + lane + v * Vec::width), sum[v]));
    }
  }

  void soften_lanes(const Keys& k, bool keeps_singles) noexcept {
    const int64_t registers = tile.registers();
    for (int64_t v = 0; v < registers; v += Vec::block_regs) {
      const int64_t lane = v * Vec::width;
      switch (smaller(registers - v, Vec::block_regs)) {
        case 1: soften<1>(k, lane, keeps_singles); break;
        case 2: soften<2>(k, lane, keeps_singles); break;
        case 3: soften<3>(k, lane, keeps_singles); break;
        default: soften<Vec::block_regs>(k, lane, keeps_singles);
      }
    }
  }

  // Joins the weights of neighbouring keys to pairs.
  void pair_weights(const Keys& k) noexcept {
    for (int64_t j = k.from; j < k.to; j += 2) {
      for (int64_t r = 0; r < tile.lanes(); r += Vec::width) {
        const float* at = tile.scores + j * kLanes + r;
        const Vec::Reg next = j + 1 < k.to ? Vec::load(at + kLanes) : Vec::set(0.0F);
        Vec::store(weights + j / 2 * kLanes + r, Numbers::pair(Vec::load(at), next));
      }
    }
  }

  // Adds the weighted values. A tile is summed from zero and then added, which keeps rounding
  // errors from growing with the number of keys.
  void mix(const Keys& k, Rows values) noexcept {
    float* to = output;
    const float* shrink = fade;
    const int64_t from = k.from / Numbers::per_word;
    multiply<Numbers>({values.data + from * values.row, 1, values.row}, args().value_dim,
                      {weights + from * kLanes, kLanes}, tile.registers(),
                      words_of<Numbers>(k.count()),
                      [=](int64_t c, int64_t lane, Vec::Reg sum) noexcept {
                        float* at = to + c * kLanes + lane;
                        Vec::store(at, Vec::fma(Vec::load(at), Vec::load(shrink + lane), sum));
                      });
  }

  // Adds the values that are not finite for the lanes that may see them: a closed lane's weight is
  // 0, and 0 times NaN would not be.
  void add_odd_values(const Keys& k) noexcept {
    const AttendArgs& a = args();
    for (int64_t j = k.from; j < k.to; ++j) {
      const T* row = a.value.template at<const T>(tile.batch, tile.kv_head, k.first + j);
      for (int64_t c = 0; c < a.value_dim; ++c) {
        const float number = number_at(row + c);
        if (number - number == 0.0F) continue;
        for (int64_t r = 0; r < tile.lanes(); r += Vec::width) {
          float* at = output + c * kLanes + r;
          const Vec::Reg weight = Vec::load(tile.scores + j * kLanes + r);
          const Vec::Reg before = Vec::load(at);
          const Vec::Reg after = Vec::fma(weight, Vec::set(number), before);
          Vec::store(at, choose_open(k, j, r, after, before));
        }
      }
    }
  }

  // `open` in the lanes, from `r` on, that may see the key, and `closed` in the others.
  Vec::Reg choose_open(const Keys& k, int64_t j, int64_t r, Vec::Reg open,
                       Vec::Reg closed) const noexcept {
    if (k.bits != nullptr) open = Vec::select(Vec::bits(k.bits[j], r), open, closed);
    if (args().bias.any()) {
      const Vec::Reg bias = Vec::load(tile.bias + j * kLanes + r);
      open = Vec::select(Vec::equal(bias, Vec::set(kMinusInfinity)), closed, open);
    }
    return open;
  }

  void take_keys(const KeyTile<Numbers>& key_tile, const uint64_t* bits) noexcept {
    const AttendArgs& a = args();
    const Keys k = live_keys<Numbers>(tile, key_tile.number, bits);
    if (k.count() == 0) return;
    score(k, key_tile.keys);
    if (bits != nullptr || is_shaped(a)) shape_scores(tile, k, nullptr);
    const bool drops = a.dropout.threshold > 0;
    soften_lanes(k, drops || !key_tile.finite);
    if (drops) {
      drop(k);
      if constexpr (kPairs) pair_weights(k);
    }
    mix(k, key_tile.values);
    if (!key_tile.finite) add_odd_values(k);
  }

  void drop(const Keys& k) noexcept {
    float* scores = tile.scores;
    for_kept(tile, k, [=](int64_t r, int64_t j, Vec::Mask kept) noexcept {
      float* at = scores + j * kLanes + r;
      Vec::store(at, Vec::select(kept, Vec::load(at), Vec::set(0.0F)));
    });
  }

  // Lets a sink take its share of each row's denominator; writes the log-sum-exp.
  void finish_rows() noexcept {
    const AttendArgs& a = args();
    for (int64_t r = 0; r < tile.rows; ++r) {
      double base = double{highest[r]} * double{tile.scale};
      float sum = total[r];
      float share = 1.0F;
      if (a.sinks != nullptr && sum != 0.0F) {
        const double sink = double{a.sinks[tile.head]};
        const double most = sink > base ? sink : base;
        share = exp_of_one(static_cast<float>(base - most));
        sum = sum * share + exp_of_one(static_cast<float>(sink - most));
        base = most;
      }
      fade[r] = sum == 0.0F ? 1.0F : sum / share / a.dropout.factor;
      if (a.lse == nullptr) continue;
      const int64_t row = a.row_number(tile.batch, tile.head, tile.first + r);
      if (sum == 0.0F) {
        a.write_closed_lse(row);
      } else {
        a.write_lse(row, base, __builtin_log(double{sum}));
      }
    }
  }

  void store_output() noexcept {
    const AttendArgs& a = args();
    float block[Vec::width * Vec::width];
    for (int64_t r = 0; r < tile.rows; r += Vec::width) {
      const Vec::Reg divisor = Vec::load(fade + r);
      for (int64_t c = 0; c < a.value_dim; ++c) {
        float* numbers = output + c * kLanes + r;
        Vec::store(numbers, Vec::div(Vec::load(numbers), divisor));
      }
      const int64_t rows = smaller(tile.rows - r, Vec::width);
      T* to = a.output.template at<T>(tile.batch, tile.head, tile.first + r);
      for (int64_t c = 0; c < a.value_dim; c += Vec::width) {
        const int64_t count = smaller(a.value_dim - c, Vec::width);
        // The workspace has room behind the last column for a whole block.
        Vec::transpose(output + c * kLanes + r, kLanes, block, Vec::width);
        for (int64_t i = 0; i < rows; ++i) {
          const Vec::Reg row = Vec::load(block + i * Vec::width);
          T* at = to + i * a.output.row + c;
          if (count == Vec::width) {
            Vec::store(at, row);
          } else {
            Vec::store_partial(at, row, count);
          }
        }
      }
    }
  }
};

}  // namespace
