// The Python module: checks dtype, layout and device, releases the GIL, calls the kernels.

#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <optional>

#include "attend.h"
#include "dispatch.h"

namespace nb = nanobind;

namespace headwise {
namespace {

using Input = nb::ndarray<const float, nb::pytorch, nb::ndim<4>, nb::device::cpu>;
using Result = nb::ndarray<float, nb::pytorch, nb::ndim<4>, nb::device::cpu>;
using Rows = nb::ndarray<float, nb::pytorch, nb::ndim<3>, nb::c_contig, nb::device::cpu>;
using Table32 = nb::ndarray<const int32_t, nb::pytorch, nb::ndim<2>, nb::c_contig, nb::device::cpu>;
using Table64 = nb::ndarray<const int64_t, nb::pytorch, nb::ndim<2>, nb::c_contig, nb::device::cpu>;

int64_t size(const auto& array, size_t axis) { return static_cast<int64_t>(array.shape(axis)); }

template <class T>
Tensor4<T> strided(const auto& array) {
  return {array.data(), array.stride(0), array.stride(1), array.stride(2)};
}

void require(bool holds, const char* rule) {
  if (!holds) throw nb::value_error(rule);
}

void bind_attend(const Input& query, const Input& key, const Input& value, const Result& output,
                 const std::optional<Rows>& lse, const std::optional<Input>& bias,
                 const std::optional<Table32>& which, const std::optional<Table32>& starts,
                 const std::optional<Table32>& entries, const std::optional<Table64>& bitmaps,
                 float scale, int threads) {
  AttendArgs a;
  a.query = strided<const float>(query);
  a.key = strided<const float>(key);
  a.value = strided<const float>(value);
  a.output = strided<float>(output);
  a.batches = size(query, 0);
  a.q_heads = size(query, 1);
  a.q_len = size(query, 2);
  a.head_dim = size(query, 3);
  a.kv_heads = size(key, 1);
  a.kv_len = size(key, 2);
  a.value_dim = size(value, 3);
  a.scale = scale;
  for (const auto* array : {&query, &key, &value}) {
    require(size(*array, 3) < 2 || array->stride(3) == 1, "the innermost stride must be 1");
    require(size(*array, 0) == a.batches, "query, key and value must have one batch size");
  }
  require(output.stride(3) == 1 || a.value_dim < 2, "the innermost stride of output must be 1");
  require(size(key, 3) == a.head_dim && size(value, 1) == a.kv_heads &&
              size(value, 2) == a.kv_len && (a.kv_heads == 0 || a.q_heads % a.kv_heads == 0),
          "query, key and value do not fit together");
  require(size(output, 0) == a.batches && size(output, 1) == a.q_heads &&
              size(output, 2) == a.q_len && size(output, 3) == a.value_dim,
          "output must be (batch, q_heads, q_len, value_dim)");
  if (lse) {
    require(size(*lse, 0) == a.batches && size(*lse, 1) == a.q_heads && size(*lse, 2) == a.q_len,
            "lse must be (batch, q_heads, q_len)");
    a.lse = lse->data();
  }
  if (bias) {
    require(size(*bias, 0) == a.batches && size(*bias, 1) == a.q_heads &&
                size(*bias, 2) == a.q_len && size(*bias, 3) == a.kv_len,
            "bias must be (batch, q_heads, q_len, kv_len)");
    a.bias = strided<const float>(*bias);
    a.bias_column = bias->stride(3);
  }
  if (which && starts && entries && bitmaps) {
    require(size(*bitmaps, 1) == kKeyTile && size(*starts, 1) == a.query_tiles() + 1,
            "the layout was made for other tiles");
    a.layout.which = which->data();
    a.layout.which_batch = size(*which, 0) == 1 ? 0 : which->stride(0);
    a.layout.which_head = size(*which, 1) == 1 ? 0 : 1;
    a.layout.starts = starts->data();
    a.layout.starts_stride = size(*starts, 1);
    a.layout.entries = entries->data();
    a.layout.bitmaps = reinterpret_cast<const uint64_t*>(bitmaps->data());
  }
  nb::gil_scoped_release unlocked;
  attend(a, threads);
}

}  // namespace
}  // namespace headwise

NB_MODULE(_kernels, m) {
  m.doc() = "Attention kernels. Checks memory, not meaning: call headwise.attend instead.";
  m.attr("QUERY_TILE") = headwise::kQueryTile;
  m.attr("KEY_TILE") = headwise::kKeyTile;
  m.def("isa", [] { return std::string(headwise::kernels().name); },
        "Name the instruction set in use.");
  m.def("available", &headwise::available_sets,
        "Name the instruction sets that this processor can run, the plainest first.");
  m.def("use_isa", &headwise::use_set, nb::arg("name"), "Put another instruction set in use.");
  m.def("attend", &headwise::bind_attend, nb::arg("query").noconvert(), nb::arg("key").noconvert(),
        nb::arg("value").noconvert(), nb::arg("output").noconvert(),
        nb::arg("lse").noconvert().none(), nb::arg("bias").noconvert().none(),
        nb::arg("which").noconvert().none(), nb::arg("starts").noconvert().none(),
        nb::arg("entries").noconvert().none(), nb::arg("bitmaps").noconvert().none(),
        nb::arg("scale"), nb::arg("threads"), "Attend, writing to output and lse.");
}
