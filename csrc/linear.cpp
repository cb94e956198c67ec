#include "linear.h"

#include <algorithm>

#include "dispatch.h"
#include "parallel.h"

namespace headwise {

namespace {

constexpr int64_t kTaskWeights = 1 << 15;
constexpr int64_t kWorthAThread = 1 << 17;  // weights; below, waking one costs more

}  // namespace

void linear_rows(LinearArgs a, int threads) {
  const int64_t block = 4;
  a.task_outputs =
      std::max(kTaskWeights / std::max(a.inputs, int64_t{1}) / block, int64_t{1}) * block;
  const int64_t tasks = a.rows == 0 ? 0 : (a.outputs + a.task_outputs - 1) / a.task_outputs;
  const int64_t useful = a.outputs * a.inputs / kWorthAThread + 1;
  const auto kernel = kernels()[a.dtype].linear_rows;
  for_each_task(tasks, 0, static_cast<int>(std::min(useful, int64_t{threads})), Deal::kOneByOne,
                [&](int64_t task, float*) { kernel(a, task); });
}

}  // namespace headwise
