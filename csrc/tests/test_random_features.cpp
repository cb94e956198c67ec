// Random features of queries and keys against exponentials in double precision, in guarded memory.

#include <algorithm>
#include <limits>
#include <sstream>

#include "comparison.h"
#include "dispatch.h"
#include "each_task.h"
#include "random_features.h"
#include "subjects.h"

namespace headwise::testing {

namespace {

constexpr int64_t kLanes = 16;          // columns of directions come in multiples of it
constexpr int64_t kOneLargeIn = 20;     // worth several threads
constexpr int64_t kMostWork = 120'000;  // multiply-adds of the others

constexpr double kNaN = std::numeric_limits<double>::quiet_NaN();
constexpr double kInfinity = std::numeric_limits<double>::infinity();

// The same number gives the same call on either side of the guard page.
struct FeatureCall {
  FeatureCall(uint64_t number, Side where, bool is_spoiled = false) : side(where) {
    Draw draw(number);
    draw_sizes(draw, number % kOneLargeIn == kOneLargeIn - 1);
    args.dtype = static_cast<Dtype>(number % kDtypes);
    args.factor = draw.one_of({1.0F, 0.25F, 0.42044821F});
    args.log_norm = draw.one_of({0.0F, 2.0794415F, -1.5F});
    args.least = draw.one_of({0.0F, 1e-6F, 1e-3F});
    input = Tensor::drawn(draw, args.dtype, {args.batches, args.heads, args.length, args.dim}, true,
                          false, side);
    input.fill(draw, draw.one_of({0.3, 1.0, 1.0, 6.0}));
    // Columns behind the last direction change nothing: they stay NaN.
    directions = Tensor::packed(Dtype::kFloat32, {1, 1, args.dim, args.wide}, side);
    for (int64_t c = 0; c < args.dim; ++c) {
      for (int64_t f = 0; f < args.count; ++f) directions.set(0, 0, c, f, draw.bell());
    }
    if (is_spoiled) spoil(draw);
    input.seal();
    directions.seal();
    args.input = input.view<const void>();
    args.directions = directions.data<float>();
  }

  std::string text(uint64_t number) const {
    std::ostringstream all;
    all << "feature case " << number << ": dtype " << static_cast<int>(args.dtype)
        << " batches=" << args.batches << " heads=" << args.heads << " length=" << args.length
        << " dim=" << args.dim << " count=" << args.count << " wide=" << args.wide
        << " factor=" << args.factor
        << (side == Side::kEnd ? " ends at a guard" : " starts at a guard") << " input";
    for (const int64_t stride : input.strides()) all << ':' << stride;
    return all.str();
  }

  FeatureArgs args;  // without the outputs
  Tensor input, directions;
  Side side;
  std::vector<bool> is_odd;  // rows, in the order of the gains

 private:
  void draw_sizes(Draw& draw, bool is_large) {
    args.batches = draw.chance(2) ? 0 : draw.between(1, 2);
    args.heads = draw.chance(2) ? 0 : draw.between(1, 3);
    args.length = draw.one_of<int64_t>({0, 1, 2, 7, 31, 32, 33, 63, 64, 65});
    args.dim = draw.one_of<int64_t>({0, 1, 3, 8, 15, 16, 17, 33, 64, 80});
    args.count = draw.one_of<int64_t>({1, 2, 7, 8, 9, 15, 16, 17, 31, 33, 48, 64, 100});
    const auto work = [&] {
      return args.batches * args.heads * args.length * args.dim * args.count;
    };
    while (work() > kMostWork) {
      int64_t* size = draw.one_of({&args.batches, &args.heads, &args.length, &args.count});
      *size = (*size + 1) / 2;
    }
    if (is_large) {
      args.batches = args.heads = 1;
      args.length = draw.between(100, 170);
      args.dim = draw.between(50, 70);
      args.count = draw.between(100, 140);
    }
    args.wide = (args.count + kLanes - 1) / kLanes * kLanes + (draw.chance(20) ? kLanes : 0);
  }

  // Some rows are no longer finite.
  void spoil(Draw& draw) {
    is_odd.resize(static_cast<size_t>(args.batches * args.heads * args.length));
    if (input.repeats() || args.dim == 0) return;
    for (size_t row = 0; row < is_odd.size(); ++row) {
      is_odd[row] = draw.chance(30);
      if (!is_odd[row]) continue;
      const auto i = static_cast<int64_t>(row);
      const int64_t head = i / args.length;
      input.set(head / args.heads, head % args.heads, i % args.length, draw.below(args.dim),
                draw.one_of({kNaN, kInfinity, -kInfinity}));
    }
  }
};

// Results and their bounds, which depend on the dtype in part: `size` is the bound.
struct FeatureReference {
  Expected output, gain;
};

// Powers err like the sums of products they are, and their highest no more than the worst of them.
FeatureReference compute_features(const FeatureCall& call) {
  const FeatureArgs& a = call.args;
  const double step = rounding(Dtype::kFloat32);
  const double chain = 8.0 + std::sqrt(static_cast<double>(a.dim));
  const auto count = static_cast<size_t>(a.count);
  const int64_t rows = a.batches * a.heads * a.length;
  FeatureReference reference{Expected(rows * a.count), Expected(rows)};
  for (int64_t row = 0; row < rows; ++row) {
    const int64_t head = row / a.length;
    std::vector<double> powers(count);
    std::vector<double> errors(count);
    double square = 0.0;
    for (int64_t c = 0; c < a.dim; ++c) {
      const double x =
          call.input.get(head / a.heads, head % a.heads, row % a.length, c) * double{a.factor};
      square += x * x;
      for (size_t f = 0; f < count; ++f) {
        const double term = x * call.directions.get(0, 0, c, static_cast<int64_t>(f));
        powers[f] += term;
        errors[f] += chain * step * std::fabs(term);
      }
    }
    const double peak = *std::max_element(powers.begin(), powers.end());
    const double error = *std::max_element(errors.begin(), errors.end());
    const double gain = peak - square / 2.0 - double{a.log_norm};
    const double sizes = std::fabs(peak) + square + std::fabs(double{a.log_norm});
    reference.gain.add(row, gain, error + chain * step * square / 2.0 + 2.0 * step * sizes);
    for (size_t f = 0; f < count; ++f) {
      const double below = peak - powers[f];
      const double value = std::exp(-below);
      const double inner = value * (errors[f] + error + step * (below + 4.0));
      reference.output.add(row * a.count + static_cast<int64_t>(f), value + double{a.least},
                           inner + step * double{a.least});
    }
  }
  return reference;
}

struct Found {
  std::vector<double> output, gain;
};

template <class Run>
Found run(const FeatureCall& call, Run run_args) {
  FeatureArgs a = call.args;
  const Tensor output = Tensor::packed(a.dtype, {a.batches, a.heads, a.length, a.count}, call.side);
  const Tensor gain = Tensor::packed(Dtype::kFloat32, {a.batches, a.heads, a.length, 1}, call.side);
  a.output = output.data<void>();
  a.gain = gain.data<float>();
  run_args(a);
  return {output.numbers(), gain.numbers()};
}

Found run_call(const FeatureCall& call, int threads) {
  return run(call, [&](const FeatureArgs& a) { random_features(a, threads); });
}

Found run_tasks(const FeatureCall& call) {
  return run(call, [&](const FeatureArgs& a) {
    const Functions& kernel = kernels()[a.dtype];
    run_each(a.batches * a.heads * a.blocks(), kernel.feature_workspace(a), call.side,
             [&](int64_t task, float* room) { kernel.random_features(a, task, room); });
  });
}

// A row that is not finite gives NaN, no gain of minus infinity that would hide it, and changes no
// other row.
void check_spoiled(Subject& subject, const FeatureCall& spoiled, Found clean, Found found) {
  bool is_nan = true;
  const auto count = static_cast<size_t>(spoiled.args.count);
  for (size_t row = 0; row < found.gain.size(); ++row) {
    if (!spoiled.is_odd[row]) continue;
    is_nan = is_nan && std::isnan(found.gain[row]);
    clean.gain[row] = found.gain[row];
    for (size_t at = row * count; at < (row + 1) * count; ++at) {
      is_nan = is_nan && std::isnan(found.output[at]);
      clean.output[at] = found.output[at];
    }
  }
  subject.check(is_nan, "a row that is not finite gave something other than NaN");
  subject.check(same_bits(clean.output, found.output) && same_bits(clean.gain, found.gain),
                "a row that is not finite changed another one");
}

void check_call(Subject& subject, const Plan& plan, int64_t number) {
  const auto seed = static_cast<uint64_t>(number);
  const FeatureCall ends(seed, Side::kEnd);
  const FeatureCall starts(seed, Side::kStart);
  const FeatureCall spoiled(seed, Side::kEnd, true);
  const FeatureReference reference = compute_features(ends);
  const Dtype dtype = ends.args.dtype;
  const double least = dtype == Dtype::kFloat16 ? 0x1p-25 : 1e-30;
  for (const std::string& set : plan.sets) {
    use_set(set);
    announce(set + ", " + ends.text(seed));
    const Found found = run_call(ends, 1);
    measure(subject, "output", reference.output, found.output,
            {1.01 * rounding(dtype), 1.0, least});
    measure(subject, "gain", reference.gain, found.gain, {0.0, 1.0, 1e-30});
    const auto check = [&](const Found& other, const char* what) {
      subject.check(same_bits(found.output, other.output) && same_bits(found.gain, other.gain),
                    what);
    };
    check(run_call(ends, 2), "two threads give other bits");
    announce(set + ", " + starts.text(seed));
    check(run_call(starts, 5), "five threads give other bits");
    announce(set + ", task by task, " + ends.text(seed));
    check(run_tasks(ends), "a task depends on what its workspace held");
    announce(set + ", spoiled, " + spoiled.text(seed));
    check_spoiled(subject, spoiled, found, run_call(spoiled, 1));
  }
}

}  // namespace

bool test_random_features(const Plan& plan) {
  Subject subject("random features");
  for (int64_t number = plan.first; number < plan.first + plan.cases; ++number) {
    check_call(subject, plan, number);
  }
  return subject.finish();
}

}  // namespace headwise::testing
