// Mathematics on the members of Vec alone.
#pragma once

#include HEADWISE_VEC_HEADER

namespace {

constexpr float kLog2E = 1.44269504088896341F;
constexpr float kMinusInfinity = -__builtin_huge_valf();

// 2^x for x <= 0, to 0.7 units in the last place; exactly 0 from -127 down, NaN for NaN.
//
// Adding `shift` rounds x to an integer n and leaves n + 127 in the low bits of the sum, which
// power_of_two moves to the exponent. The polynomial is a minimax fit of 2^f on [-1/2, 1/2].
inline Vec::Reg exp2_below_zero(Vec::Reg x) noexcept {
  const Vec::Reg shift = Vec::set(12582912.0F + 127.0F);
  x = Vec::max(Vec::set(-127.0F), x);
  const Vec::Reg shifted = Vec::add(x, shift);
  const Vec::Reg f = Vec::sub(x, Vec::sub(shifted, shift));
  Vec::Reg p = Vec::set(0.00015353361959569156F);
  p = Vec::fma(p, f, Vec::set(0.0013398873852565885F));
  p = Vec::fma(p, f, Vec::set(0.00961843691766262F));
  p = Vec::fma(p, f, Vec::set(0.055503323674201965F));
  p = Vec::fma(p, f, Vec::set(0.24022647738456726F));
  p = Vec::fma(p, f, Vec::set(0.6931471824645996F));
  p = Vec::fma(p, f, Vec::set(1.0F));
  return Vec::mul(p, Vec::power_of_two(shifted));
}

inline float exp2_of_one(float x) noexcept {
  float lanes[Vec::width];
  Vec::store(lanes, exp2_below_zero(Vec::set(x)));
  return lanes[0];
}

template <class T>
inline T smaller(T a, T b) noexcept {
  return b < a ? b : a;
}

}  // namespace
