// One drawn call: sizes, strides, numbers, pattern and whatever else a call may have.
#pragma once

#include <string>

#include "pattern.h"
#include "tensor.h"

namespace headwise::testing {

enum class Queries { kAny, kFew };  // kFew: so many as read stored keys

struct Problem {
  // The same number and dtype give the same problem on either side of the guard page.
  Problem(uint64_t number, Dtype dtype, Side side, Queries queries = Queries::kAny);

  bool open(int64_t b, int64_t h, int64_t i, int64_t j) const;
  std::string text() const;

  BiasBackwardArgs args;  // without the outputs
  Pattern pattern;
  Tensor query, key, value, d_output;
  Tensor bias, slopes, table, sinks, d_lse;
  GuardedMemory shifts;
  Sizes d_bias_sizes{};
  bool odd_values = false;  // values that are not finite, which some rows see
  Side side;

 private:
  AttendArgs& call() { return args.backward.call; }
  const AttendArgs& call() const { return args.backward.call; }
  void draw_sizes(Draw& draw);
  void draw_few_sizes(Draw& draw);
  void draw_scores(Draw& draw);
  void draw_tensors(Draw& draw);
  void draw_bias(Draw& draw);
  void draw_distances(Draw& draw, bool slopes_only);
  void draw_dropout(Draw& draw);
  void spoil(Draw& draw);
  bool key_closed(int64_t b, int64_t g, int64_t j) const;
  bool row_closed(int64_t b, int64_t h, int64_t i) const;

  uint64_t number_;
};

}  // namespace headwise::testing
