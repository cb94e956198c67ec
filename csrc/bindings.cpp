// The Python module: checks dtype, layout and device, releases the GIL, calls the kernels.

#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <initializer_list>
#include <optional>
#include <utility>

#include "attend.h"
#include "borrowed_tensor.h"
#include "dispatch.h"

namespace nb = nanobind;

namespace headwise {
namespace {

using Table32 = nb::ndarray<const int32_t, nb::pytorch, nb::ndim<2>, nb::c_contig, nb::device::cpu>;
using Table64 = nb::ndarray<const int64_t, nb::pytorch, nb::ndim<2>, nb::c_contig, nb::device::cpu>;

int64_t size(const auto& array, size_t axis) { return static_cast<int64_t>(array.shape(axis)); }

template <class T>
Tensor4<T> strided(const BorrowedTensor& tensor) {
  return {tensor.data<T>(), tensor.stride(0), tensor.stride(1), tensor.stride(2)};
}

void require(bool holds, const char* rule) {
  if (!holds) throw nb::value_error(rule);
}

// Live tiles as the kernels read them; keeps the tensors alive.
class LiveTiles {
 public:
  LiveTiles(Table32 which, Table32 starts, Table32 entries, Table64 bitmaps)
      : which_(std::move(which)),
        starts_(std::move(starts)),
        entries_(std::move(entries)),
        bitmaps_(std::move(bitmaps)) {
    require(size(bitmaps_, 1) == kKeyTile && size(entries_, 1) == 3 && size(starts_, 1) > 0,
            "the tables do not describe tiles of these kernels");
    check_which();
    check_entries();
  }

  Layout layout(int64_t batches, int64_t q_heads, int64_t query_tiles, int64_t key_tiles) const {
    require((size(which_, 0) == 1 || size(which_, 0) == batches) &&
                (size(which_, 1) == 1 || size(which_, 1) == q_heads) &&
                size(starts_, 1) == query_tiles + 1 && key_tiles_ <= key_tiles,
            "the live tiles were made for a call of other sizes");
    Layout found;
    found.which = which_.data();
    found.which_batch = size(which_, 0) == 1 ? 0 : which_.stride(0);
    found.which_head = size(which_, 1) == 1 ? 0 : 1;
    found.starts = starts_.data();
    found.starts_stride = size(starts_, 1);
    found.entries = entries_.data();
    found.bitmaps = reinterpret_cast<const uint64_t*>(bitmaps_.data());
    return found;
  }

 private:
  void check_which() const {
    for (int64_t i = 0; i < size(which_, 0) * size(which_, 1); ++i) {
      require(which_.data()[i] >= 0 && which_.data()[i] < size(starts_, 0),
              "a sample names a layout that is not there");
    }
  }

  // The kernels rely on runs that lie behind each other and name bitmaps that exist.
  void check_entries() {
    for (int64_t row = 0; row < size(starts_, 0); ++row) {
      const int32_t* starts = starts_.data() + row * size(starts_, 1);
      require(starts[0] >= 0, "entries start before the first one");
      for (int64_t tile = 0; tile + 1 < size(starts_, 1); ++tile) {
        require(starts[tile] <= starts[tile + 1] && starts[tile + 1] <= size(entries_, 0),
                "entries end behind the last one");
        int64_t free_from = 0;
        for (int32_t e = starts[tile]; e < starts[tile + 1]; ++e) {
          const int32_t* entry = entries_.data() + int64_t{e} * 3;
          require(entry[0] >= free_from && entry[1] > 0 && entry[2] >= -1 &&
                      entry[2] < size(bitmaps_, 0),
                  "an entry overlaps another or names a bitmap that is not there");
          free_from = int64_t{entry[0]} + entry[1];
          if (free_from > key_tiles_) key_tiles_ = free_from;
        }
      }
    }
  }

  Table32 which_, starts_, entries_;
  Table64 bitmaps_;
  int64_t key_tiles_ = 0;
};

bool has_sizes(const BorrowedTensor& tensor, std::initializer_list<int64_t> sizes) {
  int axis = 0;
  for (const int64_t wanted : sizes) {
    if (tensor.size(axis++) != wanted) return false;
  }
  return true;
}

void bind_attend(const BorrowedTensor& query, const BorrowedTensor& key,
                 const BorrowedTensor& value, const BorrowedTensor& output,
                 const std::optional<BorrowedTensor>& lse,
                 const std::optional<BorrowedTensor>& bias, const LiveTiles* tiles, float scale,
                 int threads) {
  for (const auto* tensor : {&query, &key, &value, &output}) {
    require(tensor->is_float(4), "query, key, value and output must be float32, 4-D, on the CPU");
    require(tensor->size(3) < 2 || tensor->stride(3) == 1, "the innermost stride must be 1");
  }
  AttendArgs a;
  a.query = strided<const float>(query);
  a.key = strided<const float>(key);
  a.value = strided<const float>(value);
  a.output = strided<float>(output);
  a.batches = query.size(0);
  a.q_heads = query.size(1);
  a.q_len = query.size(2);
  a.head_dim = query.size(3);
  a.kv_heads = key.size(1);
  a.kv_len = key.size(2);
  a.value_dim = value.size(3);
  a.scale = scale;
  require(a.kv_heads == 0 ? a.q_heads == 0 : a.q_heads % a.kv_heads == 0,
          "kv_heads must divide q_heads");
  require(has_sizes(key, {a.batches, a.kv_heads, a.kv_len, a.head_dim}) &&
              has_sizes(value, {a.batches, a.kv_heads, a.kv_len}) &&
              has_sizes(output, {a.batches, a.q_heads, a.q_len, a.value_dim}),
          "query, key, value and output do not fit together");
  if (lse) {
    require(lse->is_float(3) && has_sizes(*lse, {a.batches, a.q_heads, a.q_len}),
            "lse must be (batch, q_heads, q_len) float32 on the CPU");
    const int64_t rows = a.q_heads * a.q_len;
    require(rows == 0 || (lse->stride(2) == 1 && (a.q_heads < 2 || lse->stride(1) == a.q_len) &&
                          (a.batches < 2 || lse->stride(0) == rows)),
            "lse must be contiguous");
    a.lse = lse->data<float>();
  }
  if (bias) {
    require(bias->is_float(4) && has_sizes(*bias, {a.batches, a.q_heads, a.q_len, a.kv_len}),
            "bias must be (batch, q_heads, q_len, kv_len) float32 on the CPU");
    a.bias = strided<const float>(*bias);
    a.bias_column = bias->stride(3);
  }
  if (tiles != nullptr)
    a.layout = tiles->layout(a.batches, a.q_heads, a.query_tiles(), a.key_tiles());
  nb::gil_scoped_release unlocked;
  attend(a, threads);
}

}  // namespace
}  // namespace headwise

NB_MODULE(_kernels, m) {
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
      .def(nb::init<headwise::Table32, headwise::Table32, headwise::Table32, headwise::Table64>(),
           nb::arg("which").noconvert(), nb::arg("starts").noconvert(),
           nb::arg("entries").noconvert(), nb::arg("bitmaps").noconvert());
  m.def("attend", &headwise::bind_attend, nb::arg("query").noconvert(), nb::arg("key").noconvert(),
        nb::arg("value").noconvert(), nb::arg("output").noconvert(),
        nb::arg("lse").noconvert().none(), nb::arg("bias").noconvert().none(),
        nb::arg("tiles").none(), nb::arg("scale"), nb::arg("threads"),
        "Attend, writing to output and lse.");
}
