// What a call of linear attention's sums has to give, in double precision, token by token.
#pragma once

#include "comparison.h"
#include "linear_problem.h"

namespace headwise::testing {

// Sizes are bounds, in roundings of float32.
struct LinearReference {
  Expected output, total, sums, normaliser, log_scale;
};

LinearReference compute_linear_reference(const LinearProblem& problem);

}  // namespace headwise::testing
