// Linear attention's sums over keys: over which tasks, on how many threads.
#pragma once

#include "kernel_table.h"

namespace headwise {

// Runs on at most `threads` threads; the result does not depend on how many.
void linear_sums(const LinearSumsArgs& args, int threads);

}  // namespace headwise
