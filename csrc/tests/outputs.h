// Guarded memory for everything that a problem's kernels write.
#pragma once

#include "answers.h"

namespace headwise::testing {

class Outputs {
 public:
  explicit Outputs(const Problem& problem, Part part = Part::kAll);

  // The problem's arguments, writing here; `output` and `lse` are read by the gradients.
  BiasBackwardArgs arguments() const;
  Answers answers() const;
  float* d_sinks_or_null() const;
  float* d_table_or_null() const;

  Tensor output, lse, d_query, d_key, d_value, d_sinks, d_bias, d_table;

 private:
  const Problem& problem_;
};

}  // namespace headwise::testing
