#include "attend.h"

#include <pthread.h>

#include <atomic>
#include <vector>

#include "dispatch.h"
#include "parallel.h"

namespace headwise {

namespace {

std::atomic<bool> forked{false};
const int fork_is_watched = pthread_atfork(nullptr, nullptr, [] { forked = true; });

constexpr int64_t kWorthAThread = 1 << 19;  // multiply-adds; below, waking one costs more

int useful_threads(const AttendArgs& a, int threads) {
  const int64_t work = a.batches * a.q_heads * a.q_len * a.kv_len * (a.head_dim + a.value_dim);
  const int64_t useful = work / kWorthAThread + 1;
  return static_cast<int>(useful < threads ? useful : threads);
}

}  // namespace

bool is_forked_child() noexcept { return forked.load(std::memory_order_relaxed); }

void attend(const AttendArgs& a, int threads) {
  const KernelTable& table = kernels();
  const int64_t rows = a.batches * a.q_heads * a.q_len;
  if (rows == 0) return;
  threads = useful_threads(a, threads);
  if (!a.splits_keys()) {
    for_each_task(a.batches * a.q_heads * a.query_tiles(), table.tile_workspace(a), threads,
                  Deal::kOneByOne,
                  [&](int64_t task, float* room) { table.attend_tile(a, task, room); });
    return;
  }
  const int64_t tasks = a.batches * a.kv_heads * a.chunks();
  thread_local std::vector<float> room_for_partials;
  std::vector<float>& partials = room_for_partials;
  const auto floats = static_cast<size_t>(tasks * table.partial_size(a));
  if (partials.size() < floats) partials.resize(floats);
  // With a pattern, the live chunks may all lie in one run.
  const Deal deal = a.layout.which == nullptr ? Deal::kInRuns : Deal::kOneByOne;
  for_each_task(tasks, table.chunk_workspace(a), threads, deal, [&](int64_t task, float* room) {
    table.attend_chunk(a, task, partials.data(), room);
  });
  for_each_task(rows, 0, threads, Deal::kInRuns,
                [&](int64_t task, float*) { table.merge_row(a, task, partials.data()); });
}

}  // namespace headwise
