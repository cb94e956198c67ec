// Every task of a call by itself, in a workspace of its own.
#pragma once

#include "tensor.h"

namespace headwise::testing {

// Just so many floats, all of them NaN, between guard pages.
inline Tensor room_for(int64_t floats, Side side) {
  return Tensor::packed(Dtype::kFloat32, {1, 1, 1, floats}, side);
}

template <class Task>
void run_each(int64_t tasks, int64_t floats, Side side, Task task) {
  for (int64_t number = 0; number < tasks; ++number) {
    const Tensor room = room_for(floats, side);
    task(number, room.data<float>());
  }
}

}  // namespace headwise::testing
