#include "random_features.h"

#include <algorithm>

#include "dispatch.h"
#include "parallel.h"

namespace headwise {

namespace {

constexpr int64_t kWorthAThread = 1 << 17;  // multiplications; below, waking one costs more

}  // namespace

void random_features(const FeatureArgs& a, int threads) {
  const Functions& kernel = kernels()[a.dtype];
  const int64_t useful = a.batches * a.heads * a.length * a.dim * a.count / kWorthAThread + 1;
  threads = static_cast<int>(std::min(useful, int64_t{threads}));
  for_each_task(a.batches * a.heads * a.blocks(), kernel.feature_workspace(a), threads,
                Deal::kInRuns,
                [&](int64_t task, float* room) { kernel.random_features(a, task, room); });
}

}  // namespace headwise
