#include "linear_sums.h"

#include <algorithm>
#include <vector>

#include "dispatch.h"
#include "parallel.h"

namespace headwise {

namespace {

constexpr int64_t kHeadsPerThread = 2;      // below, the segments of a head are worked on apart
constexpr int64_t kWorthAThread = 1 << 18;  // multiplications; below, waking one costs more

}  // namespace

// Tokens are cut into segments by their number alone. With heads enough for all threads, a task
// takes a head, segment by segment; otherwise the segments are summed, their sums joined in order,
// and then read, all of them at the same time. The sums and their order are the same.
void linear_sums(const LinearSumsArgs& args, int threads) {
  LinearSumsArgs a = args;
  // The sums are float32 whatever the tensors hold, whose dtypes are in the arguments: the same
  // functions stand at every dtype.
  const Functions& kernel = kernels()[Dtype::kFloat32];
  const int64_t heads = a.batches * a.kv_heads;
  const int64_t rows = a.q_len * a.readers + a.kv_len * a.writers;
  const int64_t useful = heads * rows * a.features * a.value_dim / kWorthAThread + 1;
  threads = static_cast<int>(std::min(useful, int64_t{threads}));
  const int64_t floats = kernel.linear_workspace(a);
  const auto run = [&](int64_t tasks, auto function) {
    for_each_task(tasks, floats, threads, Deal::kOneByOne,
                  [&](int64_t task, float* room) { function(a, task, room); });
  };
  const bool apart = heads < kHeadsPerThread * threads && threads > 1 &&
                     (a.segment_count() > 1 || a.query_segments() > 1);
  if (!apart) {
    run(heads, kernel.linear_head);
    return;
  }
  std::vector<float> segments(
      static_cast<size_t>(heads * a.segment_count() * kernel.linear_state_size(a)));
  a.segments = segments.data();
  run(heads * a.segment_count(), kernel.linear_write);
  run(heads, kernel.linear_join);
  run(heads * (a.causal ? a.segment_count() : a.query_segments()), kernel.linear_read);
}

}  // namespace headwise
