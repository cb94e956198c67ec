// A chunk of tokens of one key/value head: its readers look at a state and at its writers, and its
// writers are added to a state.
//
//   tokens        ... | b  .  .  .  e | ...        forwards     backwards
//   readers see       writers up to them           entered at   left at    the edge before b
//                                                  left at      entered at the edge behind e
//
// Chunks are taken from the first to the last, `backwards` from the last to the first. The state
// that is read is that at the edge where the chunk is entered: all writers taken before, `gone`
// steps from a reader. The chunk's own are added up as seen from the edge where it is left, `left`
// steps from a writer. Backwards a reader sees the writers from its own place on.
#pragma once

#include "kernels/product.h"

namespace {

using headwise::Dtype;
using headwise::LinearSumsArgs;
using headwise::Tensor4;

constexpr int64_t kChunk = 64;
constexpr int64_t kRowBlock = 16;  // rows that meet the same lanes; a multiple of a register

struct Span {
  int64_t begin, end;
  int64_t count() const noexcept { return end - begin; }
};

// e^(exponent - scale + more), no sum above 0; 0 where there is nothing. The first two are near
// each other and may be large.
inline float share_of(float exponent, float scale, float more) noexcept {
  return scale == kMinusInfinity ? 0.0F : exp_of_one((exponent - scale) + more);
}

// Copies rows as floats into `room`, whole registers long.
inline void load_rows(const Tensor4<const void>& tensor, Dtype dtype, int64_t batch, int64_t head,
                      Span rows, int64_t dim, float* room) noexcept {
  const auto copy = [&](auto number) noexcept {
    using T = decltype(number);
    copy_words<Widened<T>>(tensor.at<const T>(batch, head, rows.begin), tensor.row, rows.count(),
                           dim, room);
  };
  switch (dtype) {
    case Dtype::kFloat32: copy(float{}); break;
    case Dtype::kBFloat16: copy(BFloat16{}); break;
    case Dtype::kFloat16: copy(Float16{}); break;
  }
}

struct Chunk {
  const LinearSumsArgs& a;
  const int64_t wide;        // whole registers of features
  const int64_t wide_value;  // and of values
  float* query;              // kChunk x wide
  float* key;                // kChunk x wide, 0 behind the last
  float* key_lanes;          // wide x kChunk
  float* value;              // kChunk x wide_value, 0 behind the last
  float* scaled;             // kChunk x wide_value
  float* output;             // kChunk x wide_value
  float* weights;            // kChunk x kChunk
  float* total;              // kChunk: the normaliser
  float* gain;               // kChunk
  int64_t batch = 0, kv_head = 0;
  Span tokens{0, 0};
  float decay = 0.0F;
  int64_t taken = -1;  // whose keys and values these are
  bool is_turned = false;
  bool is_finite = false;

  Chunk(const LinearSumsArgs& args, float* room) noexcept
      : a(args),
        wide(whole_registers(args.features)),
        wide_value(whole_registers(args.value_dim)),
        query(room),
        key(query + kChunk * wide),
        key_lanes(key + kChunk * wide),
        value(key_lanes + kChunk * wide),
        scaled(value + kChunk * wide_value),
        output(scaled + kChunk * wide_value),
        weights(output + kChunk * wide_value),
        total(weights + kChunk * kChunk),
        gain(total + kChunk) {}
  static int64_t workspace(const LinearSumsArgs& a) noexcept {
    return 3 * kChunk * (whole_registers(a.features) + whole_registers(a.value_dim)) +
           kChunk * (kChunk + 2);
  }

  void turn_to(int64_t sample, int64_t head, Span part, float log_decay) noexcept {
    batch = sample;
    kv_head = head;
    tokens = part;
    decay = log_decay;
    taken = -1;
  }

  bool has_factors() const noexcept {
    return a.gain != nullptr || a.offset != nullptr || decay != 0.0F;
  }

  void take_queries(int64_t reader) const noexcept {
    load_rows(a.query, a.query_dtype, batch, kv_head * a.readers + reader, tokens, a.features,
              query);
  }

  void take_keys(int64_t writer) noexcept {
    if (taken == writer) return;
    const int64_t head = kv_head * a.writers + writer;
    const int64_t count = tokens.count();
    load_rows(a.key, a.key_dtype, batch, head, tokens, a.features, key);
    load_rows(a.value, a.value_dtype, batch, head, tokens, a.value_dim, value);
    for (int64_t i = count * wide; i < kChunk * wide; i += Vec::width) {
      Vec::store(key + i, Vec::set(0.0F));
    }
    is_finite = all_finite(value, wide_value, count, a.value_dim);
    for (int64_t j = 0; j < kChunk; ++j) gain[j] = j < count ? gain_of(writer, j) : kMinusInfinity;
    taken = writer;
    is_turned = false;
  }

  // What is in the state at the edge where the chunk is entered, for the queries taken.
  void read_state(const float* sums, const float* normaliser, float log_scale,
                  int64_t reader) const noexcept {
    float factor[kChunk];
    // Such rows have the factor of the state that is returned, which without gains is 1.
    const bool is_plain = !a.causal && a.offset == nullptr;
    for (int64_t i = 0; i < tokens.count(); ++i) {
      factor[i] = is_plain ? 1.0F : factor_of((log_scale + offset_of(reader, i)) + gone(i) * decay);
      total[i] = factor[i] * dot(query + i * wide, normaliser);
    }
    float* to = output;
    const int64_t row = wide_value;
    const float* factors = factor;
    multiply<Plain, false>({words(query), wide, 1}, tokens.count(), {sums, wide_value},
                           wide_value / Vec::width, a.features,
                           [=](int64_t i, int64_t lane, Vec::Reg sum) noexcept {
                             Vec::store(to + i * row + lane, Vec::mul(sum, Vec::set(factors[i])));
                           });
  }

  // What the chunk's own writers have for the queries taken.
  void read_chunk(int64_t reader) noexcept {
    if (!is_turned) turn({words(key), wide}, kChunk, wide, key_lanes, kChunk);
    is_turned = true;
    for (int64_t i = 0; i < tokens.count(); i += kRowBlock) {
      const int64_t rows = smaller(kRowBlock, tokens.count() - i);
      const int64_t from = a.backwards ? i : 0;
      const int64_t to = a.backwards ? kChunk : i + kRowBlock;
      float* scores = weights + i * kChunk + from;
      multiply<Plain, false>({words(query + i * wide), wide, 1}, rows, {key_lanes + from, kChunk},
                             (to - from) / Vec::width, a.features,
                             [=](int64_t r, int64_t lane, Vec::Reg sum) noexcept {
                               Vec::store(scores + r * kChunk + lane, sum);
                             });
      for (int64_t r = i; r < i + rows; ++r) shape(reader, r, from, to);
      if (is_finite) {
        mix(i, rows, from, to);
      } else {
        for (int64_t r = i; r < i + rows; ++r) {
          mix(r, 1, a.backwards ? r : 0, a.backwards ? kChunk : r + 1);
        }
      }
    }
  }

  void finish(int64_t reader) const noexcept {
    const int64_t head = (batch * a.kv_heads + kv_head) * a.readers + reader;
    float* to = a.output + (head * a.q_len + tokens.begin) * a.value_dim;
    for (int64_t i = 0; i < tokens.count(); ++i, to += a.value_dim) {
      copy(output + i * wide_value, to, a.value_dim);
    }
    if (a.normaliser == nullptr) return;
    copy(total, a.normaliser + head * a.q_len + tokens.begin, tokens.count());
  }

  // The highest exponent of a writer at the edge where the chunk is left.
  float highest(int64_t writer) const noexcept {
    float most = kMinusInfinity;
    for (int64_t j = 0; j < tokens.count(); ++j) {
      const float exponent = gain_of(writer, j) + left(j) * decay;
      if (exponent > most) most = exponent;
    }
    return most;
  }

  // Adds the keys and values taken to `kept` times what is in the state.
  void write(int64_t writer, float log_scale, float kept, float* sums,
             float* normaliser) const noexcept {
    const int64_t count = tokens.count();
    float factor[kChunk];
    for (int64_t j = 0; j < count; ++j) {
      factor[j] = share_of(gain_of(writer, j), log_scale, left(j) * decay);
    }
    const float* written = value;
    if (has_factors()) {
      for (int64_t j = 0; j < count; ++j) {
        for (int64_t c = j * wide_value; c < (j + 1) * wide_value; c += Vec::width) {
          Vec::store(scaled + c, Vec::mul(Vec::load(value + c), Vec::set(factor[j])));
        }
      }
      written = scaled;
    }
    const Vec::Reg stays = Vec::set(kept);
    const int64_t row = wide_value;
    multiply<Plain, false>({words(key), 1, wide}, a.features, {written, wide_value},
                           wide_value / Vec::width, count,
                           [=](int64_t f, int64_t lane, Vec::Reg sum) noexcept {
                             float* at = sums + f * row + lane;
                             Vec::store(at, Vec::fma(Vec::load(at), stays, sum));
                           });
    for (int64_t f = 0; f < wide; f += Vec::width) {
      Vec::Reg sum = Vec::set(0.0F);
      for (int64_t j = 0; j < count; ++j) {
        sum = Vec::fma(Vec::load(key + j * wide + f), Vec::set(factor[j]), sum);
      }
      Vec::store(normaliser + f, Vec::fma(Vec::load(normaliser + f), stays, sum));
    }
  }

 private:
  using Plain = Widened<float>;

  static const Word* words(const float* at) noexcept { return reinterpret_cast<const Word*>(at); }
  static void copy(const float* from, float* to, int64_t count) noexcept {
    for (int64_t i = 0; i < count; i += Vec::width) {
      const int64_t rest = smaller(count - i, Vec::width);
      Vec::store_partial(to + i, Vec::load_partial(from + i, rest), rest);
    }
  }
  static float factor_of(float exponent) noexcept {
    return exponent == kMinusInfinity ? 0.0F : exp_of_one(exponent);
  }
  float dot(const float* one, const float* other) const noexcept {
    Vec::Reg sum = Vec::set(0.0F);
    for (int64_t f = 0; f < wide; f += Vec::width) {
      sum = Vec::fma(Vec::load(one + f), Vec::load(other + f), sum);
    }
    return Vec::sum(sum);
  }
  // Steps from the edge where the chunk is entered to a reader, and from a writer to the other one.
  float gone(int64_t i) const noexcept {
    if (!a.causal) return 0.0F;
    return static_cast<float>(a.backwards ? tokens.count() - i : i + 1);
  }
  float left(int64_t j) const noexcept {
    return static_cast<float>(a.backwards ? j : tokens.count() - 1 - j);
  }
  float offset_of(int64_t reader, int64_t i) const noexcept {
    if (a.offset == nullptr) return 0.0F;
    const int64_t head = (batch * a.kv_heads + kv_head) * a.readers + reader;
    return a.offset[head * a.q_len + tokens.begin + i];
  }
  float gain_of(int64_t writer, int64_t j) const noexcept {
    if (a.gain == nullptr) return 0.0F;
    const int64_t head = (batch * a.kv_heads + kv_head) * a.writers + writer;
    return a.gain[head * a.kv_len + tokens.begin + j];
  }

  // Turns products of a row to weights, closed ones to 0, and adds them up.
  void shape(int64_t reader, int64_t i, int64_t from, int64_t to) const noexcept {
    const Vec::Reg here = Vec::set(static_cast<float>(i));
    const Vec::Reg rate = Vec::set(a.backwards ? -decay : decay);
    const Vec::Reg offset = Vec::set(offset_of(reader, i));
    const Factor factor(kLog2E);
    Vec::Reg sum = Vec::set(0.0F);
    for (int64_t j = from; j < to; j += Vec::width) {
      const Vec::Reg lanes = Vec::add(Vec::set(static_cast<float>(j)), Vec::count_up());
      const Vec::Mask closed = a.backwards ? Vec::less(lanes, here) : Vec::less(here, lanes);
      float* at = weights + i * kChunk + j;
      Vec::Reg weight = Vec::load(at);
      if (has_factors()) {
        // Gain and offset are near each other, and the distance is small beside them.
        const Vec::Reg near = Vec::add(Vec::load(gain + j), offset);
        const Vec::Reg exponent = Vec::fma(Vec::sub(here, lanes), rate, near);
        weight = Vec::mul(weight, exp2_below_zero(exponent, factor));
      }
      weight = Vec::select(closed, Vec::set(0.0F), weight);
      Vec::store(at, weight);
      sum = Vec::add(sum, weight);
    }
    total[i] += Vec::sum(sum);
  }

  // Adds the values of lanes `from` to `to`, weighted, to the output of some rows.
  void mix(int64_t i, int64_t rows, int64_t from, int64_t to) const noexcept {
    const int64_t end = smaller(to, tokens.count());
    float* into = output + i * wide_value;
    const int64_t row = wide_value;
    multiply<Plain, false>({words(weights + i * kChunk + from), kChunk, 1}, rows,
                           {value + from * wide_value, wide_value}, wide_value / Vec::width,
                           end - from, [=](int64_t r, int64_t lane, Vec::Reg sum) noexcept {
                             float* at = into + r * row + lane;
                             Vec::store(at, Vec::add(Vec::load(at), sum));
                           });
  }
};

}  // namespace
