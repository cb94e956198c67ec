// The Python module: checks memory, releases the GIL, calls the kernels.

#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <algorithm>
#include <iterator>
#include <string>

#include "attend.h"
#include "call_arguments.h"
#include "dispatch.h"
#include "linear.h"
#include "linear_arguments.h"
#include "linear_sums.h"
#include "parallel.h"
#include "random_features.h"

namespace nb = nanobind;

namespace headwise {
namespace {

using Given = const BorrowedTensor&;

void bind_attend(Given query, Given key, Given value, Given output, const Maybe& lse,
                 const Maybe& bias, const Maybe& slopes, const Maybe& table, const Maybe& shifts,
                 const Maybe& sinks, float softcap, double dropout_p, uint64_t seed,
                 const LiveTiles* tiles, float scale, int threads) {
  const Extras extras{bias, slopes, table, shifts, sinks, softcap, dropout_p, seed, tiles, scale};
  const AttendArgs a = call_arguments(query, key, value, output, lse, extras);
  nb::gil_scoped_release unlocked;
  attend(a, threads);
}

void bind_attend_stored(Given query, Given key, Given value, Given output, const Maybe& lse,
                        const Maybe& key_scale, const Maybe& value_scale, const Maybe& pages,
                        int64_t kv_len, const Maybe& bias, const Maybe& slopes, const Maybe& table,
                        const Maybe& shifts, const Maybe& sinks, float softcap, double dropout_p,
                        uint64_t seed, const LiveTiles* tiles, float scale, int threads) {
  const Extras extras{bias, slopes, table, shifts, sinks, softcap, dropout_p, seed, tiles, scale};
  const AttendArgs a = stored_arguments(query, key, value, output, lse, key_scale, value_scale,
                                        pages, kv_len, extras);
  nb::gil_scoped_release unlocked;
  attend(a, threads);
}

void bind_attend_backward(Given d_output, const Maybe& d_lse, Given query, Given key, Given value,
                          Given output, const Maybe& lse, Given d_query, Given d_key, Given d_value,
                          const Maybe& d_sinks, const Maybe& bias, const Maybe& slopes,
                          const Maybe& table, const Maybe& shifts, const Maybe& sinks,
                          float softcap, double dropout_p, uint64_t seed, const LiveTiles* tiles,
                          float scale, int threads) {
  const Extras extras{bias, slopes, table, shifts, sinks, softcap, dropout_p, seed, tiles, scale};
  const AttendArgs a = call_arguments(query, key, value, output, lse, extras);
  BackwardArgs b = backward_arguments(d_output, d_lse, lse, a);
  b.d_key = written(d_key, a.dtype);
  b.d_value = written(d_value, a.dtype);
  require(has_sizes(d_key, {a.batches, a.kv_heads, a.kv_len, a.head_dim}) &&
              has_sizes(d_value, {a.batches, a.kv_heads, a.kv_len, a.value_dim}),
          "d_key and d_value must have the shapes of key and value");
  float* to_query = packed(d_query, {a.batches, a.q_heads, a.q_len, a.head_dim},
                           "d_query must have the shape of query, float32, contiguous");
  float* to_sinks = nullptr;
  if (d_sinks) {
    require(sinks.has_value(), "there are no sinks");
    to_sinks = packed(*d_sinks, {a.q_heads}, "d_sinks must be (q_heads,) float32");
  }
  nb::gil_scoped_release unlocked;
  attend_backward(b, to_query, to_sinks, threads);
}

void bind_bias_backward(Given d_output, const Maybe& d_lse, Given query, Given key, Given value,
                        Given output, const Maybe& lse, const Maybe& d_bias, const Maybe& d_table,
                        const Maybe& bias, const Maybe& slopes, const Maybe& table,
                        const Maybe& shifts, const Maybe& sinks, float softcap, double dropout_p,
                        uint64_t seed, const LiveTiles* tiles, float scale, int threads) {
  const Extras extras{bias, slopes, table, shifts, sinks, softcap, dropout_p, seed, tiles, scale};
  const AttendArgs a = call_arguments(query, key, value, output, lse, extras);
  BiasBackwardArgs b;
  b.backward = backward_arguments(d_output, d_lse, lse, a);
  require(d_bias ? bias.has_value() && !d_table : d_table && table.has_value(),
          "give d_bias with a bias, or d_table with a table");
  float* to_table = nullptr;
  if (d_table) {
    to_table = packed(*d_table, {a.q_heads, a.bias.table_width},
                      "d_table must have the shape of table, float32, contiguous");
  } else {
    const auto fits = [&](int axis, int64_t all) {
      return d_bias->size(axis) == all || d_bias->size(axis) == 1;
    };
    require(d_bias->view.ndim == 4 && fits(0, a.batches) && fits(1, a.q_heads) &&
                fits(2, a.q_len) && fits(3, a.kv_len),
            "d_bias must be 4-D, each axis that of the scores or 1");
    b.batches = d_bias->size(0);
    b.heads = d_bias->size(1);
    b.sums_rows = d_bias->size(2) != a.q_len;
    b.sums_columns = d_bias->size(3) != a.kv_len;
    b.d_bias = packed(*d_bias, {b.batches, b.heads, d_bias->size(2), d_bias->size(3)},
                      "d_bias must be float32, contiguous");
  }
  nb::gil_scoped_release unlocked;
  bias_backward(b, to_table, threads);
}

void bind_linear_rows(Given input, Given weight, const Maybe& bias, Given output, int threads) {
  LinearArgs a;
  require(
      input.find_dtype(a.dtype) && weight.is_dtype(a.dtype) && output.is_dtype(a.dtype) &&
          (!bias || bias->is_dtype(a.dtype)),
      "input, weight, bias and output must be on the CPU and share one dtype: float32, bfloat16 "
      "or float16");
  a.rows = rows_of(input);
  a.inputs = a.input_row = input.size(input.view.ndim - 1);
  require(weight.view.ndim == 2 && weight.size(1) == a.inputs, "weight must be (outputs, inputs)");
  a.outputs = a.output_row = weight.size(0);
  require(rows_of(output) == a.rows && output.size(output.view.ndim - 1) == a.outputs,
          "output must be (rows, outputs)");
  require(a.inputs < 2 || weight.stride(1) == 1, "the weight's innermost stride must be 1");
  if (bias) {
    require(bias->view.ndim == 1 && bias->size(0) == a.outputs &&
                (a.outputs < 2 || bias->stride(0) == 1),
            "bias must be (outputs,), contiguous");
    a.bias = bias->data<void>();
  }
  a.input = input.data<void>();
  a.weight = weight.data<void>();
  a.output = output.data<void>();
  a.weight_row = weight.stride(0);
  nb::gil_scoped_release unlocked;
  linear_rows(a, threads);
}

void bind_linear_sums(Given query, Given key, Given value, const Maybe& gain, const Maybe& offset,
                      const Maybe& log_decay, const Maybe& sums, const Maybe& normaliser,
                      const Maybe& log_scale, Given output, const Maybe& total, Given sums_after,
                      Given normaliser_after, Given log_scale_after, bool causal, bool backwards,
                      int threads) {
  const LinearSumsArgs a = linear_arguments(
      query, key, value, {gain, offset, log_decay}, {sums, normaliser, log_scale}, output, total,
      sums_after, normaliser_after, log_scale_after, causal, backwards);
  nb::gil_scoped_release unlocked;
  linear_sums(a, threads);
}

void bind_random_features(Given input, Given directions, Given output, Given gain, float factor,
                          float log_norm, float least, int threads) {
  const FeatureArgs a = feature_arguments(input, directions, output, gain, factor, log_norm, least);
  nb::gil_scoped_release unlocked;
  random_features(a, threads);
}

double bind_multiply_add(const std::string& dtype, int64_t rounds, int threads) {
  const std::string names[kDtypes] = {"float32", "bfloat16", "float16"};
  const auto* found = std::find(std::begin(names), std::end(names), dtype);
  require(found != std::end(names), "dtype must be float32, bfloat16 or float16");
  require(rounds > 0 && threads > 0, "rounds and threads must be above 0");
  nb::gil_scoped_release unlocked;
  return multiply_add(static_cast<Dtype>(found - std::begin(names)), rounds, threads);
}

}  // namespace
}  // namespace headwise

NB_MODULE(_kernels, m) {
  using headwise::Table32;
  nb::set_leak_warnings(false);  // live tiles are kept until the process ends
  m.doc() = "Attention kernels. Checks memory, not meaning: call headwise.attend instead.";
  m.attr("QUERY_TILE") = headwise::kQueryTile;
  m.attr("KEY_TILE") = headwise::kKeyTile;
  m.def(
      "isa", [] { return std::string(headwise::kernels().name); },
      "Name the instruction set in use.");
  m.def("available", &headwise::available_sets,
        "Name the instruction sets that this processor can run, the plainest first.");
  m.def("use_isa", &headwise::use_set, nb::arg("name"), "Put another instruction set in use.");
  nb::class_<headwise::LiveTiles>(m, "LiveTiles", "Live tiles as the kernels read them.")
      .def(nb::init<Table32, Table32, Table32, headwise::Table64>(), nb::arg("which").noconvert(),
           nb::arg("starts").noconvert(), nb::arg("entries").noconvert(),
           nb::arg("bitmaps").noconvert());
  m.def("attend", &headwise::bind_attend, nb::arg("query"), nb::arg("key"), nb::arg("value"),
        nb::arg("output"), nb::arg("lse").none(), nb::arg("bias").none(), nb::arg("slopes").none(),
        nb::arg("table").none(), nb::arg("shifts").none(), nb::arg("sinks").none(),
        nb::arg("softcap"), nb::arg("dropout_p"), nb::arg("seed"), nb::arg("tiles").none(),
        nb::arg("scale"), nb::arg("threads"), "Attend, writing to output and lse.");
  m.def("attend_stored", &headwise::bind_attend_stored, nb::arg("query"), nb::arg("key"),
        nb::arg("value"), nb::arg("output"), nb::arg("lse").none(), nb::arg("key_scale").none(),
        nb::arg("value_scale").none(), nb::arg("pages").none(), nb::arg("kv_len"),
        nb::arg("bias").none(), nb::arg("slopes").none(), nb::arg("table").none(),
        nb::arg("shifts").none(), nb::arg("sinks").none(), nb::arg("softcap"), nb::arg("dropout_p"),
        nb::arg("seed"), nb::arg("tiles").none(), nb::arg("scale"), nb::arg("threads"),
        "Attend with up to 16 queries to keys and values as a cache holds them.");
  m.def("attend_backward", &headwise::bind_attend_backward, nb::arg("d_output"),
        nb::arg("d_lse").none(), nb::arg("query"), nb::arg("key"), nb::arg("value"),
        nb::arg("output"), nb::arg("lse").none(), nb::arg("d_query"), nb::arg("d_key"),
        nb::arg("d_value"), nb::arg("d_sinks").none(), nb::arg("bias").none(),
        nb::arg("slopes").none(), nb::arg("table").none(), nb::arg("shifts").none(),
        nb::arg("sinks").none(), nb::arg("softcap"), nb::arg("dropout_p"), nb::arg("seed"),
        nb::arg("tiles").none(), nb::arg("scale"), nb::arg("threads"),
        "Write the gradients of query, key, value and sinks.");
  m.def("bias_backward", &headwise::bind_bias_backward, nb::arg("d_output"),
        nb::arg("d_lse").none(), nb::arg("query"), nb::arg("key"), nb::arg("value"),
        nb::arg("output"), nb::arg("lse").none(), nb::arg("d_bias").none(),
        nb::arg("d_table").none(), nb::arg("bias").none(), nb::arg("slopes").none(),
        nb::arg("table").none(), nb::arg("shifts").none(), nb::arg("sinks").none(),
        nb::arg("softcap"), nb::arg("dropout_p"), nb::arg("seed"), nb::arg("tiles").none(),
        nb::arg("scale"), nb::arg("threads"), "Write the gradient of a bias.");
  m.def("linear_rows", &headwise::bind_linear_rows, nb::arg("input"), nb::arg("weight"),
        nb::arg("bias").none(), nb::arg("output"), nb::arg("threads"),
        "Write input @ weight^T + bias to output, for few rows of input.");
  m.def("linear_sums", &headwise::bind_linear_sums, nb::arg("query"), nb::arg("key"),
        nb::arg("value"), nb::arg("gain").none(), nb::arg("offset").none(),
        nb::arg("log_decay").none(), nb::arg("sums").none(), nb::arg("normaliser").none(),
        nb::arg("log_scale").none(), nb::arg("output"), nb::arg("total").none(),
        nb::arg("sums_after"), nb::arg("normaliser_after"), nb::arg("log_scale_after"),
        nb::arg("causal"), nb::arg("backwards"), nb::arg("threads"),
        "Write linear attention's sums over keys, and the state after the last one.");
  m.def("random_features", &headwise::bind_random_features, nb::arg("input"), nb::arg("directions"),
        nb::arg("output"), nb::arg("gain"), nb::arg("factor"), nb::arg("log_norm"),
        nb::arg("least"), nb::arg("threads"),
        "Write positive random features, and the log of the factor taken out of each row.");
  m.def(
      "own_threads", &headwise::own_threads, nb::arg("count"),
      "Set on how many threads this thread's loops run, torch's included; return how many before.");
  m.def("multiply_add", &headwise::bind_multiply_add, nb::arg("dtype"), nb::arg("rounds"),
        nb::arg("threads"),
        "Multiply and add in registers on every thread; return the number of operations.");
}
