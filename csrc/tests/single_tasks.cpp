// Every task by itself, as attend.cpp hands them out, each in a workspace of its own.

#include "attend.h"
#include "dispatch.h"
#include "each_task.h"
#include "outputs.h"

namespace headwise::testing {

namespace {

void run_tiles(const AttendArgs& a, const Functions& kernel, Side side) {
  run_each(a.batches * a.q_heads * a.query_tiles(), kernel.tile_workspace(a), side,
           [&](int64_t task, float* room) { kernel.attend_tile(a, task, room); });
}

void run_forward(const AttendArgs& a, const Functions& kernel, Side side) {
  if (!a.splits_keys()) {
    run_tiles(a, kernel, side);
    return;
  }
  const int64_t chunks = a.batches * a.kv_heads * a.chunks();
  const Tensor partials = room_for(chunks * kernel.partial_size(a), side);
  const auto take = a.store.is_scaled ? kernel.attend_scaled_chunk : kernel.attend_chunk;
  run_each(chunks, kernel.chunk_workspace(a), side,
           [&](int64_t task, float* room) { take(a, task, partials.data<float>(), room); });
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
    double sum = 0.0;
    for (int64_t row = 0; row < a.q_len; ++row) sum += double{args.d_bias[i * a.q_len + row]};
    sums[i] = static_cast<float>(sum);
  }
}

}  // namespace

Answers run_forward_tasks(const Problem& problem) {
  const Outputs outputs(problem, Part::kForward);
  const AttendArgs a = outputs.arguments().backward.call;
  if (a.batches * a.q_heads * a.q_len > 0) run_forward(a, kernels()[a.dtype], problem.side);
  return outputs.answers();
}

Answers run_tasks(const Problem& problem) {
  Outputs outputs(problem);
  BiasBackwardArgs args = outputs.arguments();
  const AttendArgs& a = args.backward.call;
  const Functions& kernel = kernels()[a.dtype];
  const Side side = problem.side;
  const int64_t rows = a.batches * a.q_heads * a.q_len;
  if (rows > 0) run_forward(a, kernel, side);
  // Where keys were split, the gradients need output and log-sum-exp from tiles.
  const Outputs from_tiles(problem);
  if (a.splits_keys()) {
    args.backward.call.output = from_tiles.output.view<void>();
    args.backward.call.lse = from_tiles.lse.data<float>();
    run_tiles(args.backward.call, kernel, side);
  }
  const Tensor deltas = room_for(rows, side);
  args.backward.delta = deltas.data<float>();
  run_each(a.batches * a.q_heads * a.query_tiles(), kernel.delta_workspace(args.backward), side,
           [&](int64_t task, float* room) { kernel.fill_delta(args.backward, task, room); });
  args.backward.d_query = outputs.d_query.data<float>();
  args.backward.last_block = args.backward.blocks();
  run_each(a.batches * a.kv_heads, kernel.backward_workspace(args.backward), side,
           [&](int64_t task, float* room) { kernel.attend_backward(args.backward, task, room); });
  const Tensor table = room_for(2 * outputs.d_table.sizes()[2] * outputs.d_table.sizes()[3], side);
  if (a.bias.table != nullptr) args.d_table = table.data<double>();
  if (args.d_bias != nullptr || args.d_table != nullptr) run_bias(args, kernel, side);
  Answers found = outputs.answers();
  found.d_sinks.clear();  // not a kernel's
  return found;
}

}  // namespace headwise::testing
