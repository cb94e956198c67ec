// Every task by itself, as attend.cpp hands them out, each in a workspace of its own.

#include "attend.h"
#include "dispatch.h"
#include "outputs.h"

namespace headwise::testing {

namespace {

// Just so many floats, all of them NaN, between guard pages.
Tensor room_for(int64_t floats, Side side) {
  return Tensor::packed(Dtype::kFloat32, {1, 1, 1, floats}, side);
}

template <class Task>
void run_each(int64_t tasks, int64_t floats, Side side, Task task) {
  for (int64_t number = 0; number < tasks; ++number) {
    const Tensor room = room_for(floats, side);
    task(number, room.data<float>());
  }
}

void run_forward(const AttendArgs& a, const Functions& kernel, Side side) {
  if (!a.splits_keys()) {
    run_each(a.batches * a.q_heads * a.query_tiles(), kernel.tile_workspace(a), side,
             [&](int64_t task, float* room) { kernel.attend_tile(a, task, room); });
    return;
  }
  const int64_t chunks = a.batches * a.kv_heads * a.chunks();
  const Tensor partials = room_for(chunks * kernel.partial_size(a), side);
  run_each(chunks, kernel.chunk_workspace(a), side, [&](int64_t task, float* room) {
    kernel.attend_chunk(a, task, partials.data<float>(), room);
  });
  run_each(
      a.batches * a.q_heads * a.q_len, kernel.merge_workspace(a), side,
      [&](int64_t task, float* room) { kernel.merge_row(a, task, partials.data<float>(), room); });
}

void run_bias(BiasBackwardArgs args, const Functions& kernel, Side side) {
  const AttendArgs& a = args.backward.call;
  float* sums = args.d_bias;
  const bool sums_all = args.d_bias != nullptr && args.sums_rows && args.sums_columns;
  const Tensor rows = room_for(sums_all ? args.batches * args.heads * a.q_len : 0, side);
  if (sums_all) {
    args.sums_rows = false;
    args.d_bias = rows.data<float>();
  }
  run_each(kernel.bias_tasks(args), kernel.bias_workspace(args), side,
           [&](int64_t task, float* room) { kernel.bias_backward(args, task, room); });
  for (int64_t i = 0; sums_all && i < args.batches * args.heads; ++i) {
    sums[i] = 0.0F;
    for (int64_t row = 0; row < a.q_len; ++row) sums[i] += args.d_bias[i * a.q_len + row];
  }
}

}  // namespace

Answers run_tasks(const Problem& problem) {
  Outputs outputs(problem);
  BiasBackwardArgs args = outputs.arguments();
  const AttendArgs& a = args.backward.call;
  const Functions& kernel = kernels()[a.dtype];
  const Side side = problem.side;
  const int64_t rows = a.batches * a.q_heads * a.q_len;
  if (rows > 0) run_forward(a, kernel, side);
  const Tensor deltas = room_for(rows, side);
  args.backward.delta = deltas.data<float>();
  for (int64_t row = 0; row < rows; ++row) kernel.sum_row(args.backward, row);
  args.backward.d_query = outputs.d_query.data<float>();
  args.backward.last_block = args.backward.blocks();
  run_each(a.batches * a.kv_heads, kernel.backward_workspace(args.backward), side,
           [&](int64_t task, float* room) { kernel.attend_backward(args.backward, task, room); });
  if (args.d_bias != nullptr || args.d_table != nullptr) run_bias(args, kernel, side);
  Answers found = outputs.answers();
  found.d_sinks.clear();  // not a kernel's
  return found;
}

}  // namespace headwise::testing
