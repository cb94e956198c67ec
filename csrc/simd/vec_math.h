// Mathematics on the members of Vec alone.
#pragma once

#include HEADWISE_VEC_HEADER

namespace {

constexpr double kLog2E = 1.4426950408889634;
constexpr float kMinusInfinity = -__builtin_huge_valf();

// A factor of exponents in two parts, for their product is needed to more than float32.
struct Factor {
  Vec::Reg high, low;
  Vec::Reg least;  // below it, 2^(factor * x) is taken for 0

  explicit Factor(double factor) noexcept {
    const auto rounded = static_cast<float>(factor);
    high = Vec::set(rounded);
    low = Vec::set(static_cast<float>(factor - double{rounded}));
    least = Vec::set(rounded < 0x1p-120F ? -0x1p127F : -127.0F / rounded);
  }
};

// 2^(factor * x) for x <= 0 and a factor above 0, to 1 unit in the last place; exactly 0 from
// factor * x = -127 down, NaN for NaN. The short form is right to 3e-6 and a rounding of the
// product, for weights that are rounded to bfloat16.
//
// Adding `shift` rounds to an integer n and leaves n + 127 in the low bits of the sum, which
// power_of_two moves to the exponent. The polynomials are minimax fits of 2^f on [-1/2, 1/2].
template <bool kShort = false>
inline Vec::Reg exp2_below_zero(Vec::Reg x, const Factor& factor) noexcept {
  const Vec::Reg shift = Vec::set(12582912.0F + 127.0F);
  x = Vec::max(factor.least, x);
  const Vec::Reg shifted = Vec::fma(x, factor.high, shift);
  const Vec::Reg minus_n = Vec::sub(shift, shifted);
  Vec::Reg f = Vec::fma(x, factor.high, minus_n);
  Vec::Reg p;
  if constexpr (kShort) {
    p = Vec::set(0.009582852944731712F);
    p = Vec::fma(p, f, Vec::set(0.055906426161527634F));
    p = Vec::fma(p, f, Vec::set(0.24024099111557007F));
    p = Vec::fma(p, f, Vec::set(0.6931241750717163F));
  } else {
    f = Vec::fma(x, factor.low, f);
    p = Vec::set(0.00015353361959569156F);
    p = Vec::fma(p, f, Vec::set(0.0013398873852565885F));
    p = Vec::fma(p, f, Vec::set(0.00961843691766262F));
    p = Vec::fma(p, f, Vec::set(0.055503323674201965F));
    p = Vec::fma(p, f, Vec::set(0.24022647738456726F));
    p = Vec::fma(p, f, Vec::set(0.6931471824645996F));
  }
  p = Vec::fma(p, f, Vec::set(1.0F));
  return Vec::mul(p, Vec::power_of_two(shifted));
}

// e^x for x <= 0.
inline float exp_of_one(float x) noexcept {
  float lanes[Vec::width];
  Vec::store(lanes, exp2_below_zero(Vec::set(x), Factor(kLog2E)));
  return lanes[0];
}

// tanh(x), to 2 units in the last place; NaN for NaN.
//
// Near 0 a polynomial in x^2 keeps the relative error small; further out, from e = exp(-2|x|),
// (1 - e) / (1 + e).
inline Vec::Reg tanh(Vec::Reg x) noexcept {
  const Vec::Reg size = Vec::abs(x);
  const Vec::Reg one = Vec::set(1.0F);
  const Vec::Reg e = exp2_below_zero(Vec::sub(Vec::set(0.0F), size), Factor(2.0 * kLog2E));
  const Vec::Reg far = Vec::div(Vec::sub(one, e), Vec::add(one, e));
  const Vec::Reg square = Vec::mul(x, x);
  Vec::Reg p = Vec::set(-0.005666968F);
  p = Vec::fma(p, square, Vec::set(0.02060617F));
  p = Vec::fma(p, square, Vec::set(-0.053730004F));
  p = Vec::fma(p, square, Vec::set(0.13331331F));
  p = Vec::fma(p, square, Vec::set(-0.33333278F));
  p = Vec::mul(p, square);
  const Vec::Reg near = Vec::fma(p, x, x);
  const Vec::Reg signed_far =
      Vec::select(Vec::less(x, Vec::set(0.0F)), Vec::sub(Vec::set(0.0F), far), far);
  return Vec::select(Vec::less(size, Vec::set(0.625F)), near, signed_far);
}

template <class T>
inline T smaller(T a, T b) noexcept {
  return b < a ? b : a;
}

}  // namespace
