#include "attend.h"

#include <pthread.h>

#include <algorithm>
#include <atomic>
#include <cmath>
#include <numeric>
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

int64_t all_rows(const AttendArgs& a) { return a.batches * a.q_heads * a.q_len; }

void attend_tiles(AttendArgs a, int threads) {
  const Functions& kernel = kernels()[a.dtype];
  const int64_t tiles = a.batches * a.q_heads * a.query_tiles();
  a.run_tiles = std::clamp(tiles / (8 * int64_t{threads}), int64_t{1}, kRunTiles);
  for_each_task(a.batches * a.q_heads * a.query_runs(), kernel.tile_workspace(a), threads,
                Deal::kOneByOne,
                [&](int64_t task, float* room) { kernel.attend_tile(a, task, room); });
}

// What the backward needs besides the call's own tensors: the deltas of all rows and, where keys
// were split among tasks, output and log-sum-exp once more. Those were summed in another order than
// the backward sums scores, and the difference of two roundings would be taken for a weight.
class Remembered {
 public:
  Remembered(BackwardArgs& args, int threads) : deltas_(static_cast<size_t>(all_rows(args.call))) {
    AttendArgs& a = args.call;
    if (a.splits_keys()) {
      const int64_t width = a.dtype == Dtype::kFloat32 ? 4 : 2;
      output_.resize(static_cast<size_t>(all_rows(a) * a.value_dim * width));
      lse_.resize(2 * deltas_.size());
      a.output = {output_.data(), a.q_heads * a.q_len * a.value_dim, a.q_len * a.value_dim,
                  a.value_dim};
      a.lse = lse_.data();
      attend_tiles(a, threads);
    }
    args.delta = deltas_.data();
    const Functions& kernel = kernels()[a.dtype];
    for_each_task(a.batches * a.q_heads * a.query_tiles(), kernel.delta_workspace(args), threads,
                  Deal::kInRuns,
                  [&](int64_t task, float* room) { kernel.fill_delta(args, task, room); });
  }

 private:
  std::vector<float> deltas_, lse_;
  std::vector<char> output_;
};

// Adds the gradients in the slots to the sums, in the order of their blocks: of the query tiles
// that see some of these blocks.
void add_slots(const BackwardArgs& args, float* sums, int threads) {
  const AttendArgs& a = args.call;
  for_each_task(a.batches * a.q_heads, 0, threads, Deal::kOneByOne, [&](int64_t task, float*) {
    const int64_t b = task / a.q_heads;
    const int64_t h = task % a.q_heads;
    const int64_t row = task * a.q_len;
    for (int64_t slot = 0; slot < args.slots; ++slot) {
      const int64_t block = args.first_block + slot;
      const int64_t first = a.layout.first_query_tile(b, h, block) * kQueryTile;
      const int64_t last = a.layout.last_query_tile(b, h, block, a.query_tiles()) * kQueryTile;
      const int64_t end = (row + std::min(last, a.q_len)) * a.head_dim;
      const float* part = args.d_query + slot * all_rows(a) * a.head_dim;
      for (int64_t i = (row + first) * a.head_dim; i < end; ++i) sums[i] += part[i];
    }
  });
}

// A sink's weight in each row is exp(sink - lse), and its value is 0.
void sinks_backward(const BackwardArgs& args, float* d_sinks, int threads) {
  const AttendArgs& a = args.call;
  for_each_task(a.q_heads, 0, threads, Deal::kOneByOne, [&](int64_t head, float*) {
    double sum = 0.0;
    for (int64_t b = 0; b < a.batches; ++b) {
      for (int64_t row = a.row_number(b, head, 0); row < a.row_number(b, head, a.q_len); ++row) {
        if (!a.sees_something(row)) continue;
        const double below = double{a.sinks[head]} - double{a.lse[2 * row]};
        sum -= std::exp(below - double{a.lse[2 * row + 1]}) * double{args.delta[row]};
      }
    }
    d_sinks[head] = static_cast<float>(sum);
  });
}

}  // namespace

bool is_forked_child() noexcept { return forked.load(std::memory_order_relaxed); }

void attend(const AttendArgs& a, int threads) {
  const Functions& kernel = kernels()[a.dtype];
  const int64_t rows = all_rows(a);
  if (rows == 0) return;
  threads = useful_threads(a, threads);
  if (!a.splits_keys()) {
    attend_tiles(a, threads);
    return;
  }
  const int64_t tasks = a.batches * a.kv_heads * a.chunks();
  thread_local std::vector<float> room_for_partials;
  std::vector<float>& partials = room_for_partials;
  const auto floats = static_cast<size_t>(tasks * kernel.partial_size(a));
  if (partials.size() < floats) partials.resize(floats);
  // With a pattern, the live chunks may all lie in one run.
  const Deal deal = a.layout.which == nullptr ? Deal::kInRuns : Deal::kOneByOne;
  const auto take = a.store.is_scaled ? kernel.attend_scaled_chunk : kernel.attend_chunk;
  for_each_task(tasks, kernel.chunk_workspace(a), threads, deal,
                [&](int64_t task, float* room) { take(a, task, partials.data(), room); });
  for_each_task(
      rows, kernel.merge_workspace(a), threads, Deal::kInRuns,
      [&](int64_t task, float* room) { kernel.merge_row(a, task, partials.data(), room); });
}

void attend_backward(BackwardArgs args, float* d_query, float* d_sinks, int threads) {
  const AttendArgs& a = args.call;
  const Functions& kernel = kernels()[a.dtype];
  threads = useful_threads(a, threads);
  const Remembered remembered(args, threads);
  if (d_sinks != nullptr) sinks_backward(args, d_sinks, threads);
  const int64_t heads = a.batches * a.kv_heads;
  const int64_t numbers = all_rows(a) * a.head_dim;
  const auto run = [&] {
    for_each_task(heads * args.slots, kernel.backward_workspace(args), threads, Deal::kOneByOne,
                  [&](int64_t task, float* room) { kernel.attend_backward(args, task, room); });
  };
  // With few heads, several blocks of keys of each are worked on at a time, into slots of their
  // own. The sums are the same: block after block.
  const int64_t blocks = args.blocks();
  const int64_t wanted = heads >= 2 * int64_t{threads} || heads == 0 || threads == 1
                             ? 1
                             : (2 * int64_t{threads} + heads - 1) / heads;
  args.slots = wanted < blocks ? wanted : blocks;
  if (args.slots <= 1) {
    args.slots = 1;
    args.d_query = d_query;
    args.last_block = blocks;
    run();
    return;
  }
  std::vector<float> slots(static_cast<size_t>(args.slots * numbers));
  args.d_query = slots.data();
  for (int64_t i = 0; i < numbers; ++i) d_query[i] = 0.0F;
  for (int64_t block = 0; block < blocks; block += args.slots) {
    if (args.slots > blocks - block) args.slots = blocks - block;
    args.first_block = block;
    args.last_block = block + args.slots;
    run();
    add_slots(args, d_query, threads);
  }
}

void bias_backward(BiasBackwardArgs args, float* d_table, int threads) {
  constexpr int64_t kParts = 8;
  const AttendArgs& a = args.backward.call;
  const Functions& kernel = kernels()[a.dtype];
  threads = useful_threads(a, threads);
  const Remembered remembered(args.backward, threads);
  const auto run = [&] {
    for_each_task(kernel.bias_tasks(args), kernel.bias_workspace(args), threads, Deal::kOneByOne,
                  [&](int64_t task, float* room) { kernel.bias_backward(args, task, room); });
  };
  if (d_table != nullptr) {
    const auto width = static_cast<size_t>(a.q_heads * a.bias.table_width);
    std::vector<double> parts(static_cast<size_t>(kParts) * width);
    args.parts = kParts;
    args.d_table = parts.data();
    run();
    for (size_t i = 0; i < width; ++i) {
      double sum = 0.0;
      for (size_t part = 0; part < kParts; ++part) sum += parts[part * width + i];
      d_table[i] = static_cast<float>(sum);
    }
  } else if (args.sums_rows && args.sums_columns) {
    float* d_bias = args.d_bias;
    std::vector<float> rows(static_cast<size_t>(args.batches * args.heads * a.q_len));
    args.sums_rows = false;
    args.d_bias = rows.data();
    run();
    for (int64_t i = 0; i < args.batches * args.heads; ++i) {
      const auto first = rows.begin() + i * a.q_len;
      d_bias[i] = static_cast<float>(std::accumulate(first, first + a.q_len, 0.0));
    }
  } else {
    run();
  }
}

double multiply_add(Dtype dtype, int64_t rounds, int threads) {
  std::vector<double> operations(static_cast<size_t>(threads));
  for_each_task(threads, 1, threads, Deal::kOneByOne, [&](int64_t task, float* room) {
    *room = 0.0F;
    operations[static_cast<size_t>(task)] = kernels()[dtype].multiply_add(rounds, room);
  });
  return std::accumulate(operations.begin(), operations.end(), 0.0);
}

}  // namespace headwise
