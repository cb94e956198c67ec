// A query tile against its live key tiles, with an online softmax (Milakov & Gimelshein, 2018;
// tiles as in FlashAttention, Dao et al., 2022).
//
// Queries are lanes. Scores are kept turned round, keys x 48 queries, so that the softmax is
// vertical, keys and values are read where they lie, one number at a time, and no key or value is
// packed. The output is turned round while it grows, and turned back when it is stored.

#include "kernels/query_tile.h"

namespace {

// ---- scores -----------------------------------------------------------------------------------

// kRows keys x kRegs registers of queries, held in registers over the whole head_dim.
template <int64_t kRegs>
void score_block(const Tile& tile, const float* const* keys, int64_t lane, float* scores,
                 int64_t rows) noexcept {
  Vec::Reg sum[kRows][kRegs];
#pragma GCC unroll 8
  for (int64_t r = 0; r < kRows; ++r) {
#pragma GCC unroll 4
    for (int64_t v = 0; v < kRegs; ++v) sum[r][v] = Vec::set(0.0F);
  }
  const float* query = tile.query + lane;
  for (int64_t d = 0; d < tile.args->head_dim; ++d, query += kLanes) {
    Vec::Reg q[kRegs];
#pragma GCC unroll 4
    for (int64_t v = 0; v < kRegs; ++v) q[v] = Vec::load(query + v * Vec::width);
#pragma GCC unroll 8
    for (int64_t r = 0; r < kRows; ++r) {
      const Vec::Reg k = Vec::set(keys[r][d]);
#pragma GCC unroll 4
      for (int64_t v = 0; v < kRegs; ++v) sum[r][v] = Vec::fma(q[v], k, sum[r][v]);
    }
  }
#pragma GCC unroll 8
  for (int64_t r = 0; r < kRows; ++r) {
    if (r >= rows) break;
#pragma GCC unroll 4
    for (int64_t v = 0; v < kRegs; ++v) {
      Vec::store(scores + r * kLanes + lane + v * Vec::width, sum[r][v]);
    }
  }
}

void score(const Tile& tile, const Keys& keys) noexcept {
  const AttendArgs& a = *tile.args;
  const int64_t registers = tile.registers();
  for (int64_t j = keys.from; j < keys.to; j += kRows) {
    const float* row[kRows];
    for (int64_t r = 0; r < kRows; ++r) {
      row[r] = a.key.at(tile.batch, tile.kv_head, keys.first + smaller(j + r, keys.to - 1));
    }
    float* scores = tile.scores + j * kLanes;
    const int64_t rows = keys.to - j;
    for (int64_t v = 0; v < registers; v += Vec::block_regs) {
      const int64_t lane = v * Vec::width;
      switch (smaller(registers - v, Vec::block_regs)) {
        case 1: score_block<1>(tile, row, lane, scores, rows); break;
        case 2: score_block<2>(tile, row, lane, scores, rows); break;
        case 3: score_block<3>(tile, row, lane, scores, rows); break;
        default: score_block<Vec::block_regs>(tile, row, lane, scores, rows); break;
      }
    }
  }
}

void load_bias(const Tile& tile, const Keys& keys) noexcept {
  const AttendArgs& a = *tile.args;
  const int64_t lanes = tile.registers() * Vec::width;
  const float* from = a.bias.at(tile.batch, tile.head, tile.first) + keys.first * a.bias_column;
  for (int64_t r = 0; r < lanes; r += Vec::width) {
    int64_t j = keys.from;
    if (a.bias_column == 1 && r + Vec::width <= tile.rows) {
      for (; j + Vec::width <= keys.to; j += Vec::width) {
        Vec::transpose(from + r * a.bias.row + j, a.bias.row, tile.bias + j * kLanes + r, kLanes);
      }
    }
    for (; j < keys.to; ++j) {
      for (int64_t i = r; i < r + Vec::width; ++i) {
        const float* number = from + i * a.bias.row + j * a.bias_column;
        tile.bias[j * kLanes + i] = i < tile.rows ? *number : 0.0F;
      }
    }
  }
}

// A lane is closed where its bit is 0 or its bias is minus infinity, whatever the score is.
void add_bias_and_close(const Tile& tile, const Keys& keys) noexcept {
  const bool biased = tile.args->bias.data != nullptr;
  if (biased) load_bias(tile, keys);
  const int64_t lanes = tile.registers() * Vec::width;
  const uint64_t used = tile.lanes_used();
  const Vec::Reg closed = Vec::set(kMinusInfinity);
  const Vec::Reg scale = Vec::set(tile.args->scale);
  for (int64_t j = keys.from; j < keys.to; ++j) {
    float* scores = tile.scores + j * kLanes;
    if (biased) {
      for (int64_t r = 0; r < lanes; r += Vec::width) {
        const Vec::Reg bias = Vec::load(tile.bias + j * kLanes + r);
        const Vec::Reg sum = Vec::fma(Vec::load(scores + r), scale, bias);
        Vec::store(scores + r, Vec::select(Vec::equal(bias, closed), closed, sum));
      }
    }
    if (keys.bits == nullptr || (keys.bits[j] & used) == used) continue;
    for (int64_t r = 0; r < lanes; r += Vec::width) {
      Vec::store(scores + r,
                 Vec::select(Vec::bits(keys.bits[j], r), Vec::load(scores + r), closed));
    }
  }
}

// ---- softmax ----------------------------------------------------------------------------------

template <int64_t kRegs>
void soften(const Tile& tile, const Keys& keys, int64_t lane) noexcept {
  const Vec::Reg nothing = Vec::set(kMinusInfinity);
  const Vec::Reg scale = Vec::set(tile.scale * kLog2E);
  float* scores = tile.scores + lane;
  Vec::Reg top[kRegs];
  Vec::Reg even[kRegs];
  Vec::Reg odd[kRegs];
  for (int64_t v = 0; v < kRegs; ++v) {
    top[v] = Vec::load(tile.highest + lane + v * Vec::width);
    even[v] = top[v];
    odd[v] = top[v];
  }
  int64_t j = keys.from;
  for (; j + 2 <= keys.to; j += 2) {
#pragma GCC unroll 4
    for (int64_t v = 0; v < kRegs; ++v) {
      even[v] = Vec::max(even[v], Vec::load(scores + j * kLanes + v * Vec::width));
      odd[v] = Vec::max(odd[v], Vec::load(scores + (j + 1) * kLanes + v * Vec::width));
    }
  }
  for (; j < keys.to; ++j) {
    for (int64_t v = 0; v < kRegs; ++v) {
      even[v] = Vec::max(even[v], Vec::load(scores + j * kLanes + v * Vec::width));
    }
  }
  Vec::Reg base[kRegs];
  Vec::Reg sum[kRegs];
  for (int64_t v = 0; v < kRegs; ++v) {
    const Vec::Reg highest = Vec::max(even[v], odd[v]);
    // A lane that has seen nothing yet counts from 0, so that no infinity meets another.
    base[v] = Vec::select(Vec::equal(highest, nothing), Vec::set(0.0F), highest);
    const Vec::Reg fade = exp2_below_zero(Vec::mul(Vec::sub(top[v], base[v]), scale));
    Vec::store(tile.highest + lane + v * Vec::width, highest);
    Vec::store(tile.fade + lane + v * Vec::width, fade);
    sum[v] = Vec::set(0.0F);
  }
  for (j = keys.from; j < keys.to; ++j) {
#pragma GCC unroll 4
    for (int64_t v = 0; v < kRegs; ++v) {
      float* at = scores + j * kLanes + v * Vec::width;
      // The difference first: a score near the end of the range times the scale is infinite.
      const Vec::Reg below = Vec::mul(Vec::sub(Vec::load(at), base[v]), scale);
      const Vec::Reg weight = exp2_below_zero(below);
      Vec::store(at, weight);
      sum[v] = Vec::add(sum[v], weight);
    }
  }
  for (int64_t v = 0; v < kRegs; ++v) {
    float* total = tile.total + lane + v * Vec::width;
    const Vec::Reg fade = Vec::load(tile.fade + lane + v * Vec::width);
    Vec::store(total, Vec::fma(Vec::load(total), fade, sum[v]));
  }
}

// ---- values -----------------------------------------------------------------------------------

// kColumns value columns x kRegs registers of queries over all keys of the tile. A tile is summed
// from zero and then added, which keeps rounding errors from growing with the number of keys.
template <int64_t kRegs, int64_t kColumns>
void mix_block(const Tile& tile, const Keys& keys, int64_t lane, int64_t column) noexcept {
  const AttendArgs& a = *tile.args;
  float* output = tile.output + column * kLanes + lane;
  Vec::Reg sum[kColumns][kRegs];
#pragma GCC unroll 8
  for (int64_t c = 0; c < kColumns; ++c) {
#pragma GCC unroll 4
    for (int64_t v = 0; v < kRegs; ++v) sum[c][v] = Vec::set(0.0F);
  }
  const float* value = a.value.at(tile.batch, tile.kv_head, keys.first + keys.from) + column;
  const float* weights = tile.scores + keys.from * kLanes + lane;
  for (int64_t j = keys.from; j < keys.to; ++j, value += a.value.row, weights += kLanes) {
    Vec::Reg w[kRegs];
#pragma GCC unroll 4
    for (int64_t v = 0; v < kRegs; ++v) w[v] = Vec::load(weights + v * Vec::width);
#pragma GCC unroll 8
    for (int64_t c = 0; c < kColumns; ++c) {
      const Vec::Reg number = Vec::set(value[c]);
#pragma GCC unroll 4
      for (int64_t v = 0; v < kRegs; ++v) sum[c][v] = Vec::fma(w[v], number, sum[c][v]);
    }
  }
#pragma GCC unroll 8
  for (int64_t c = 0; c < kColumns; ++c) {
#pragma GCC unroll 4
    for (int64_t v = 0; v < kRegs; ++v) {
      float* at = output + c * kLanes + v * Vec::width;
      const Vec::Reg fade = Vec::load(tile.fade + lane + v * Vec::width);
      Vec::store(at, Vec::fma(Vec::load(at), fade, sum[c][v]));
    }
  }
}

template <int64_t kRegs>
void mix_lanes(const Tile& tile, const Keys& keys, int64_t lane) noexcept {
  const int64_t columns = tile.args->value_dim;
  int64_t c = 0;
  for (; c + kRows <= columns; c += kRows) mix_block<kRegs, kRows>(tile, keys, lane, c);
  if (kRows == 8 && c + 4 <= columns) {
    mix_block<kRegs, 4>(tile, keys, lane, c);
    c += 4;
  }
  for (; c < columns; ++c) mix_block<kRegs, 1>(tile, keys, lane, c);
}

// The same sums in the same order, leaving out what a lane may not see: a closed lane's weight is
// 0, and 0 times NaN would not be.
void mix_open_lanes(const Tile& tile, const Keys& keys) noexcept {
  const AttendArgs& a = *tile.args;
  const Vec::Reg closed = Vec::set(kMinusInfinity);
  for (int64_t r = 0; r < tile.rows; r += Vec::width) {
    for (int64_t c = 0; c < a.value_dim; ++c) {
      float* output = tile.output + c * kLanes + r;
      Vec::Reg sum = Vec::set(0.0F);
      for (int64_t j = keys.from; j < keys.to; ++j) {
        const Vec::Reg number = Vec::set(a.value.at(tile.batch, tile.kv_head, keys.first + j)[c]);
        Vec::Reg next = Vec::fma(Vec::load(tile.scores + j * kLanes + r), number, sum);
        if (keys.bits != nullptr) next = Vec::select(Vec::bits(keys.bits[j], r), next, sum);
        if (a.bias.data != nullptr) {
          const Vec::Reg bias = Vec::load(tile.bias + j * kLanes + r);
          next = Vec::select(Vec::equal(bias, closed), sum, next);
        }
        sum = next;
      }
      Vec::store(output, Vec::fma(Vec::load(output), Vec::load(tile.fade + r), sum));
    }
  }
}

bool values_are_finite(const Tile& tile, const Keys& keys) noexcept {
  const AttendArgs& a = *tile.args;
  const Vec::Reg zero = Vec::set(0.0F);
  Vec::Reg sum = zero;
  for (int64_t j = keys.from; j < keys.to; ++j) {
    const float* row = a.value.at(tile.batch, tile.kv_head, keys.first + j);
    int64_t c = 0;
    for (; c + Vec::width <= a.value_dim; c += Vec::width) {
      sum = Vec::fma(Vec::load(row + c), zero, sum);
    }
    if (c < a.value_dim) sum = Vec::fma(Vec::load_partial(row + c, a.value_dim - c), zero, sum);
  }
  return Vec::sum(sum) == 0.0F;
}

// ---- one key tile, one task -------------------------------------------------------------------

void take_keys(const Tile& tile, int64_t key_tile, const uint64_t* bits) noexcept {
  const AttendArgs& a = *tile.args;
  Keys keys{key_tile * kKeyTile, 0, 0, bits};
  keys.to = smaller(a.kv_len - keys.first, kKeyTile);
  const bool closing = bits != nullptr || a.bias.data != nullptr;
  if (bits != nullptr) {
    const uint64_t used = tile.lanes_used();
    while (keys.from < keys.to && (bits[keys.from] & used) == 0) ++keys.from;
    while (keys.from < keys.to && (bits[keys.to - 1] & used) == 0) --keys.to;
    if (keys.from == keys.to) return;
  }
  score(tile, keys);
  if (closing) add_bias_and_close(tile, keys);
  const bool careful = closing && !values_are_finite(tile, keys);
  const int64_t registers = tile.registers();
  for (int64_t v = 0; v < registers; v += Vec::block_regs) {
    const int64_t lane = v * Vec::width;
    switch (smaller(registers - v, Vec::block_regs)) {
      case 1:
        soften<1>(tile, keys, lane);
        if (!careful) mix_lanes<1>(tile, keys, lane);
        break;
      case 2:
        soften<2>(tile, keys, lane);
        if (!careful) mix_lanes<2>(tile, keys, lane);
        break;
      case 3:
        soften<3>(tile, keys, lane);
        if (!careful) mix_lanes<3>(tile, keys, lane);
        break;
      default:
        soften<Vec::block_regs>(tile, keys, lane);
        if (!careful) mix_lanes<Vec::block_regs>(tile, keys, lane);
    }
  }
  if (careful) mix_open_lanes(tile, keys);
}

int64_t padded_values(const AttendArgs& a) noexcept {
  return (a.value_dim + Vec::width - 1) / Vec::width * Vec::width;
}

int64_t tile_workspace(const AttendArgs& a) noexcept {
  const int64_t biases = a.bias.data == nullptr ? 0 : kKeyTile;
  return kLanes * (a.head_dim + kKeyTile + padded_values(a) + biases + 3);
}

// Tasks count query tiles, the last one first, for with a causal pattern it has most to do.
void attend_tile(const AttendArgs& a, int64_t task, float* workspace) noexcept {
  const int64_t tiles = a.query_tiles();
  const int64_t number = tiles - 1 - task % tiles;
  Tile tile{};
  tile.args = &a;
  tile.head = task / tiles % a.q_heads;
  tile.batch = task / tiles / a.q_heads;
  tile.kv_head = tile.head / a.group();
  tile.first = number * kQueryTile;
  tile.rows = smaller(a.q_len - tile.first, kQueryTile);
  tile.query = workspace;
  tile.scores = tile.query + a.head_dim * kLanes;
  tile.output = tile.scores + kKeyTile * kLanes;
  tile.highest = tile.output + padded_values(a) * kLanes;
  tile.total = tile.highest + kLanes;
  tile.fade = tile.total + kLanes;
  tile.bias = tile.fade + kLanes;
  const float magnitude = a.scale < 0.0F ? -a.scale : a.scale;
  tile.scale = a.bias.data != nullptr || magnitude == 0.0F ? 1.0F : magnitude;

  turn_queries(tile);
  const int64_t lanes = tile.registers() * Vec::width;
  for (int64_t c = 0; c < a.value_dim; ++c) {
    for (int64_t r = 0; r < lanes; r += Vec::width) {
      Vec::store(tile.output + c * kLanes + r, Vec::set(0.0F));
    }
  }
  for (int64_t r = 0; r < kLanes; ++r) {
    tile.highest[r] = kMinusInfinity;
    tile.total[r] = 0.0F;
  }
  const headwise::Layout& layout = a.layout;
  if (layout.which == nullptr) {
    for (int64_t k = 0; k < a.key_tiles(); ++k) take_keys(tile, k, nullptr);
  } else {
    const int32_t* starts = layout.starts_of(tile.batch, tile.head) + number;
    for (int32_t e = starts[0]; e < starts[1]; ++e) {
      const int32_t* entry = layout.entries + int64_t{e} * 3;
      const uint64_t* bits = entry[2] < 0 ? nullptr : layout.bitmaps + entry[2] * kKeyTile;
      for (int32_t k = entry[0]; k < entry[0] + entry[1]; ++k) take_keys(tile, k, bits);
    }
  }
  store_output(tile);
  store_lse(tile);
}

}  // namespace

namespace headwise::HEADWISE_ISA {

void fill_attend_tile(KernelTable& table) noexcept {
  table.tile_workspace = tile_workspace;
  table.attend_tile = attend_tile;
}

}  // namespace headwise::HEADWISE_ISA
