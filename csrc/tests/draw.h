// Drawn numbers, the same on every machine.
#pragma once

#include <cmath>
#include <cstdint>
#include <initializer_list>

namespace headwise::testing {

class Draw {
 public:
  explicit Draw(uint64_t seed) : state_(seed) {}

  uint64_t word() {  // SplitMix64 (Steele, Lea & Flood, 2014)
    uint64_t z = state_ += 0x9E3779B97F4A7C15U;
    z = (z ^ (z >> 30U)) * 0xBF58476D1CE4E5B9U;
    z = (z ^ (z >> 27U)) * 0x94D049BB133111EBU;
    return z ^ (z >> 31U);
  }
  int64_t below(int64_t end) { return static_cast<int64_t>(word() % static_cast<uint64_t>(end)); }
  int64_t between(int64_t low, int64_t high) { return low + below(high - low + 1); }
  bool chance(int percent) { return below(100) < percent; }
  template <class T>
  T one_of(std::initializer_list<T> choices) {
    return choices.begin()[below(static_cast<int64_t>(choices.size()))];
  }
  double unit() { return std::ldexp(static_cast<double>(word() >> 11U), -53); }
  // Close to a normal distribution, never further out than 4.
  double bell() { return (unit() + unit() + unit() + unit() - 2.0) * std::sqrt(3.0); }

 private:
  uint64_t state_;
};

}  // namespace headwise::testing
