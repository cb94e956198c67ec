#include "outputs.h"

namespace headwise::testing {

Outputs::Outputs(const Problem& problem, Part part) : problem_(problem) {
  const AttendArgs& a = problem.args.backward.call;
  const Side side = problem.side;
  Draw draw(static_cast<uint64_t>(a.q_len * 1009 + a.kv_len));
  const Sizes keys = {a.batches, a.kv_heads, a.kv_len, a.head_dim};
  const Sizes values = {a.batches, a.kv_heads, a.kv_len, a.value_dim};
  const Sizes rows = {a.batches, a.q_heads, a.q_len, a.value_dim};
  output = Tensor::drawn(draw, a.dtype, rows, false, false, side);
  lse = Tensor::packed(Dtype::kFloat32, {1, a.batches, a.q_heads, 2 * a.q_len}, side);  // two parts
  if (part == Part::kForward) return;
  d_key = Tensor::drawn(draw, a.dtype, keys, false, false, side);
  d_value = Tensor::drawn(draw, a.dtype, values, false, false, side);
  const auto packed = [&](Sizes sizes) { return Tensor::packed(Dtype::kFloat32, sizes, side); };
  d_query = packed({a.batches, a.q_heads, a.q_len, a.head_dim});
  d_sinks = packed({1, 1, 1, a.sinks == nullptr ? 0 : a.q_heads});
  d_bias = packed(problem.d_bias_sizes);
  d_table = packed({1, 1, a.bias.table == nullptr ? 0 : a.q_heads, a.bias.table_width});
}

BiasBackwardArgs Outputs::arguments() const {
  BiasBackwardArgs args = problem_.args;
  AttendArgs& a = args.backward.call;
  a.output = output.view<void>();
  a.lse = lse.data<float>();
  args.backward.d_key = d_key.view<void>();
  args.backward.d_value = d_value.view<void>();
  args.d_bias = a.bias.dense.data == nullptr ? nullptr : d_bias.data<float>();
  return args;
}

float* Outputs::d_sinks_or_null() const {
  return problem_.args.backward.call.sinks == nullptr ? nullptr : d_sinks.data<float>();
}

float* Outputs::d_table_or_null() const {
  return problem_.args.backward.call.bias.table == nullptr ? nullptr : d_table.data<float>();
}

Answers Outputs::answers() const {
  Answers found;
  found.output = output.numbers();
  const std::vector<double> parts = lse.numbers();
  for (size_t i = 0; i < parts.size(); i += 2) found.lse.push_back(parts[i] + parts[i + 1]);
  found.d_query = d_query.numbers();
  found.d_key = d_key.numbers();
  found.d_value = d_value.numbers();
  found.d_sinks = d_sinks.numbers();
  found.d_bias = d_bias.numbers();
  found.d_table = d_table.numbers();
  found.gaps_untouched =
      output.gaps_untouched() && d_key.gaps_untouched() && d_value.gaps_untouched();
  return found;
}

}  // namespace headwise::testing
