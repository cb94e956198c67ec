#include "answers.h"

#include <algorithm>
#include <cmath>

#include "attend.h"
#include "outputs.h"

namespace headwise::testing {

Answers run_calls(const Problem& problem, int threads) {
  Outputs outputs(problem);
  BiasBackwardArgs args = outputs.arguments();
  attend(args.backward.call, threads);
  attend_backward(args.backward, outputs.d_query.data<float>(), outputs.d_sinks_or_null(), threads);
  if (args.d_bias != nullptr || outputs.d_table_or_null() != nullptr) {
    bias_backward(args, outputs.d_table_or_null(), threads);
  }
  return outputs.answers();
}

Answers run_forward(const Problem& problem, int threads) {
  const Outputs outputs(problem, Part::kForward);
  attend(outputs.arguments().backward.call, threads);
  return outputs.answers();
}

namespace {

// Sets that multiply bytes make integers of 15 bits of queries, and of the weights of 64 keys at a
// time; see kernels/byte_scores.h and kernels/byte_values.h.
bool may_be_integers(const AttendArgs& a) {
  return a.store.is_scaled && a.dtype == Dtype::kBFloat16;
}

// What that does to a score: errors of the numbers of a query add up like random ones.
double integer_step(const Problem& problem) {
  double highest = 0.0;
  for (const double number : problem.query.numbers()) {
    if (std::isfinite(number)) highest = std::max(highest, std::fabs(number));
  }
  const std::vector<double> keys = problem.key.numbers();
  const auto dim = static_cast<size_t>(problem.args.backward.call.head_dim);
  double longest = 0.0;  // of the keys that somebody may see
  for (auto key = keys.begin(); key != keys.end(); key += static_cast<ptrdiff_t>(dim)) {
    double square = 0.0;
    for (size_t d = 0; d < dim; ++d)
      square += key[static_cast<ptrdiff_t>(d)] * key[static_cast<ptrdiff_t>(d)];
    if (std::isfinite(square)) longest = std::max(longest, std::sqrt(square));
  }
  return 0x1p-14 * std::fabs(double{problem.args.backward.call.scale}) * highest * longest;
}

// And to an output: light values err by a share of the heaviest, which have the same unit.
Expected with_shared_units(Expected expected, int64_t columns) {
  const auto row = static_cast<ptrdiff_t>(columns);
  for (auto size = expected.size.begin(); size != expected.size.end(); size += row) {
    const double more = *std::max_element(size, size + row) / 4.0;
    for (auto each = size; each != size + row; ++each) *each += more;
  }
  return expected;
}

class Comparison {
 public:
  Comparison(const Problem& problem, const Reference& reference) {
    const AttendArgs& a = problem.args.backward.call;
    stored_ = rounding(a.dtype);
    rounded_ = a.dtype == Dtype::kFloat32 ? 0.0 : stored_;
    pairs_ = a.dtype == Dtype::kBFloat16 ? stored_ : 0.0;
    sums_ = rounding(Dtype::kFloat32) * (16.0 + 4.0 * reference.highest);
    if (may_be_integers(a)) sums_ += integer_step(problem);
    if (a.dtype != Dtype::kFloat16) return;
    // Half of the smallest number; and what such errors of a row's output become in a gradient.
    least_ = 0x1p-25;
    least_gradient_ = least_ * 4.0 * static_cast<double>(a.value_dim * (a.q_len + 1));
  }

  // Output: weights may be rounded to the dtype where its pairs are multiplied.
  Bound output() const { return {1.01 * stored_, pairs_ + sums_, least_}; }
  // Gradients: the output that they start from has been rounded, too.
  Bound stored_gradient() const { return {1.01 * stored_, inner(), least_gradient_}; }
  Bound wide_gradient() const { return {0.0, inner(), least_gradient_}; }
  Bound lse() const { return {0.0, rounded_ / 64.0 + sums_, 0.0}; }

 private:
  double inner() const { return 2.0 * rounded_ + sums_; }

  double stored_, rounded_, pairs_, sums_;
  double least_ = 1e-30;
  double least_gradient_ = 1e-30;
};

}  // namespace

bool same_bits(const Answers& a, const Answers& b) {
  return same_bits(a.output, b.output) && same_bits(a.lse, b.lse) &&
         same_bits(a.d_query, b.d_query) && same_bits(a.d_key, b.d_key) &&
         same_bits(a.d_value, b.d_value) && same_bits(a.d_sinks, b.d_sinks) &&
         same_bits(a.d_bias, b.d_bias) && same_bits(a.d_table, b.d_table);
}

void compare_forward(const Problem& problem, const Reference& reference, const Answers& answers,
                     Subject& forward) {
  const Comparison bounds(problem, reference);
  const AttendArgs& a = problem.args.backward.call;
  const Expected output =
      may_be_integers(a) ? with_shared_units(reference.output, a.value_dim) : reference.output;
  measure(forward, "output", output, answers.output, bounds.output());
  measure(forward, "lse", reference.lse, answers.lse, bounds.lse());
  forward.check(answers.gaps_untouched, "wrote into a gap between rows");
}

void compare(const Problem& problem, const Reference& reference, const Answers& answers,
             Subject& forward, Subject& gradients, Subject& biases) {
  compare_forward(problem, reference, answers, forward);
  const Comparison bounds(problem, reference);
  measure(gradients, "d_query", reference.d_query, answers.d_query, bounds.wide_gradient());
  measure(gradients, "d_key", reference.d_key, answers.d_key, bounds.stored_gradient());
  measure(gradients, "d_value", reference.d_value, answers.d_value, bounds.stored_gradient());
  measure(gradients, "d_sinks", reference.d_sinks, answers.d_sinks, bounds.wide_gradient());
  if (problem.bias.sizes() != Sizes{} || problem.table.sizes() != Sizes{}) {
    measure(biases, "d_bias", reference.d_bias, answers.d_bias, bounds.wide_gradient());
    measure(biases, "d_table", reference.d_table, answers.d_table, bounds.wide_gradient());
  }
}

}  // namespace headwise::testing
