// Linear maps of few rows against sums in double precision, in guarded memory.

#include <cmath>

#include "dispatch.h"
#include "linear.h"
#include "report.h"
#include "subjects.h"
#include "tensor.h"

namespace headwise::testing {

namespace {

// So many weights at least are worth a second thread, see linear.cpp; a task takes a quarter.
constexpr int64_t kTwoThreads = 1 << 17;
constexpr int64_t kOneLargeIn = 23;  // odd, so that both sides come

struct Drawn {
  int64_t rows, inputs, outputs;
  int threads;
};

Drawn small(Draw& draw) {
  return {draw.between(0, 9), draw.one_of<int64_t>({0, 1, 2, 15, 16, 17, 31, 64, 97, 260}),
          draw.one_of<int64_t>({0, 1, 3, 4, 5, 33, 67}), static_cast<int>(draw.between(1, 3))};
}

Drawn on_two_threads(Draw& draw) {
  const int64_t inputs = draw.one_of<int64_t>({97, 260, 1021, 4099});
  return {draw.between(1, 3), inputs, kTwoThreads / inputs + draw.between(1, 9),
          static_cast<int>(draw.between(2, 3))};
}

void check_call(Subject& subject, Draw& draw, Dtype dtype, Side side, const Drawn& sizes) {
  const int64_t rows = sizes.rows, inputs = sizes.inputs, outputs = sizes.outputs;
  const bool biased = draw.chance(50);
  const int64_t gap = draw.between(0, 3);
  Tensor input(dtype, {1, 1, rows, inputs}, {0, 0, inputs + gap, 1}, side);
  Tensor weight(dtype, {1, 1, outputs, inputs}, {0, 0, inputs + gap, 1}, side);
  Tensor bias = Tensor::packed(dtype, {1, 1, 1, outputs}, side);
  Tensor output(dtype, {1, 1, rows, outputs}, {0, 0, outputs + gap, 1}, side);
  for (Tensor* tensor : {&input, &weight, &bias}) tensor->fill(draw, 1.0);
  output.clear();

  LinearArgs a;
  a.dtype = dtype;
  a.input = input.data<void>();
  a.weight = weight.data<void>();
  a.bias = biased ? bias.data<void>() : nullptr;
  a.output = output.data<void>();
  a.input_row = a.weight_row = inputs + gap;
  a.output_row = outputs + gap;
  a.rows = rows;
  a.inputs = inputs;
  a.outputs = outputs;
  linear_rows(a, sizes.threads);

  subject.check(output.gaps_untouched(), "numbers outside the output were written");
  for (int64_t i = 0; i < rows; ++i) {
    for (int64_t o = 0; o < outputs; ++o) {
      double wanted = biased ? bias.get(0, 0, 0, o) : 0.0;
      double size = std::fabs(wanted);
      for (int64_t c = 0; c < inputs; ++c) {
        const double term = input.get(0, 0, i, c) * weight.get(0, 0, o, c);
        wanted += term;
        size += std::fabs(term);
      }
      const double allowed =
          rounding(dtype) * std::fabs(wanted) +
          (8.0 + std::sqrt(static_cast<double>(inputs))) * rounding(Dtype::kFloat32) * size + 1e-7;
      subject.measure(std::fabs(output.get(0, 0, i, o) - wanted) / allowed, "an output is wrong");
    }
  }
}

}  // namespace

bool test_linear_rows(const Plan& plan) {
  Subject subject("linear maps of few rows");
  for (const std::string& set : plan.sets) {
    use_set(set);
    for (const Dtype dtype : {Dtype::kFloat32, Dtype::kBFloat16, Dtype::kFloat16}) {
      for (int64_t number = 0; number < plan.cases; ++number) {
        announce(set + ", linear map " + std::to_string(number));
        Draw draw(static_cast<uint64_t>(number) * 3 + static_cast<uint64_t>(dtype));
        const Side side = number % 2 == 0 ? Side::kStart : Side::kEnd;
        const bool large = number % kOneLargeIn == kOneLargeIn - 1;
        check_call(subject, draw, dtype, side, large ? on_two_threads(draw) : small(draw));
      }
    }
  }
  return subject.finish();
}

}  // namespace headwise::testing
