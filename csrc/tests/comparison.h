// Numbers found against numbers expected, within bounds; and bit by bit.
#pragma once

#include <vector>

#include "report.h"

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

struct Bound {
  double stored;  // of the number itself, for what is rounded once at the end
  double inner;   // of the sum of the sizes of its terms
  double least;   // near 0
};

// Measures the largest error as a share of its bound; infinite where something that is not finite,
// or that was never written, stands for a number.
void measure(Subject& subject, const char* name, const Expected& expected,
             const std::vector<double>& found, Bound bound);

bool same_bits(const std::vector<double>& a, const std::vector<double>& b);

}  // namespace headwise::testing
