// Runs a problem, through the calls of attend.h or task by task, and holds what came out.
#pragma once

#include <string>
#include <vector>

#include "reference.h"

namespace headwise::testing {

struct Answers {
  std::vector<double> output, lse, d_query, d_key, d_value, d_sinks, d_bias, d_table;
  bool gaps_untouched = true;
};

// Through attend, attend_backward and bias_backward.
Answers run_calls(const Problem& problem, int threads);

// Through attend alone.
Answers run_forward(const Problem& problem, int threads);

// Every task by itself, in a workspace of just the size that the kernel asked for, full of NaN.
Answers run_tasks(const Problem& problem);
Answers run_forward_tasks(const Problem& problem);

// Compares with the reference, within bounds by dtype.
void compare_forward(const Problem& problem, const Reference& reference, const Answers& answers,
                     Subject& forward);
void compare(const Problem& problem, const Reference& reference, const Answers& answers,
             Subject& forward, Subject& gradients, Subject& biases);

bool same_bits(const Answers& a, const Answers& b);

}  // namespace headwise::testing
