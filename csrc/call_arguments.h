// From tensors to the arguments of a kernel: checks dtype, layout and device, not meaning.
#pragma once

#include <algorithm>
#include <initializer_list>
#include <optional>

#include "borrowed_tensor.h"
#include "kernel_table.h"
#include "live_tiles.h"

namespace headwise {

using Maybe = std::optional<BorrowedTensor>;

inline bool has_sizes(const BorrowedTensor& tensor, std::initializer_list<int64_t> sizes) {
  int axis = 0;
  for (const int64_t wanted : sizes) {
    if (tensor.size(axis++) != wanted) return false;
  }
  return true;
}

// float32 on the CPU, of the given sizes and without gaps.
inline float* packed(const BorrowedTensor& tensor, std::initializer_list<int64_t> sizes,
                     const char* rule) {
  require(tensor.is<float>(static_cast<int>(sizes.size())) && has_sizes(tensor, sizes), rule);
  int64_t stride = 1;
  bool empty = false;
  for (int axis = static_cast<int>(sizes.size()) - 1; axis >= 0; --axis) {
    empty = empty || tensor.size(axis) == 0;
  }
  for (int axis = static_cast<int>(sizes.size()) - 1; !empty && axis >= 0; --axis) {
    require(tensor.size(axis) == 1 || tensor.stride(axis) == stride, rule);
    stride *= tensor.size(axis);
  }
  return tensor.data<float>();
}

// Rows of a tensor without gaps, of any number of axes: all but the last one.
inline int64_t rows_of(const BorrowedTensor& tensor) {
  const int last = tensor.view.ndim - 1;
  require(last >= 0, "input and output must have an axis of numbers");
  int64_t rows = 1;
  int64_t stride = tensor.size(last);
  bool empty = tensor.size(last) == 0;
  for (int axis = 0; axis < last; ++axis) {
    rows *= tensor.size(axis);
    empty = empty || tensor.size(axis) == 0;
  }
  if (empty) return rows;
  require(tensor.size(last) == 1 || tensor.stride(last) == 1, "input and output may have no gaps");
  for (int axis = last - 1; axis >= 0; --axis) {
    require(tensor.size(axis) == 1 || tensor.stride(axis) == stride,
            "input and output may have no gaps");
    stride *= tensor.size(axis);
  }
  return rows;
}

template <class Untyped>
Tensor4<Untyped> strided(const BorrowedTensor& tensor, Dtype dtype) {
  require(tensor.is_dtype(dtype) && tensor.view.ndim == 4,
          "query, key, value, output and their gradients must be 4-D, on the CPU and share one "
          "dtype: float32, bfloat16 or float16");
  const bool empty = tensor.size(0) == 0 || tensor.size(1) == 0 || tensor.size(2) == 0;
  require(empty || tensor.size(3) < 2 || tensor.stride(3) == 1, "the innermost stride must be 1");
  return {tensor.data<void>(), tensor.stride(0), tensor.stride(1), tensor.stride(2)};
}

// A tensor that is written to: no two of its numbers may share a place.
inline Tensor4<void> written(const BorrowedTensor& tensor, Dtype dtype) {
  const Tensor4<void> found = strided<void>(tensor, dtype);
  for (int axis = 0; axis < 3; ++axis) {
    require(tensor.size(axis) < 2 || tensor.stride(axis) != 0, "a result may not be expanded");
  }
  return found;
}

// What a call is besides its tensors; the same for forward and backward.
struct Extras {
  const Maybe& bias;
  const Maybe& slopes;
  const Maybe& table;
  const Maybe& shifts;
  const Maybe& sinks;
  float softcap;
  double dropout_p;
  uint64_t seed;
  const LiveTiles* tiles;
  float scale;
};

inline void add_bias(AttendArgs& a, const Extras& extras) {
  const int given =
      int{extras.bias.has_value()} + int{extras.slopes.has_value()} + int{extras.table.has_value()};
  require(given <= 1, "give one of bias, slopes and table");
  if (extras.bias) {
    require(extras.bias->is<float>(4) &&
                has_sizes(*extras.bias, {a.batches, a.q_heads, a.q_len, a.kv_len}),
            "bias must be (batch, q_heads, q_len, kv_len) float32 on the CPU");
    const BorrowedTensor& bias = *extras.bias;
    a.bias.dense = {bias.data<void>(), bias.stride(0), bias.stride(1), bias.stride(2)};
    a.bias.dense_column = bias.stride(3);
    return;
  }
  if (given == 0) return;
  require(extras.shifts && extras.shifts->is<int64_t>(1) &&
              (extras.shifts->size(0) == 1 || extras.shifts->size(0) == a.batches),
          "shifts must be int64 on the CPU, one for all samples or one for each");
  a.bias.shifts = extras.shifts->data<int64_t>();
  a.bias.shifts_batch = extras.shifts->size(0) == 1 ? 0 : extras.shifts->stride(0);
  if (extras.slopes) {
    a.bias.slopes = packed(*extras.slopes, {a.q_heads}, "slopes must be (q_heads,) float32");
    return;
  }
  a.bias.table_width = extras.table->view.ndim == 2 ? extras.table->size(1) : 0;
  a.bias.table = packed(*extras.table, {a.q_heads, a.bias.table_width},
                        "table must be (q_heads, width) float32, contiguous");
  for (int64_t b = 0; b < (a.bias.shifts_batch == 0 ? 1 : a.batches); ++b) {
    require(a.q_len == 0 || a.kv_len == 0 ||
                (a.bias.distance(b, 0, a.kv_len - 1) >= 0 &&
                 a.bias.distance(b, a.q_len - 1, 0) < a.bias.table_width),
            "the table must have a column for every distance");
  }
}

inline void add_extras(AttendArgs& a, const Extras& extras) {
  a.scale = extras.scale;
  a.softcap = extras.softcap;
  add_bias(a, extras);
  if (extras.sinks) {
    a.sinks = packed(*extras.sinks, {a.q_heads}, "sinks must be (q_heads,) float32");
  }
  require(extras.dropout_p >= 0.0 && extras.dropout_p <= 1.0, "dropout_p must be within 0 and 1");
  if (extras.dropout_p > 0.0) {
    constexpr double kWords = 4294967296.0;
    a.dropout.threshold =
        static_cast<uint32_t>(std::clamp(extras.dropout_p * kWords, 1.0, kWords - 1.0));
    a.dropout.factor =
        static_cast<float>(extras.dropout_p < 1.0 ? 1.0 / (1.0 - extras.dropout_p) : 0.0);
    a.dropout.key[0] = static_cast<uint32_t>(extras.seed);
    a.dropout.key[1] = static_cast<uint32_t>(extras.seed >> 32U);
  }
  if (extras.tiles != nullptr) {
    a.layout = extras.tiles->layout(a.batches, a.q_heads, a.query_tiles(), a.key_tiles());
  }
}

// Keys or values as they are stored: 8 bits each, or the dtype of the query.
inline Tensor4<const void> stored(const BorrowedTensor& tensor, const AttendArgs& a) {
  if (!a.store.is_scaled) return strided<const void>(tensor, a.dtype);
  require(tensor.is<int8_t>(4), "scaled keys and values must be 4-D int8 on the CPU");
  const bool empty = tensor.size(0) == 0 || tensor.size(1) == 0 || tensor.size(2) == 0;
  require(empty || tensor.size(3) < 2 || tensor.stride(3) == 1, "the innermost stride must be 1");
  return {tensor.data<void>(), tensor.stride(0), tensor.stride(1), tensor.stride(2)};
}

inline Tensor4<const void> scales(const BorrowedTensor& tensor, const BorrowedTensor& of) {
  require(tensor.is<float>(3) && has_sizes(tensor, {of.size(0), of.size(1), of.size(2)}),
          "scales must be float32, one for each row of keys and of values");
  return {tensor.data<void>(), tensor.stride(0), tensor.stride(1), tensor.stride(2)};
}

// Few queries over keys and values as a cache holds them.
inline AttendArgs stored_arguments(const BorrowedTensor& query, const BorrowedTensor& key,
                                   const BorrowedTensor& value, const BorrowedTensor& output,
                                   const Maybe& lse, const Maybe& key_scale,
                                   const Maybe& value_scale, const Maybe& pages, int64_t kv_len,
                                   const Extras& extras) {
  AttendArgs a;
  require(query.find_dtype(a.dtype), "query must be float32, bfloat16 or float16 on the CPU");
  a.query = strided<const void>(query, a.dtype);
  a.output = written(output, a.dtype);
  a.batches = query.size(0);
  a.q_heads = query.size(1);
  a.q_len = query.size(2);
  a.head_dim = query.size(3);
  require(key_scale.has_value() == value_scale.has_value(),
          "keys and values must both have scales, or none");
  a.store.is_scaled = key_scale.has_value();
  a.key = stored(key, a);
  a.value = stored(value, a);
  if (key_scale && value_scale) {
    a.store.key_scale = scales(*key_scale, key);
    a.store.value_scale = scales(*value_scale, value);
  }
  a.kv_heads = key.size(1);
  a.kv_len = kv_len;
  a.value_dim = value.size(3);
  require(a.kv_heads == 0 ? a.q_heads == 0 : a.q_heads % a.kv_heads == 0,
          "kv_heads must divide q_heads");
  require(a.q_len <= kFewQueries, "stored keys are read by few queries at a time");
  require(has_sizes(value, {key.size(0), a.kv_heads, key.size(2)}) && key.size(3) == a.head_dim &&
              has_sizes(output, {a.batches, a.q_heads, a.q_len, a.value_dim}),
          "query, key, value and output do not fit together");
  if (pages) {
    a.store.page_tokens = key.size(2);
    require(a.store.page_tokens > 0 && a.store.page_tokens % kKeyTile == 0,
            "pages must hold a multiple of 128 tokens");
    const int64_t count = (kv_len + a.store.page_tokens - 1) / a.store.page_tokens;
    require(pages->is<int32_t>(2) && pages->size(0) == a.batches && pages->size(1) >= count &&
                (count < 2 || pages->stride(1) == 1),
            "pages must be (batch, pages) int32, as many as the tokens need");
    a.store.pages = pages->data<int32_t>();
    a.store.pages_batch = pages->stride(0);
    for (int64_t b = 0; b < a.batches; ++b) {
      for (int64_t p = 0; p < count; ++p) {
        const int32_t page = a.store.pages[b * a.store.pages_batch + p];
        require(page >= 0 && page < key.size(0), "there is no such page");
      }
    }
  } else {
    require(key.size(0) == a.batches && kv_len >= 0 && kv_len <= key.size(2),
            "keys and values must be of as many samples as the query, and hold kv_len tokens");
  }
  if (lse) {
    a.lse = packed(*lse, {a.batches, a.q_heads, a.q_len, 2},
                   "lse must be (batch, q_heads, q_len, 2) float32, contiguous");
  }
  add_extras(a, extras);
  return a;
}

inline AttendArgs call_arguments(const BorrowedTensor& query, const BorrowedTensor& key,
                                 const BorrowedTensor& value, const BorrowedTensor& output,
                                 const Maybe& lse, const Extras& extras) {
  AttendArgs a;
  require(query.find_dtype(a.dtype), "query must be float32, bfloat16 or float16 on the CPU");
  a.query = strided<const void>(query, a.dtype);
  a.key = strided<const void>(key, a.dtype);
  a.value = strided<const void>(value, a.dtype);
  a.output = written(output, a.dtype);
  a.batches = query.size(0);
  a.q_heads = query.size(1);
  a.q_len = query.size(2);
  a.head_dim = query.size(3);
  a.kv_heads = key.size(1);
  a.kv_len = key.size(2);
  a.value_dim = value.size(3);
  require(a.kv_heads == 0 ? a.q_heads == 0 : a.q_heads % a.kv_heads == 0,
          "kv_heads must divide q_heads");
  require(has_sizes(key, {a.batches, a.kv_heads, a.kv_len, a.head_dim}) &&
              has_sizes(value, {a.batches, a.kv_heads, a.kv_len}) &&
              has_sizes(output, {a.batches, a.q_heads, a.q_len, a.value_dim}),
          "query, key, value and output do not fit together");
  if (lse) {
    a.lse = packed(*lse, {a.batches, a.q_heads, a.q_len, 2},
                   "lse must be (batch, q_heads, q_len, 2) float32, contiguous");
  }
  add_extras(a, extras);
  return a;
}

inline BackwardArgs backward_arguments(const BorrowedTensor& d_output, const Maybe& d_lse,
                                       const Maybe& lse, const AttendArgs& call) {
  BackwardArgs b;
  b.call = call;
  require(lse.has_value(), "the backward needs the log-sum-exp");
  b.d_output = strided<const void>(d_output, call.dtype);
  require(has_sizes(d_output, {call.batches, call.q_heads, call.q_len, call.value_dim}),
          "d_output must have the shape of output");
  if (d_lse) {
    b.d_lse = packed(*d_lse, {call.batches, call.q_heads, call.q_len},
                     "d_lse must be (batch, q_heads, q_len) float32, contiguous");
  }
  return b;
}

}  // namespace headwise
