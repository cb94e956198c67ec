#include "linear_problem.h"

#include <algorithm>
#include <limits>
#include <sstream>

namespace headwise::testing {

namespace {

constexpr double kNaN = std::numeric_limits<double>::quiet_NaN();
constexpr double kInfinity = std::numeric_limits<double>::infinity();

constexpr double kEdge = 88.9;  // e to it is just too large for float32

constexpr int64_t kMostWork = 700'000;  // multiply-adds, of chunks of 64 tokens
constexpr int64_t kMostLongWork = 8'000'000;
constexpr uint64_t kOneLongIn = 20;  // of several segments, worth several threads

int64_t draw_length(Draw& draw) {
  return draw.one_of<int64_t>(
      {0, 1, 2, 3, 7, 15, 16, 17, 31, 33, 48, 63, 64, 65, 66, 80, 100, 127, 128, 129, 190, 257});
}

int64_t draw_long_length(Draw& draw) {
  return draw.one_of<int64_t>({1023, 1024, 1025, 1088, 1100, 2047, 2048, 2049, 2111});
}

int64_t draw_dim(Draw& draw) {
  if (draw.chance(2)) return 0;
  return draw.one_of<int64_t>({1, 2, 3, 5, 8, 15, 16, 17, 24, 31, 32, 33, 40, 64, 65, 100});
}

}  // namespace

LinearProblem::LinearProblem(uint64_t number, Side where, bool is_spoiled)
    : side(where), number_(number) {
  Draw draw(number);
  draw_sizes(draw);
  draw_numbers(draw);
  draw_state(draw);
  draw_powers(draw);
  has_total = draw.chance(80);
  if (is_spoiled) spoil(draw);
  for (Tensor* tensor :
       {&query, &key, &value, &gain, &offset, &log_decay, &sums, &normaliser, &log_scale}) {
    tensor->seal();
  }
}

void LinearProblem::draw_sizes(Draw& draw) {
  LinearSumsArgs& a = args;
  const bool is_long = number_ % kOneLongIn == kOneLongIn - 1;
  a.causal = draw.chance(60);
  a.backwards = draw.chance(a.causal ? 50 : 30);
  a.batches = draw.chance(2) ? 0 : draw.between(1, 3);
  a.kv_heads = draw.chance(2) ? 0 : draw.between(1, 4);
  (draw.chance(50) ? a.readers : a.writers) = draw.one_of<int64_t>({1, 1, 2, 3});
  a.kv_len = is_long ? draw_long_length(draw) : draw_length(draw);
  a.q_len = draw_length(draw);
  if (is_long && draw.chance(50)) a.q_len = draw_long_length(draw);
  if (a.causal) a.q_len = a.kv_len;
  a.features = is_long ? draw.between(11, 22) : draw_dim(draw);
  a.value_dim = is_long ? draw.between(11, 22) : draw_dim(draw);
  const auto work = [&] {
    const int64_t tokens = a.q_len * a.readers + a.kv_len * a.writers;
    return a.batches * a.kv_heads * tokens *
           (a.features * a.value_dim + 32 * (a.features + a.value_dim));
  };
  while (work() > (is_long ? kMostLongWork : kMostWork)) {
    int64_t* size = is_long ? draw.one_of({&a.batches, &a.kv_heads, &a.readers, &a.writers})
                            : draw.one_of({&a.batches, &a.kv_heads, &a.features, &a.value_dim});
    *size = (*size + 1) / 2;
  }
}

void LinearProblem::draw_numbers(Draw& draw) {
  LinearSumsArgs& a = args;
  const auto drawn = [&](Tensor& tensor, Dtype& dtype, Sizes sizes) {
    dtype = static_cast<Dtype>(draw.below(kDtypes));
    tensor = Tensor::drawn(draw, dtype, sizes, true, false, side);
    tensor.fill(draw, 1.0);
    return tensor.view<const void>();
  };
  const int64_t readers = a.kv_heads * a.readers;
  const int64_t writers = a.kv_heads * a.writers;
  a.query = drawn(query, a.query_dtype, {a.batches, readers, a.q_len, a.features});
  a.key = drawn(key, a.key_dtype, {a.batches, writers, a.kv_len, a.features});
  a.value = drawn(value, a.value_dtype, {a.batches, writers, a.kv_len, a.value_dim});
}

Tensor LinearProblem::floats(int64_t heads, int64_t length, int64_t columns) const {
  return Tensor::packed(Dtype::kFloat32, {args.batches, heads, length, columns}, side);
}

void LinearProblem::draw_state(Draw& draw) {
  if (draw.chance(50)) return;
  LinearSumsArgs& a = args;
  sums = floats(a.kv_heads, a.features, a.value_dim);
  normaliser = floats(a.kv_heads, a.features, 1);
  log_scale = floats(a.kv_heads, 1, 1);
  sums.fill(draw, 3.0);
  normaliser.fill(draw, 3.0);
  log_scale.fill(draw, draw.one_of({0.0, 1.0, 30.0}));
  for (int64_t b = 0; b < a.batches; ++b) {
    for (int64_t g = 0; g < a.kv_heads; ++g) {
      if (draw.chance(15)) log_scale.set(b, g, 0, 0, -kInfinity);
    }
  }
  a.before = {sums.data<float>(), normaliser.data<float>(), log_scale.data<float>()};
}

// Offsets may be left out where no power is above 0 without them.
void LinearProblem::draw_powers(Draw& draw) {
  LinearSumsArgs& a = args;
  if (a.causal && draw.chance(50)) {
    log_decay = Tensor::packed(Dtype::kFloat32, {1, a.kv_heads, 1, 1}, side);
    const double rate = draw.one_of({0.001, 0.02, 0.5, 20.0});
    for (int64_t g = 0; g < a.kv_heads; ++g) {
      log_decay.set(0, g, 0, 0, draw.chance(20) ? 0.0 : -rate * draw.unit());
    }
    a.log_decay = log_decay.data<float>();
  }
  const bool leaves_out = draw.chance(40);
  if (draw.chance(65)) draw_gains(draw, draw.one_of({0.1, 3.0, 40.0}));
  if (!leaves_out) {
    fill_offsets(draw);
    return;
  }
  if (!a.causal) return;
  for (Tensor* tensor : {&gain, &log_scale}) {
    const Sizes& sizes = tensor->sizes();
    for (int64_t b = 0; b < sizes[0]; ++b) {
      for (int64_t h = 0; h < sizes[1]; ++h) {
        for (int64_t i = 0; i < sizes[2]; ++i) {
          tensor->set(b, h, i, 0, -std::fabs(tensor->get(b, h, i, 0)));
        }
      }
    }
  }
}

// Some tokens, or all before or behind one, may be padding.
void LinearProblem::draw_gains(Draw& draw, double spread) {
  LinearSumsArgs& a = args;
  gain = floats(a.kv_heads * a.writers, a.kv_len, 1);
  gain.fill(draw, spread);
  const int64_t kind = draw.below(6);
  const int percent = draw.one_of({10, 90, 100});
  const bool is_edge = draw.chance(25);
  for (int64_t b = 0; b < a.batches; ++b) {
    const int64_t edge = draw.below(a.kv_len + 1);
    for (int64_t j = 0; j < a.kv_len; ++j) {
      const bool closed = (kind == 0 && j < edge) || (kind == 1 && j >= edge);
      for (int64_t h = 0; h < a.kv_heads * a.writers; ++h) {
        if (is_edge) gain.set(b, h, j, 0, -kEdge);
        if (closed || (kind == 2 && draw.chance(percent))) gain.set(b, h, j, 0, -kInfinity);
      }
    }
  }
  a.gain = gain.data<float>();
}

// Minus the highest power that a row sees, or less.
void LinearProblem::fill_offsets(Draw& draw) {
  LinearSumsArgs& a = args;
  offset = floats(a.kv_heads * a.readers, a.q_len, 1);
  a.offset = offset.data<float>();
  const double more = draw.one_of({0.0, 0.0, 1.0, 20.0});
  for (int64_t b = 0; b < a.batches; ++b) {
    for (int64_t g = 0; g < a.kv_heads; ++g) {
      const double decay = a.log_decay == nullptr ? 0.0 : log_decay.get(0, g, 0, 0);
      double highest = a.before.sums == nullptr ? -kInfinity : log_scale.get(b, g, 0, 0);
      const auto see = [&](int64_t j) {
        highest += decay;
        for (int64_t w = g * a.writers; w < (g + 1) * a.writers; ++w) {
          highest = std::max(highest, a.gain == nullptr ? 0.0 : gain.get(b, w, j, 0));
        }
      };
      for (int64_t j = 0; j < a.kv_len && !a.causal; ++j) see(j);
      for (int64_t step = 0; step < a.q_len; ++step) {
        const int64_t i = a.backwards ? a.q_len - 1 - step : step;
        if (a.causal) see(i);
        for (int64_t r = g * a.readers; r < (g + 1) * a.readers; ++r) {
          const double least = highest == -kInfinity ? 0.0 : highest;
          offset.set(b, r, i, 0, draw.chance(3) ? -kInfinity : -least - more * draw.unit());
        }
      }
    }
  }
}

bool LinearProblem::keeps_row(int64_t i) const {
  return args.causal && args.backwards ? i >= kept.token : i <= kept.token;
}

bool LinearProblem::keeps_token(int64_t j) const { return !args.causal || keeps_row(j); }

void LinearProblem::spoil(Draw& draw) {
  const LinearSumsArgs& a = args;
  if (a.batches * a.kv_heads * a.q_len == 0) return;
  kept = {draw.below(a.batches), draw.below(a.kv_heads), draw.below(a.q_len)};
  // Returns whether the head that is kept has got a number that is not finite.
  const auto spoil_rows = [&](Tensor& tensor, auto keeps) {
    if (tensor.repeats()) return false;
    const Sizes& sizes = tensor.sizes();
    bool has_odd = false;
    for (int64_t b = 0; b < sizes[0]; ++b) {
      for (int64_t h = 0; h < sizes[1]; ++h) {
        const bool here = b == kept.batch && h / (sizes[1] / a.kv_heads) == kept.kv_head;
        for (int64_t i = 0; i < sizes[2]; ++i) {
          for (int64_t c = 0; c < sizes[3]; ++c) {
            if ((here && keeps(i)) || draw.chance(50)) continue;
            tensor.set(b, h, i, c, draw.one_of({kNaN, kInfinity, -kInfinity}));
            has_odd = has_odd || here;
          }
        }
      }
    }
    return has_odd;
  };
  for (Tensor* tensor : {&query, &offset}) {
    spoil_rows(*tensor, [&](int64_t i) { return keeps_row(i); });
  }
  spoil_rows(gain, [&](int64_t j) { return keeps_token(j); });
  for (Tensor* tensor : {&key, &value}) {
    if (spoil_rows(*tensor, [&](int64_t j) { return keeps_token(j); })) has_mark = true;
  }
  for (Tensor* tensor : {&sums, &normaliser, &log_scale}) {
    spoil_rows(*tensor, [](int64_t) { return true; });
  }
  for (int64_t g = 0; g < log_decay.sizes()[1]; ++g) {
    if (g != kept.kv_head) log_decay.set(0, g, 0, 0, kNaN);
  }
}

std::string LinearProblem::text() const {
  const LinearSumsArgs& a = args;
  const char* dtypes[] = {"float32", "bfloat16", "float16"};
  std::ostringstream all;
  all << "linear case " << number_ << ":" << (a.causal ? " causal" : "")
      << (a.backwards ? " backwards" : "") << " batches=" << a.batches << " kv_heads=" << a.kv_heads
      << " readers=" << a.readers << " writers=" << a.writers << " q_len=" << a.q_len
      << " kv_len=" << a.kv_len << " features=" << a.features << " value_dim=" << a.value_dim
      << (a.gain != nullptr ? " gain" : "") << (a.offset != nullptr ? " offset" : "")
      << (a.log_decay != nullptr ? " log_decay" : "") << (a.before.sums != nullptr ? " state" : "")
      << (has_total ? " total" : "")
      << (side == Side::kEnd ? " ends at a guard" : " starts at a guard");
  const auto tell = [&](const char* name, Dtype dtype, const Tensor& tensor) {
    all << ' ' << name << ' ' << dtypes[static_cast<int>(dtype)];
    for (const int64_t stride : tensor.strides()) all << ':' << stride;
  };
  tell("query", a.query_dtype, query);
  tell("key", a.key_dtype, key);
  tell("value", a.value_dtype, value);
  return all.str();
}

}  // namespace headwise::testing
