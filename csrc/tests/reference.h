// What a call has to give, in double precision, row by row.
#pragma once

#include <vector>

#include "problem.h"

namespace headwise::testing {

// Each number, and the same sum over the sizes of its terms: rounding errors are measured by it.
struct Expected {
  std::vector<double> number, size;

  explicit Expected(int64_t count = 0)
      : number(static_cast<size_t>(count)), size(static_cast<size_t>(count)) {}
  void add(int64_t at, double term, double term_size) {
    number[static_cast<size_t>(at)] += term;
    size[static_cast<size_t>(at)] += term_size;
  }
};

struct Reference {
  Expected output, lse, d_query, d_key, d_value, d_sinks, d_bias, d_table;
  double highest = 0.0;  // the largest size of a score, of its terms and of a log-sum-exp
};

enum class Part { kForward, kAll };  // output and log-sum-exp, or gradients, too

Reference compute_reference(const Problem& problem, Part part = Part::kAll);

}  // namespace headwise::testing
