// Keys and values as a cache holds them: of 8 bits with a scale for each row, in pages, or both.
#pragma once

#include <string>

#include "problem.h"

namespace headwise::testing {

// Numbers of rows (batch, head, token), without gaps.
struct Rows {
  std::vector<char> bytes;
  int64_t each = 0;   // bytes of a number
  int64_t width = 0;  // numbers of a row
};

// The rows of a tensor as they are.
Rows plain_rows(const Tensor& tensor, Dtype dtype);

struct RoundedRows {
  Rows numbers, scales;
};

// Rounds rows to 8 bits, and makes the tensor what these stand for, as float32, exactly.
RoundedRows round_rows(Draw& draw, Tensor& tensor);

struct StoredRows {
  Rows key, value, key_scale, value_scale;  // no scales: numbers of the query's dtype
};

// Rows in guarded memory that holds just what a call may read.
class StoredKeys {
 public:
  // The same seed gives the same places on either side of the guard page. `page_tokens` 0: in one
  // piece.
  StoredKeys(const StoredRows& rows, const Problem& problem, int64_t page_tokens, uint64_t seed,
             Side side);

  // Makes the problem read keys and values from here.
  void lend_to(Problem& problem) const;
  std::string text() const;

 private:
  struct Held {
    GuardedMemory memory;
    Tensor4<const void> view;
  };

  void deal_pages(Draw& draw);
  Held hold(Draw& draw, const Rows& rows) const;

  int64_t batches_, heads_, tokens_, page_tokens_;
  bool is_scaled_;
  Side side_;
  int64_t page_count_ = 0;  // of all samples, and some that nobody has
  int64_t pages_batch_ = 0;
  GuardedMemory pages_;
  Held key_, value_, key_scale_, value_scale_;
};

}  // namespace headwise::testing
