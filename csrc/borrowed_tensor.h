// A torch tensor's memory, read without PyTorch and without taking a reference.
//
// torch offers DLPack's C exchange table on its tensor type (dlpack.h 1.3): one call of a C
// function, against about 2 µs for the Python method __dlpack__. Where there is no such table,
// nanobind's own ndarray asks that method.
#pragma once

#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>

#include <cstdint>

#include "kernel_table.h"

namespace headwise {

// Valid while the argument it was made from is.
struct BorrowedTensor {
  nanobind::dlpack::dltensor view{};
  nanobind::ndarray<> held;  // only where torch has no exchange table

  template <class T>
  T* data() const noexcept {
    return reinterpret_cast<T*>(static_cast<char*>(view.data) + view.byte_offset);
  }
  int64_t size(int axis) const noexcept { return view.shape[axis]; }
  int64_t stride(int axis) const noexcept { return view.strides[axis]; }

  bool is_on_cpu() const noexcept {
    return view.device.device_type == nanobind::device::cpu::value;
  }
  // Numbers of type T on the CPU with `dimensions` axes.
  template <class T>
  bool is(int dimensions) const noexcept {
    return view.dtype == nanobind::dtype<T>() && view.ndim == dimensions && is_on_cpu();
  }
  bool is_dtype(Dtype wanted) const noexcept {
    Dtype found{};
    return find_dtype(found) && found == wanted;
  }
  // Says which of the kernels' dtypes it has, on the CPU; false for any other.
  bool find_dtype(Dtype& found) const noexcept {
    using Code = nanobind::dlpack::dtype_code;
    const auto is = [&](Code code, int bits) {
      return view.dtype.code == static_cast<uint8_t>(code) && view.dtype.bits == bits &&
             view.dtype.lanes == 1 && is_on_cpu();
    };
    if (is(Code::Float, 32)) {
      found = Dtype::kFloat32;
    } else if (is(Code::Bfloat, 16)) {
      found = Dtype::kBFloat16;
    } else if (is(Code::Float, 16)) {
      found = Dtype::kFloat16;
    } else {
      return false;
    }
    return true;
  }
};

// The head of dlpack.h's DLPackExchangeAPI, up to the one entry that is used.
struct ExchangeTable {
  uint32_t major, minor;
  ExchangeTable* previous;
  void* allocate;
  void* managed_from_object;
  void* managed_to_object;
  int (*borrow)(void* object, nanobind::dlpack::dltensor* out);
};

inline const ExchangeTable* exchange_table(nanobind::handle object) noexcept {
  PyObject* capsule = PyObject_GetAttrString(reinterpret_cast<PyObject*>(Py_TYPE(object.ptr())),
                                             "__dlpack_c_exchange_api__");
  if (capsule == nullptr) {
    PyErr_Clear();
    return nullptr;
  }
  auto* table = static_cast<ExchangeTable*>(PyCapsule_GetPointer(capsule, "dlpack_exchange_api"));
  Py_DECREF(capsule);
  if (table == nullptr) PyErr_Clear();
  while (table != nullptr && table->major != 1) table = table->previous;
  return table;
}

}  // namespace headwise

template <>
struct nanobind::detail::type_caster<headwise::BorrowedTensor> {
  NB_TYPE_CASTER(headwise::BorrowedTensor, const_name("torch.Tensor"))

  bool from_python(handle object, uint8_t flags, cleanup_list* cleanup) noexcept {
    if (const headwise::ExchangeTable* table = headwise::exchange_table(object)) {
      if (table->borrow(object.ptr(), &value.view) == 0) return true;
      PyErr_Clear();
      return false;
    }
    make_caster<ndarray<>> caster;
    if (object.is_none() || !caster.from_python(object, flags, cleanup)) return false;
    value.held = caster.value;
    value.view.data = value.held.data();
    value.view.device = {value.held.device_type(), value.held.device_id()};
    value.view.ndim = static_cast<int32_t>(value.held.ndim());
    value.view.dtype = value.held.dtype();
    value.view.shape = const_cast<int64_t*>(value.held.shape_ptr());
    value.view.strides = const_cast<int64_t*>(value.held.stride_ptr());
    return true;
  }
};
