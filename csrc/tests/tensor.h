// A tensor of four axes with any strides, in guarded memory.
#pragma once

#include <array>
#include <cstring>
#include <vector>

#include "draw.h"
#include "dtype.h"
#include "guarded.h"

namespace headwise::testing {

using Sizes = std::array<int64_t, 4>;

class Tensor {
 public:
  Tensor() = default;
  Tensor(Dtype dtype, Sizes sizes, Sizes strides, Side side);

  // Draws the order of the axes and gaps between them. Where it `repeats`, an axis may have stride
  // 0 and rows may overlap; where `any_column`, the innermost axis may have any stride, too.
  static Sizes draw_strides(Draw& draw, Sizes sizes, bool repeats, bool any_column);
  static Tensor drawn(Draw& draw, Dtype dtype, Sizes sizes, bool repeats, bool any_column,
                      Side side);
  static Tensor packed(Dtype dtype, Sizes sizes, Side side);

  double get(int64_t b, int64_t h, int64_t i, int64_t c) const {
    return decode(dtype_, bits(offset(b, h, i, c)));
  }
  void set(int64_t b, int64_t h, int64_t i, int64_t c, double number) {
    put(offset(b, h, i, c), encode(dtype_, number));
  }

  // Makes everything NaN, gaps included, as `gaps_untouched` expects it.
  void clear();
  void fill(Draw& draw, double spread);  // bell-shaped
  bool gaps_untouched() const;
  bool repeats() const;
  void seal() { memory_.seal(); }
  std::vector<double> numbers() const;  // in the order of the axes

  const Sizes& sizes() const { return sizes_; }
  const Sizes& strides() const { return strides_; }
  template <class T>
  T* data() const {
    return memory_.as<T>();
  }
  template <class Untyped>
  Tensor4<Untyped> view() const {
    return {memory_.as<void>(), strides_[0], strides_[1], strides_[2]};
  }

 private:
  template <class Take>
  void for_each(Take take) const {
    for (int64_t b = 0; b < sizes_[0]; ++b) {
      for (int64_t h = 0; h < sizes_[1]; ++h) {
        for (int64_t i = 0; i < sizes_[2]; ++i) {
          for (int64_t c = 0; c < sizes_[3]; ++c) take(offset(b, h, i, c));
        }
      }
    }
  }
  int64_t offset(int64_t b, int64_t h, int64_t i, int64_t c) const {
    return b * strides_[0] + h * strides_[1] + i * strides_[2] + c * strides_[3];
  }
  uint32_t bits(int64_t at) const;
  void put(int64_t at, uint32_t bits);
  uint32_t untouched() const;

  Dtype dtype_ = Dtype::kFloat32;
  Sizes sizes_{};
  Sizes strides_{};
  int64_t room_ = 0;  // elements, gaps included
  GuardedMemory memory_;
};

}  // namespace headwise::testing
