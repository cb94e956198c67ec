#include "problem.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <sstream>

namespace headwise::testing {

namespace {

constexpr double kInfinity = std::numeric_limits<double>::infinity();
constexpr double kNaN = std::numeric_limits<double>::quiet_NaN();
constexpr int64_t kMostWork = 3'000'000;   // multiply-adds of one product
constexpr int64_t kMostFewWork = 300'000;  // of few queries

int64_t draw_length(Draw& draw) {
  if (draw.chance(3)) return 0;
  return draw.one_of<int64_t>({1,   2,   5,   15,  16,  17,  32,  47,  48,  49,  96,
                               127, 128, 129, 145, 255, 256, 257, 300, 511, 512, 513});
}

int64_t draw_dim(Draw& draw) {
  return draw.one_of<int64_t>({1, 3, 4, 8, 15, 16, 17, 40, 64, 80, 128, 256});
}

}  // namespace

Problem::Problem(uint64_t number, Dtype dtype, Side where, Queries queries)
    : side(where), number_(number) {
  Draw draw(number);
  call().dtype = dtype;
  if (queries == Queries::kAny) {
    draw_sizes(draw);
  } else {
    draw_few_sizes(draw);
  }
  draw_scores(draw);
  if (draw.chance(60)) {
    pattern = Pattern(draw, call().batches, call().q_heads, call().q_len, call().kv_len, side);
  }
  call().layout = pattern.layout();
  draw_tensors(draw);
  draw_bias(draw);
  draw_dropout(draw);
  if (draw.chance(50)) spoil(draw);
  for (Tensor* tensor : {&query, &key, &value, &d_output, &bias, &slopes, &table, &sinks, &d_lse}) {
    tensor->seal();
  }
  shifts.seal();
}

void Problem::draw_sizes(Draw& draw) {
  AttendArgs& a = call();
  a.head_dim = draw_dim(draw);
  a.value_dim = draw.chance(60) ? a.head_dim : draw_dim(draw);
  a.q_len = draw_length(draw);
  a.kv_len = draw.chance(40) && a.q_len > 0 ? a.q_len : draw_length(draw);
  a.batches = draw.chance(2) ? 0 : draw.between(1, 3);
  a.kv_heads = draw.chance(1) ? 0 : draw.between(1, 3);
  int64_t group = draw.one_of<int64_t>({1, 1, 2, 3, 7});
  const auto work = [&] {
    return a.batches * a.kv_heads * group * a.q_len * a.kv_len * std::max(a.head_dim, a.value_dim);
  };
  for (int64_t* size : {&a.batches, &a.kv_heads, &group}) {
    while (work() > kMostWork && *size > 1) --*size;
  }
  while (work() > kMostWork) {
    a.head_dim = draw_dim(draw);
    a.value_dim = draw_dim(draw);
  }
  a.q_heads = a.kv_heads * group;
}

void Problem::draw_few_sizes(Draw& draw) {
  AttendArgs& a = call();
  a.head_dim = draw.chance(40) ? draw_dim(draw) : draw.between(1, 260);
  a.value_dim = draw.chance(40) ? a.head_dim : draw.between(1, 260);
  a.q_len = draw.chance(2) ? 0 : draw.between(1, kFewQueries);
  a.kv_len = draw.chance(40) ? draw_length(draw) : draw.between(1, 900);
  a.batches = draw.chance(2) ? 0 : draw.between(1, 3);
  a.kv_heads = draw.between(1, 3);
  int64_t group = draw.one_of<int64_t>({1, 2, 3, 4, 5, 8});
  const auto work = [&] {
    return a.batches * a.kv_heads * group * a.q_len * a.kv_len * std::max(a.head_dim, a.value_dim);
  };
  while (work() > kMostFewWork) {
    int64_t* size = draw.one_of({&a.batches, &a.kv_heads, &group, &a.q_len, &a.kv_len});
    *size = (*size + 1) / 2;
  }
  a.q_heads = a.kv_heads * group;
}

void Problem::draw_scores(Draw& draw) {
  AttendArgs& a = call();
  const auto usual = static_cast<float>(1.0 / std::sqrt(static_cast<double>(a.head_dim)));
  a.scale = draw.one_of<float>({usual, usual, usual, 1.0F, 0.0F, -usual, 0.1F});
  if (draw.chance(25)) a.softcap = draw.one_of<float>({0.5F, 2.0F, 30.0F});
}

void Problem::draw_tensors(Draw& draw) {
  AttendArgs& a = call();
  const Dtype dtype = a.dtype;
  const auto drawn = [&](Tensor& tensor, Sizes sizes) {
    tensor = Tensor::drawn(draw, dtype, sizes, true, false, side);
    tensor.fill(draw, 1.0);
    return tensor.view<const void>();
  };
  a.query = drawn(query, {a.batches, a.q_heads, a.q_len, a.head_dim});
  a.key = drawn(key, {a.batches, a.kv_heads, a.kv_len, a.head_dim});
  a.value = drawn(value, {a.batches, a.kv_heads, a.kv_len, a.value_dim});
  args.backward.d_output = drawn(d_output, {a.batches, a.q_heads, a.q_len, a.value_dim});
  if (draw.chance(40)) {
    d_lse = Tensor::packed(Dtype::kFloat32, {1, a.batches, a.q_heads, a.q_len}, side);
    d_lse.fill(draw, 1.0);
    args.backward.d_lse = d_lse.data<float>();
  }
  if (draw.chance(30)) {
    sinks = Tensor::packed(Dtype::kFloat32, {1, 1, 1, a.q_heads}, side);
    sinks.fill(draw, 2.0);
    for (int64_t h = 0; h < a.q_heads; ++h) {
      if (draw.chance(10)) sinks.set(0, 0, 0, h, -kInfinity);
    }
    a.sinks = sinks.data<float>();
  }
}

void Problem::draw_bias(Draw& draw) {
  AttendArgs& a = call();
  const int64_t kind = draw.below(6);
  if (kind > 2) return;
  if (kind > 0) {
    draw_distances(draw, kind == 1);
    return;
  }
  bias = Tensor::drawn(draw, Dtype::kFloat32, {a.batches, a.q_heads, a.q_len, a.kv_len}, true, true,
                       side);
  bias.fill(draw, 1.0);
  if (draw.chance(40)) {
    const int percent = draw.one_of({1, 20, 90});
    for (int64_t i = 0; i < a.q_len; ++i) {
      for (int64_t j = 0; j < a.kv_len; ++j) {
        if (a.q_heads > 0 && a.batches > 0 && draw.chance(percent)) {
          bias.set(draw.below(a.batches), draw.below(a.q_heads), i, j, -kInfinity);
        }
      }
    }
  }
  a.bias.dense = bias.view<const void>();
  a.bias.dense_column = bias.strides()[3];
  d_bias_sizes = bias.sizes();
  for (size_t axis = 0; axis < 4; ++axis) {
    if (bias.strides()[axis] == 0 || draw.chance(15)) d_bias_sizes[axis] = 1;
  }
  args.batches = d_bias_sizes[0];
  args.heads = d_bias_sizes[1];
  args.sums_rows = d_bias_sizes[2] != a.q_len;
  args.sums_columns = d_bias_sizes[3] != a.kv_len;
}

void Problem::draw_distances(Draw& draw, bool slopes_only) {
  AttendArgs& a = call();
  const int64_t count = draw.chance(50) ? a.batches : 1;
  shifts = GuardedMemory(static_cast<size_t>(count) * sizeof(int64_t), side);
  int64_t furthest = 0;
  for (int64_t b = 0; b < count; ++b) {
    int64_t shift = slopes_only ? draw.between(-600, 600) : a.kv_len - 1 + draw.between(0, 5);
    if (a.kv_len == 0 && !slopes_only) shift = 0;
    shifts.as<int64_t>()[b] = shift;
    furthest = std::max(furthest, shift + a.q_len);
  }
  a.bias.shifts = shifts.as<int64_t>();
  a.bias.shifts_batch = count == 1 ? 0 : 1;
  if (slopes_only) {
    slopes = Tensor::packed(Dtype::kFloat32, {1, 1, 1, a.q_heads}, side);
    slopes.fill(draw, 0.1);
    a.bias.slopes = slopes.data<float>();
    return;
  }
  a.bias.table_width = furthest + draw.between(0, 3);
  table = Tensor::packed(Dtype::kFloat32, {1, 1, a.q_heads, a.bias.table_width}, side);
  table.fill(draw, 1.0);
  if (draw.chance(30)) {
    for (int64_t h = 0; h < a.q_heads && a.bias.table_width > 0; ++h) {
      table.set(0, 0, h, draw.below(a.bias.table_width), -kInfinity);
    }
  }
  a.bias.table = table.data<float>();
}

void Problem::draw_dropout(Draw& draw) {
  if (!draw.chance(25)) return;
  const double p = draw.one_of({1e-9, 0.1, 0.5, 0.9, 1.0});
  const double words = std::ldexp(1.0, 32);
  Dropout& dropout = call().dropout;
  dropout.threshold = static_cast<uint32_t>(std::clamp(std::floor(p * words), 1.0, words - 1.0));
  dropout.factor = p < 1.0 ? static_cast<float>(1.0 / (1.0 - p)) : 0.0F;
  dropout.key[0] = static_cast<uint32_t>(draw.word());
  dropout.key[1] = static_cast<uint32_t>(draw.word());
}

bool Problem::open(int64_t b, int64_t h, int64_t i, int64_t j) const {
  if (!pattern.allows(b, h, i, j)) return false;
  const Bias& added = call().bias;
  if (added.dense.data != nullptr) return bias.get(b, h, i, j) != -kInfinity;
  if (added.table != nullptr) return table.get(0, 0, h, added.distance(b, i, j)) != -kInfinity;
  return true;
}

bool Problem::key_closed(int64_t b, int64_t g, int64_t j) const {
  const AttendArgs& a = call();
  for (int64_t h = g * a.group(); h < (g + 1) * a.group(); ++h) {
    for (int64_t i = 0; i < a.q_len; ++i) {
      if (open(b, h, i, j)) return false;
    }
  }
  return true;
}

bool Problem::row_closed(int64_t b, int64_t h, int64_t i) const {
  for (int64_t j = 0; j < call().kv_len; ++j) {
    if (open(b, h, i, j)) return false;
  }
  return true;
}

// What nobody may look at is NaN or infinite; sometimes values that only some may look at, too.
void Problem::spoil(Draw& draw) {
  const AttendArgs& a = call();
  const bool seen = draw.chance(15);
  const auto odd = [&] { return draw.one_of({kNaN, kInfinity, -kInfinity}); };
  const auto spoil_row = [&](Tensor& tensor, int64_t b, int64_t h, int64_t i) {
    for (int64_t c = 0; c < tensor.sizes()[3]; ++c) {
      if (draw.chance(50)) tensor.set(b, h, i, c, odd());
    }
  };
  const bool keys = !key.repeats();
  const bool values = !value.repeats();
  for (int64_t b = 0; b < a.batches; ++b) {
    for (int64_t g = 0; g < a.kv_heads; ++g) {
      for (int64_t j = 0; j < a.kv_len; ++j) {
        const bool closed = key_closed(b, g, j);
        if (closed && keys) spoil_row(key, b, g, j);
        if (closed && values) spoil_row(value, b, g, j);
        if (!closed && values && seen && draw.chance(2)) {
          odd_values = true;
          value.set(b, g, j, draw.below(a.value_dim), odd());
        }
      }
    }
  }
  const bool queries = !query.repeats();
  const bool gradients = !d_output.repeats();
  for (int64_t b = 0; b < a.batches; ++b) {
    for (int64_t h = 0; h < a.q_heads; ++h) {
      for (int64_t i = 0; i < a.q_len; ++i) {
        if (!row_closed(b, h, i)) continue;
        if (queries) spoil_row(query, b, h, i);
        if (gradients) spoil_row(d_output, b, h, i);
        if (args.backward.d_lse != nullptr) d_lse.set(0, b, h, i, kNaN);
      }
    }
  }
}

std::string Problem::text() const {
  const AttendArgs& a = call();
  const char* dtypes[] = {"float32", "bfloat16", "float16"};
  std::ostringstream all;
  all << "case " << number_ << ": " << dtypes[static_cast<int>(a.dtype)] << " batches=" << a.batches
      << " q_heads=" << a.q_heads << " kv_heads=" << a.kv_heads << " q_len=" << a.q_len
      << " kv_len=" << a.kv_len << " head_dim=" << a.head_dim << " value_dim=" << a.value_dim
      << " scale=" << a.scale << " softcap=" << a.softcap << (pattern.there() ? " pattern" : "")
      << (a.bias.dense.data != nullptr ? " bias" : "")
      << (a.bias.slopes != nullptr ? " slopes" : "") << (a.bias.table != nullptr ? " table" : "")
      << (a.sinks != nullptr ? " sinks" : "") << (args.backward.d_lse != nullptr ? " d_lse" : "")
      << (a.dropout.threshold > 0 ? " dropout" : "") << (odd_values ? " odd values" : "")
      << (side == Side::kEnd ? " ends at a guard" : " starts at a guard");
  const char* names[] = {"query", "key", "value", "d_output"};
  int number = 0;
  for (const Tensor* tensor : {&query, &key, &value, &d_output}) {
    all << ' ' << names[number++];
    for (const int64_t stride : tensor->strides()) all << ':' << stride;
  }
  return all.str();
}

}  // namespace headwise::testing
