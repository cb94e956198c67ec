// What the driver tests.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace headwise::testing {

struct Plan {
  std::vector<std::string> sets;
  int64_t first = 0, cases = 0;  // numbers of the drawn problems
};

// Each prints a line or more; returns whether all was well.
bool test_guards();                     // a touch of a guard page ends the process
bool test_dropped_words(const Plan&);   // known answers; just the right weights are dropped
bool test_linear_rows(const Plan&);     // against sums in double precision
bool test_drawn_problems(const Plan&);  // against the reference, on both sides of guard pages
bool test_stored(const Plan&);          // the same for keys of 8 bits and keys in pages
bool test_linear_sums(const Plan&);     // linear attention, in the same way
bool test_random_features(const Plan&);

// Runs "forward", "decode" or "backward" once, for a count of instructions.
void run_fixed_call(const std::string& name);

}  // namespace headwise::testing
