// What a call has to give, in double precision, row by row.
#pragma once

#include "comparison.h"
#include "problem.h"

namespace headwise::testing {

struct Reference {
  Expected output, lse, d_query, d_key, d_value, d_sinks, d_bias, d_table;
  double highest = 0.0;  // the largest size of a score, of its terms and of a log-sum-exp
};

enum class Part { kForward, kAll };  // output and log-sum-exp, or gradients, too

Reference compute_reference(const Problem& problem, Part part = Part::kAll);

}  // namespace headwise::testing
