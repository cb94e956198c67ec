// The dtypes by their definition: sign, exponent and fraction, rounded to nearest, ties to even.
#pragma once

#include <bit>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <limits>

#include "kernel_table.h"

namespace headwise::testing {

struct Format {
  int fraction;  // bits of the fraction
  int lowest;    // exponent of the smallest normal number
  int highest;   // exponent of the largest
  size_t bytes;
};

inline Format format_of(Dtype dtype) {
  switch (dtype) {
    case Dtype::kBFloat16: return {7, -126, 127, 2};
    case Dtype::kFloat16: return {10, -14, 15, 2};
    default: return {23, -126, 127, 4};
  }
}

// Half a unit in the last place of 1.
inline double rounding(Dtype dtype) { return std::ldexp(0.5, -format_of(dtype).fraction); }

inline double decode(Dtype dtype, uint32_t bits) {
  if (dtype == Dtype::kFloat32) return double{std::bit_cast<float>(bits)};
  const Format format = format_of(dtype);
  const uint32_t fraction = bits & ((1U << format.fraction) - 1U);
  const int exponent = static_cast<int>((bits & 0x7FFFU) >> format.fraction);
  double size = 0.0;
  if (exponent > format.highest - format.lowest + 1) {
    size = fraction == 0 ? std::numeric_limits<double>::infinity()
                         : std::numeric_limits<double>::quiet_NaN();
  } else if (exponent == 0) {
    size = std::ldexp(fraction, format.lowest - format.fraction);
  } else {
    size = std::ldexp(fraction | (1U << format.fraction),
                      exponent - 1 + format.lowest - format.fraction);
  }
  return (bits & 0x8000U) != 0 ? -size : size;
}

inline uint32_t encode(Dtype dtype, double number) {
  if (dtype == Dtype::kFloat32) return std::bit_cast<uint32_t>(static_cast<float>(number));
  const Format format = format_of(dtype);
  const uint32_t sign = std::signbit(number) ? 0x8000U : 0U;
  const auto infinite = static_cast<uint32_t>(format.highest - format.lowest + 2)
                        << format.fraction;
  if (std::isnan(number)) return infinite | 1U << (format.fraction - 1);
  const double size = std::fabs(number);
  if (size == 0.0) return sign;
  const int exponent = std::isinf(size) ? format.highest + 1 : std::ilogb(size);
  if (exponent > format.highest) return sign | infinite;
  const int base = exponent < format.lowest ? format.lowest : exponent;
  // Rounding up to the next power of two carries into the exponent.
  const auto units =
      static_cast<uint32_t>(std::nearbyint(std::ldexp(size, format.fraction - base)));
  return sign | (units + (static_cast<uint32_t>(base - format.lowest) << format.fraction));
}

}  // namespace headwise::testing
