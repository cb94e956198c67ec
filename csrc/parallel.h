// A loop over independent tasks, on as many threads as the caller says.
#pragma once

#include <omp.h>

#include <atomic>
#include <cstdint>
#include <vector>

namespace headwise {

// Whether this process is the child of a fork: its threads did not come along, and waiting for
// them would hang, so everything runs on the one that is left.
bool is_forked_child() noexcept;

// Sets on how many threads the loops run that this thread starts; returns how many it was before.
inline int own_threads(int count) noexcept {
  const int before = omp_get_max_threads();
  omp_set_num_threads(count);
  return before;
}

// A thread's own room for `floats` numbers; it grows and stays.
inline float* workspace(int64_t floats) {
  thread_local std::vector<float> room;
  if (static_cast<int64_t>(room.size()) < floats) room.resize(static_cast<size_t>(floats));
  return room.data();
}

// How tasks are dealt to threads. One by one evens out tasks of different sizes; in runs, each
// thread walks through memory without a gap.
enum class Deal { kOneByOne, kInRuns };

// Calls `task(number, workspace)` for every number below `tasks`. Which thread takes which task is
// left open, so a task's result may depend on its number alone.
template <class Task>
void for_each_task(int64_t tasks, int64_t floats, int threads, Deal deal, const Task& task) {
  threads = static_cast<int>(tasks < threads ? tasks : threads);
  if (threads <= 1 || is_forked_child()) {
    float* room = workspace(floats);
    for (int64_t number = 0; number < tasks; ++number) task(number, room);
    return;
  }
  std::atomic<int64_t> next{0};
#pragma omp parallel num_threads(threads)
  {
    float* room = workspace(floats);
    const int64_t all = omp_get_num_threads();
    const int64_t length = deal == Deal::kInRuns ? (tasks + all - 1) / all : 1;
    for (int64_t from = next.fetch_add(length); from < tasks; from = next.fetch_add(length)) {
      const int64_t to = from + length < tasks ? from + length : tasks;
      for (int64_t number = from; number < to; ++number) task(number, room);
    }
  }
}

}  // namespace headwise
