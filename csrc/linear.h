// A linear map of few rows: over which tasks, on how many threads.
#pragma once

#include "kernel_table.h"

namespace headwise {

// Runs on at most `threads` threads; the result does not depend on how many.
void linear_rows(LinearArgs args, int threads);

}  // namespace headwise
