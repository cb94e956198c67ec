#include "tensor.h"

#include <algorithm>

namespace headwise::testing {

namespace {

int64_t room_for(const Sizes& sizes, const Sizes& strides) {
  int64_t last = 0;
  for (size_t axis = 0; axis < 4; ++axis) {
    if (sizes[axis] == 0) return 0;
    last += (sizes[axis] - 1) * strides[axis];
  }
  return last + 1;
}

}  // namespace

Tensor::Tensor(Dtype dtype, Sizes sizes, Sizes strides, Side side)
    : dtype_(dtype),
      sizes_(sizes),
      strides_(strides),
      room_(room_for(sizes, strides)),
      memory_(static_cast<size_t>(room_) * format_of(dtype).bytes, side) {
  clear();
}

Sizes Tensor::draw_strides(Draw& draw, Sizes sizes, bool repeats, bool any_column) {
  std::array<size_t, 4> order = {3, 2, 1, 0};  // from the innermost axis
  for (size_t i = any_column ? 0 : 1; i < 4; ++i) {
    std::swap(order[i], order[i + static_cast<size_t>(draw.below(4 - static_cast<int64_t>(i)))]);
  }
  Sizes strides{};
  int64_t next = 1;
  for (const size_t axis : order) {
    const bool free = repeats && (axis != 3 || any_column);
    if (free && draw.chance(12)) continue;  // the same numbers again: stride 0
    const bool overlaps = free && axis == 2 && draw.chance(6);
    strides[axis] = overlaps ? 1 : next;
    next += (sizes[axis] > 0 ? sizes[axis] - 1 : 0) * strides[axis];
    if (axis != 3 && draw.chance(30)) next += draw.between(1, 9);
    if (axis == 3 && draw.chance(40)) next += draw.between(1, 5);
  }
  return strides;
}

Tensor Tensor::drawn(Draw& draw, Dtype dtype, Sizes sizes, bool repeats, bool any_column,
                     Side side) {
  return {dtype, sizes, draw_strides(draw, sizes, repeats, any_column), side};
}

Tensor Tensor::packed(Dtype dtype, Sizes sizes, Side side) {
  return {dtype, sizes, {sizes[1] * sizes[2] * sizes[3], sizes[2] * sizes[3], sizes[3], 1}, side};
}

// A NaN that no kernel makes.
uint32_t Tensor::untouched() const {
  switch (dtype_) {
    case Dtype::kBFloat16: return 0x7FA5U;
    case Dtype::kFloat16: return 0x7DA5U;
    default: return 0x7FA5A5A5U;
  }
}

uint32_t Tensor::bits(int64_t at) const {
  const size_t bytes = format_of(dtype_).bytes;
  uint32_t found = 0;
  std::memcpy(&found, memory_.as<char>() + static_cast<size_t>(at) * bytes, bytes);
  return found;
}

void Tensor::put(int64_t at, uint32_t bits) {
  const size_t bytes = format_of(dtype_).bytes;
  std::memcpy(memory_.as<char>() + static_cast<size_t>(at) * bytes, &bits, bytes);
}

void Tensor::clear() {
  if (room_ == 0) return;
  if (dtype_ == Dtype::kFloat32) {
    std::fill_n(memory_.as<uint32_t>(), room_, untouched());
  } else {
    std::fill_n(memory_.as<uint16_t>(), room_, static_cast<uint16_t>(untouched()));
  }
}

void Tensor::fill(Draw& draw, double spread) {
  for_each([&](int64_t at) { put(at, encode(dtype_, draw.bell() * spread)); });
}

bool Tensor::gaps_untouched() const {
  std::vector<bool> inside(static_cast<size_t>(room_));
  for_each([&](int64_t at) { inside[static_cast<size_t>(at)] = true; });
  for (int64_t at = 0; at < room_; ++at) {
    if (!inside[static_cast<size_t>(at)] && bits(at) != untouched()) return false;
  }
  return true;
}

bool Tensor::repeats() const {
  std::vector<bool> seen(static_cast<size_t>(room_));
  bool again = false;
  for_each([&](int64_t at) {
    again = again || seen[static_cast<size_t>(at)];
    seen[static_cast<size_t>(at)] = true;
  });
  return again;
}

std::vector<double> Tensor::numbers() const {
  std::vector<double> all;
  for_each([&](int64_t at) { all.push_back(decode(dtype_, bits(at))); });
  return all;
}

}  // namespace headwise::testing
