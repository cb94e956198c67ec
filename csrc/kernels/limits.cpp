// How fast this processor multiplies and adds: what every kernel is measured against.

#include "kernels/numbers.h"

namespace {

constexpr int64_t kSums = 20;  // independent, so that no sum waits for another

// Runs `rounds` rounds; returns how many floating-point operations that were.
template <class Numbers>
double multiply_add(int64_t rounds, float* result) noexcept {
  Vec::Reg sum[kSums];
  for (int64_t i = 0; i < kSums; ++i) sum[i] = Vec::set(static_cast<float>(i));
  const Vec::Reg factor = Vec::set(*result);
  for (int64_t round = 0; round < rounds; ++round) {
#pragma GCC unroll 20
    for (int64_t i = 0; i < kSums; ++i) sum[i] = Numbers::multiply_add(factor, factor, sum[i]);
  }
  for (int64_t i = 1; i < kSums; ++i) sum[0] = Vec::add(sum[0], sum[i]);
  *result = Vec::sum(sum[0]);
  return 2.0 * static_cast<double>(rounds * kSums * Vec::width * Numbers::per_word);
}

}  // namespace

namespace headwise::HEADWISE_ISA {

void fill_limits(KernelTable& table) noexcept {
  table.of[0].multiply_add = multiply_add<Widened<float>>;
  table.of[1].multiply_add = multiply_add<ForBFloat16>;
  table.of[2].multiply_add = multiply_add<Widened<Float16>>;
}

}  // namespace headwise::HEADWISE_ISA
