#include "random_features.h"

#include "dispatch.h"
#include "parallel.h"

namespace headwise {

void random_features(const FeatureArgs& a, int threads) {
  const Functions& kernel = kernels()[a.dtype];
  for_each_task(a.batches * a.heads * a.blocks(), kernel.feature_workspace(a), threads,
                Deal::kInRuns,
                [&](int64_t task, float* room) { kernel.random_features(a, task, room); });
}

}  // namespace headwise
