// The table of functions that every instruction set fills.
#pragma once

#include "attend_args.h"
#include "linear_args.h"

namespace headwise {

// Functions that compute one task on one thread. Sizes of workspaces are in floats.
struct Functions {
  // A run of query tiles of one head against all their live key tiles.
  int64_t (*tile_workspace)(const AttendArgs&) noexcept;
  void (*attend_tile)(const AttendArgs&, int64_t task, float* workspace) noexcept;

  // Few queries: all rows of one key/value head against one chunk of keys, into `partials`;
  // then the partial results of one row are merged in the order of the keys.
  int64_t (*chunk_workspace)(const AttendArgs&) noexcept;
  int64_t (*partial_size)(const AttendArgs&) noexcept;
  void (*attend_chunk)(const AttendArgs&, int64_t task, float* partials, float* workspace) noexcept;
  void (*attend_scaled_chunk)(const AttendArgs&, int64_t task, float* partials,
                              float* workspace) noexcept;
  int64_t (*merge_workspace)(const AttendArgs&) noexcept;
  void (*merge_row)(const AttendArgs&, int64_t task, const float* partials,
                    float* workspace) noexcept;

  // Fills `delta` for one query tile.
  int64_t (*delta_workspace)(const BackwardArgs&) noexcept;
  void (*fill_delta)(const BackwardArgs&, int64_t task, float* workspace) noexcept;
  // Blocks of keys of one key/value head against all query tiles that see them.
  int64_t (*backward_workspace)(const BackwardArgs&) noexcept;
  void (*attend_backward)(const BackwardArgs&, int64_t task, float* workspace) noexcept;

  // A part of the gradient of a bias.
  int64_t (*bias_workspace)(const BiasBackwardArgs&) noexcept;
  int64_t (*bias_tasks)(const BiasBackwardArgs&) noexcept;
  void (*bias_backward)(const BiasBackwardArgs&, int64_t task, float* workspace) noexcept;

  // A linear map of few rows, for a run of outputs.
  void (*linear_rows)(const LinearArgs&, int64_t task) noexcept;

  // Linear attention: all of one key/value head, or one segment of its tokens. The state of a
  // segment goes to or comes from `segments`.
  int64_t (*linear_state_size)(const LinearSumsArgs&) noexcept;
  int64_t (*linear_workspace)(const LinearSumsArgs&) noexcept;
  void (*linear_head)(const LinearSumsArgs&, int64_t task, float* workspace) noexcept;
  void (*linear_write)(const LinearSumsArgs&, int64_t task, float* workspace) noexcept;
  void (*linear_join)(const LinearSumsArgs&, int64_t task, float* workspace) noexcept;
  void (*linear_read)(const LinearSumsArgs&, int64_t task, float* workspace) noexcept;

  // Random features of a block of tokens of one head.
  int64_t (*feature_workspace)(const FeatureArgs&) noexcept;
  void (*random_features)(const FeatureArgs&, int64_t task, float* workspace) noexcept;

  // Multiplies and adds in registers for so many rounds; returns the number of operations.
  double (*multiply_add)(int64_t rounds, float* result) noexcept;
};

struct KernelTable {
  const char* name;
  Functions of[kDtypes];

  HEADWISE_INLINE const Functions& operator[](Dtype dtype) const noexcept {
    return of[static_cast<int>(dtype)];
  }
};

}  // namespace headwise
