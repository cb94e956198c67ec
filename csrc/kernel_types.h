// What the arguments of all kernels are made of.
#pragma once

#include <cstdint>

// Never a symbol of its own: one inline function compiled for two instruction sets would be merged
// by the linker, and an old processor would run the new one's code.
#define HEADWISE_INLINE __attribute__((always_inline)) inline

namespace headwise {

constexpr int64_t kQueryTile = 48;   // queries of a tile: the lanes of the kernels
constexpr int64_t kKeyTile = 128;    // keys of a tile
constexpr int64_t kFewQueries = 16;  // up to here keys are split among tasks
constexpr int64_t kChunkTiles = 2;   // key tiles that one such task takes
constexpr int64_t kRunTiles = 4;     // neighbouring query tiles that one task may take
constexpr int64_t kBlockTiles = 4;   // key tiles whose gradients one task of the backward owns

constexpr int64_t kFeatureRows = 32;  // tokens of a task for random features
constexpr int64_t kSegment = 1024;    // tokens whose sums for linear attention are made apart

// Numbers of 16 bits, widened to float32 before anything is done with them.
struct BFloat16 {
  uint16_t bits;
};
struct Float16 {
  uint16_t bits;
};

enum class Dtype { kFloat32, kBFloat16, kFloat16 };
constexpr int kDtypes = 3;

// A tensor (batch, heads, length, dim) with innermost stride 1; strides in elements.
template <class Untyped>
struct Tensor4 {
  Untyped* data = nullptr;
  int64_t batch = 0;
  int64_t head = 0;
  int64_t row = 0;

  template <class T>
  HEADWISE_INLINE T* at(int64_t b, int64_t h, int64_t i) const noexcept {
    return static_cast<T*>(data) + b * batch + h * head + i * row;
  }
};

}  // namespace headwise
