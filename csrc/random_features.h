// Random features of queries and keys: over which tasks, on how many threads.
#pragma once

#include "kernel_table.h"

namespace headwise {

// Runs on at most `threads` threads; the result does not depend on how many.
void random_features(const FeatureArgs& args, int threads);

}  // namespace headwise
