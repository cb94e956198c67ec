#include "reference.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>

#include "philox.h"

namespace headwise::testing {

namespace {

constexpr double kInfinity = std::numeric_limits<double>::infinity();

// The numbers of one row of queries against all keys.
struct Row {
  std::vector<double> score, slope, weight, kept, d_weight, d_weight_size;

  explicit Row(int64_t keys) {
    for (auto* numbers : {&score, &slope, &weight, &kept, &d_weight, &d_weight_size}) {
      numbers->resize(static_cast<size_t>(keys));
    }
  }
};

class Computation {
 public:
  Computation(const Problem& problem, Part part)
      : p_(problem),
        part_(part),
        a_(problem.args.backward.call),
        row_(a_.kv_len),
        query_(p_.query.numbers()),
        key_(p_.key.numbers()),
        value_(p_.value.numbers()),
        d_output_(p_.d_output.numbers()) {
    const int64_t rows = a_.batches * a_.q_heads * a_.q_len;
    const int64_t keys = a_.batches * a_.kv_heads * a_.kv_len;
    found_.output = Expected(rows * a_.value_dim);
    found_.lse = Expected(rows);
    if (part_ == Part::kForward) return;
    found_.d_query = Expected(rows * a_.head_dim);
    found_.d_key = Expected(keys * a_.head_dim);
    found_.d_value = Expected(keys * a_.value_dim);
    found_.d_sinks = Expected(a_.sinks == nullptr ? 0 : a_.q_heads);
    const Sizes& bias = p_.d_bias_sizes;
    found_.d_bias = Expected(bias[0] * bias[1] * bias[2] * bias[3]);
    found_.d_table = Expected(a_.bias.table == nullptr ? 0 : a_.q_heads * a_.bias.table_width);
  }

  Reference run() {
    for (int64_t b = 0; b < a_.batches; ++b) {
      for (int64_t h = 0; h < a_.q_heads; ++h) {
        for (int64_t i = 0; i < a_.q_len; ++i) take_row(b, h, i);
      }
    }
    return std::move(found_);
  }

 private:
  int64_t query_row(int64_t b, int64_t h, int64_t i) const { return a_.row_number(b, h, i); }
  int64_t key_row(int64_t b, int64_t h, int64_t j) const {
    return (b * a_.kv_heads + h / a_.group()) * a_.kv_len + j;
  }

  void take_row(int64_t b, int64_t h, int64_t i) {
    open_.clear();
    for (int64_t j = 0; j < a_.kv_len; ++j) {
      if (p_.open(b, h, i, j)) open_.push_back(j);
    }
    const auto at = static_cast<size_t>(query_row(b, h, i));
    if (open_.empty()) {
      found_.lse.number[at] = -kInfinity;
      return;
    }
    double top = a_.sinks == nullptr ? -kInfinity : double{a_.sinks[h]};
    for (const int64_t j : open_) top = std::max(top, score(b, h, i, j));
    double sum = a_.sinks == nullptr ? 0.0 : std::exp(double{a_.sinks[h]} - top);
    for (const int64_t j : open_) sum += std::exp(row_.score[static_cast<size_t>(j)] - top);
    const double lse = top + std::log(sum);
    found_.lse.number[at] = lse;
    found_.lse.size[at] = 1.0;
    found_.highest = std::max(found_.highest, std::fabs(lse));
    for (const int64_t j : open_) {
      const auto k = static_cast<size_t>(j);
      row_.weight[k] = std::exp(row_.score[k] - lse);
      row_.kept[k] = kept(b, h, i, j);
    }
    add_output(b, h, i);
    if (part_ == Part::kAll) add_gradients(b, h, i, lse);
  }

  double score(int64_t b, int64_t h, int64_t i, int64_t j) {
    const double* q = &query_[static_cast<size_t>(query_row(b, h, i) * a_.head_dim)];
    const double* k = &key_[static_cast<size_t>(key_row(b, h, j) * a_.head_dim)];
    double dot = 0.0;
    double size = 0.0;
    for (int64_t d = 0; d < a_.head_dim; ++d) {
      dot += q[d] * k[d];
      size += std::fabs(q[d] * k[d]);
    }
    double shaped = double{a_.scale} * dot;
    const auto at = static_cast<size_t>(j);
    row_.slope[at] = 1.0;
    if (a_.softcap > 0.0F) {
      const double bent = std::tanh(shaped / double{a_.softcap});
      shaped = double{a_.softcap} * bent;
      row_.slope[at] = 1.0 - bent * bent;
    }
    const double added = bias(b, h, i, j);
    found_.highest =
        std::max(found_.highest, std::fabs(double{a_.scale}) * size + std::fabs(added));
    return row_.score[at] = shaped + added;
  }

  double bias(int64_t b, int64_t h, int64_t i, int64_t j) const {
    const Bias& added = a_.bias;
    if (added.dense.data != nullptr) return p_.bias.get(b, h, i, j);
    if (added.slopes != nullptr) {
      return -double{added.slopes[h]} * std::fabs(static_cast<double>(added.distance(b, i, j)));
    }
    if (added.table == nullptr) return 0.0;
    return double{added.table[h * added.table_width + added.distance(b, i, j)]};
  }

  double kept(int64_t b, int64_t h, int64_t i, int64_t j) const {
    const Dropout& dropout = a_.dropout;
    if (dropout.threshold == 0) return 1.0;
    const auto words = philox_words({static_cast<uint32_t>(i), static_cast<uint32_t>(j / 4),
                                     static_cast<uint32_t>(h), static_cast<uint32_t>(b)},
                                    {dropout.key[0], dropout.key[1]});
    return words[static_cast<size_t>(j % 4)] < dropout.threshold ? 0.0 : double{dropout.factor};
  }

  void add_output(int64_t b, int64_t h, int64_t i) {
    const int64_t to = query_row(b, h, i) * a_.value_dim;
    for (const int64_t j : open_) {
      const auto k = static_cast<size_t>(j);
      const double factor = row_.weight[k] * row_.kept[k];
      const double* v = &value_[static_cast<size_t>(key_row(b, h, j) * a_.value_dim)];
      for (int64_t c = 0; c < a_.value_dim; ++c) {
        found_.output.add(to + c, factor * v[c], factor * std::fabs(v[c]));
      }
    }
  }

  void add_gradients(int64_t b, int64_t h, int64_t i, double lse) {
    const int64_t row = query_row(b, h, i);
    const double* g = &d_output_[static_cast<size_t>(row * a_.value_dim)];
    double mean = 0.0;
    double mean_size = 0.0;
    for (const int64_t j : open_) {
      const auto k = static_cast<size_t>(j);
      const int64_t at = key_row(b, h, j) * a_.value_dim;
      const double* v = &value_[static_cast<size_t>(at)];
      const double factor = row_.weight[k] * row_.kept[k];
      double dot = 0.0;
      double size = 0.0;
      for (int64_t c = 0; c < a_.value_dim; ++c) {
        dot += g[c] * v[c];
        size += std::fabs(g[c] * v[c]);
        found_.d_value.add(at + c, factor * g[c], std::fabs(factor * g[c]));
      }
      row_.d_weight[k] = row_.kept[k] * dot;
      row_.d_weight_size[k] = row_.kept[k] * size;
      mean += row_.weight[k] * row_.d_weight[k];
      mean_size += row_.weight[k] * row_.d_weight_size[k];
    }
    if (p_.args.backward.d_lse != nullptr) {
      const double from_lse = double{p_.args.backward.d_lse[row]};
      mean -= from_lse;
      mean_size += std::fabs(from_lse);
    }
    if (a_.sinks != nullptr) {
      const double weight = std::exp(double{a_.sinks[h]} - lse);
      found_.d_sinks.add(h, -weight * mean, weight * mean_size);
    }
    for (const int64_t j : open_) add_pair(b, h, i, j, mean, mean_size);
  }

  void add_pair(int64_t b, int64_t h, int64_t i, int64_t j, double mean, double mean_size) {
    const auto k = static_cast<size_t>(j);
    const double d_score = row_.weight[k] * (row_.d_weight[k] - mean);
    const double size = row_.weight[k] * (row_.d_weight_size[k] + mean_size);
    const double d_dot = double{a_.scale} * row_.slope[k] * d_score;
    const double dot_size = std::fabs(double{a_.scale}) * size;
    const int64_t q = query_row(b, h, i) * a_.head_dim;
    const int64_t at = key_row(b, h, j) * a_.head_dim;
    for (int64_t d = 0; d < a_.head_dim; ++d) {
      const double from_key = key_[static_cast<size_t>(at + d)];
      const double from_query = query_[static_cast<size_t>(q + d)];
      found_.d_query.add(q + d, d_dot * from_key, dot_size * std::fabs(from_key));
      found_.d_key.add(at + d, d_dot * from_query, dot_size * std::fabs(from_query));
    }
    if (a_.bias.dense.data != nullptr) {
      const std::array<int64_t, 4> index = {b, h, i, j};
      int64_t to = 0;
      for (size_t axis = 0; axis < 4; ++axis) {
        to = to * p_.d_bias_sizes[axis] + (p_.d_bias_sizes[axis] == 1 ? 0 : index[axis]);
      }
      found_.d_bias.add(to, d_score, size);
    }
    if (a_.bias.table != nullptr) {
      found_.d_table.add(h * a_.bias.table_width + a_.bias.distance(b, i, j), d_score, size);
    }
  }

  const Problem& p_;
  const Part part_;
  const AttendArgs& a_;
  Row row_;
  std::vector<int64_t> open_;  // the keys that the row may see
  std::vector<double> query_, key_, value_, d_output_;
  Reference found_;
};

}  // namespace

Reference compute_reference(const Problem& problem, Part part) {
  return Computation(problem, part).run();
}

}  // namespace headwise::testing
