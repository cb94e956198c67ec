// One drawn call of linear attention's sums: sizes, strides, numbers, powers and a state.
#pragma once

#include <string>

#include "tensor.h"

namespace headwise::testing {

// What is looked at where everything else is NaN or infinite: rows of one head up to a token, in
// the order in which tokens are taken, and what they see.
struct Kept {
  int64_t batch = 0, kv_head = 0, token = 0;
};

struct LinearProblem {
  // The same number gives the same problem on either side of the guard page.
  LinearProblem(uint64_t number, Side side, bool is_spoiled = false);

  bool keeps_row(int64_t i) const;    // of the head that is kept
  bool keeps_token(int64_t j) const;  // of its keys and values
  std::string text() const;

  LinearSumsArgs args;  // without the outputs
  Tensor query, key, value, gain, offset, log_decay, sums, normaliser, log_scale;
  bool has_total = true;
  Kept kept;
  bool has_mark = false;  // some key or value of the head that is kept is not finite
  Side side;

 private:
  void draw_sizes(Draw& draw);
  void draw_numbers(Draw& draw);
  void draw_powers(Draw& draw);
  void draw_state(Draw& draw);
  void draw_gains(Draw& draw, double spread);
  void fill_offsets(Draw& draw);
  void spoil(Draw& draw);
  // Floats (batch, heads, length, columns), as all but queries, keys and values are.
  Tensor floats(int64_t heads, int64_t length, int64_t columns) const;

  uint64_t number_;
};

}  // namespace headwise::testing
