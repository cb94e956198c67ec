#include "linear_reference.h"

#include <algorithm>
#include <limits>

namespace headwise::testing {

namespace {

constexpr double kInfinity = std::numeric_limits<double>::infinity();

// A number of the state, or of a result. Every term of it has a power, the sum of a gain, of the
// decay over a distance and of an offset. Kernels make it step by step, and each step rounds a
// number that is no larger than the power and the decays in it: in all, an error of the power of
// twice the power and twice the decays.
struct Sum {
  double number = 0.0;
  double size = 0.0;   // of the terms
  double power = 0.0;  // the same, each times minus its power and its decays

  void add(double term, double term_power) {
    number += term;
    size += std::fabs(term);
    power -= term_power * std::fabs(term);
  }
  void fade(double left, double decay) {
    power = (power - 2.0 * decay * size) * left;
    size *= left;
    number *= left;
  }
  void add(const Sum& other, double factor, double other_power) {
    number += other.number * factor;
    size += other.size * std::fabs(factor);
    power += (other.power - other_power * other.size) * std::fabs(factor);
  }
};

// The state of one key/value head, divided by its highest power: rows of features, the last column
// of which is the normaliser.
class State {
 public:
  State(const LinearProblem& problem, int64_t batch, int64_t kv_head)
      : p_(problem),
        a_(problem.args),
        b_(batch),
        g_(kv_head),
        columns_(a_.value_dim + 1),
        decay_(a_.log_decay == nullptr ? 0.0 : p_.log_decay.get(0, g_, 0, 0)),
        kept_(static_cast<size_t>(a_.features * columns_)) {
    if (a_.before.sums == nullptr) return;
    log_scale_ = p_.log_scale.get(b_, g_, 0, 0);
    if (log_scale_ == -kInfinity) return;
    for (int64_t f = 0; f < a_.features; ++f) {
      for (int64_t c = 0; c < a_.value_dim; ++c) {
        at(f, c).add(p_.sums.get(b_, g_, f, c), log_scale_);
      }
      at(f, a_.value_dim).add(p_.normaliser.get(b_, g_, f, 0), log_scale_);
    }
  }

  // Goes on to the next token.
  void write(int64_t j) {
    const double before = log_scale_ + decay_;
    log_scale_ = before;
    for (int64_t w = g_ * a_.writers; w < (g_ + 1) * a_.writers; ++w) {
      log_scale_ = std::max(log_scale_, gain(w, j));
    }
    if (log_scale_ == -kInfinity) return;
    const double left = std::exp(before - log_scale_);
    for (Sum& sum : kept_) sum.fade(left, decay_);
    for (int64_t w = g_ * a_.writers; w < (g_ + 1) * a_.writers; ++w) {
      const double factor = std::exp(gain(w, j) - log_scale_);
      for (int64_t f = 0; f < a_.features && factor > 0.0; ++f) {
        const double key = p_.key.get(b_, w, j, f) * factor;
        for (int64_t c = 0; c < a_.value_dim; ++c) {
          at(f, c).add(key * p_.value.get(b_, w, j, c), gain(w, j));
        }
        at(f, a_.value_dim).add(key, gain(w, j));
      }
    }
  }

  void read(int64_t i, LinearReference& reference) const {
    for (int64_t r = g_ * a_.readers; r < (g_ + 1) * a_.readers; ++r) {
      double offset = a_.causal ? 0.0 : -scale();
      if (a_.offset != nullptr) offset = p_.offset.get(b_, r, i, 0);
      const double factor = log_scale_ == -kInfinity ? 0.0 : std::exp(log_scale_ + offset);
      const int64_t row = (b_ * a_.kv_heads * a_.readers + r) * a_.q_len + i;
      for (int64_t c = 0; c < columns_; ++c) {
        Sum sum;
        for (int64_t f = 0; f < a_.features && factor > 0.0; ++f) {
          sum.add(at(f, c), p_.query.get(b_, r, i, f) * factor, offset);
        }
        if (c < a_.value_dim) {
          keep(reference.output, row * a_.value_dim + c, sum);
        } else if (p_.has_total) {
          keep(reference.total, row, sum);
        }
      }
    }
  }

  void save(LinearReference& reference) const {
    const int64_t head = b_ * a_.kv_heads + g_;
    const double factor = log_scale_ == -kInfinity ? 0.0 : std::exp(log_scale_ - scale());
    for (int64_t f = 0; f < a_.features; ++f) {
      for (int64_t c = 0; c < columns_; ++c) {
        Sum sum;
        if (factor > 0.0) sum.add(at(f, c), factor, -scale());
        const int64_t row = head * a_.features + f;
        if (c < a_.value_dim) {
          keep(reference.sums, row * a_.value_dim + c, sum);
        } else {
          keep(reference.normaliser, row, sum);
        }
      }
    }
    reference.log_scale.add(head, scale(), log_scale_roundings());
  }

 private:
  double gain(int64_t writer, int64_t j) const {
    return a_.gain == nullptr ? 0.0 : p_.gain.get(b_, writer, j, 0);
  }
  Sum& at(int64_t f, int64_t c) { return kept_[static_cast<size_t>(f * columns_ + c)]; }
  const Sum& at(int64_t f, int64_t c) const { return kept_[static_cast<size_t>(f * columns_ + c)]; }

  // A state without gains has a scale of 0 at least, even without tokens.
  double scale() const { return a_.gain == nullptr ? std::max(log_scale_, 0.0) : log_scale_; }
  double log_scale_roundings() const {
    double largest = -decay_ * static_cast<double>(a_.kv_len);
    for (const Tensor* tensor : {&p_.gain, &p_.log_scale}) {
      for (const double number : tensor->numbers()) {
        if (std::isfinite(number)) largest = std::max(largest, std::fabs(number));
      }
    }
    return largest * steps();
  }
  // Chunks of 64 tokens in segments of 1,024: each multiplies what was there by a power.
  double steps() const {
    const int64_t tokens = a_.kv_len;
    return static_cast<double>(std::min(tokens, kSegment) / 64 + tokens / kSegment + 2);
  }
  void keep(Expected& expected, int64_t at, const Sum& sum) const {
    const double chains = 16.0 + std::sqrt(64.0 + static_cast<double>(a_.features)) + steps();
    expected.add(at, sum.number, chains * sum.size + 2.0 * std::max(0.0, sum.power));
  }

  const LinearProblem& p_;
  const LinearSumsArgs& a_;
  int64_t b_, g_, columns_;
  double decay_;
  double log_scale_ = -kInfinity;
  std::vector<Sum> kept_;
};

}  // namespace

LinearReference compute_linear_reference(const LinearProblem& problem) {
  const LinearSumsArgs& a = problem.args;
  const int64_t heads = a.batches * a.kv_heads;
  const int64_t rows = heads * a.readers * a.q_len;
  LinearReference reference{Expected(rows * a.value_dim), Expected(problem.has_total ? rows : 0),
                            Expected(heads * a.features * a.value_dim),
                            Expected(heads * a.features), Expected(heads)};
  for (int64_t b = 0; b < a.batches; ++b) {
    for (int64_t g = 0; g < a.kv_heads; ++g) {
      State state(problem, b, g);
      for (int64_t step = 0; step < a.kv_len; ++step) {
        const int64_t j = a.backwards ? a.kv_len - 1 - step : step;
        state.write(j);
        if (a.causal) state.read(j, reference);
      }
      for (int64_t i = 0; i < a.q_len && !a.causal; ++i) state.read(i, reference);
      state.save(reference);
    }
  }
  return reference;
}

}  // namespace headwise::testing
