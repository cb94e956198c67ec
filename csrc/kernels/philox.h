// A random generator that counts: Philox4x32-10 (Salmon et al., "Parallel random numbers: as easy
// as 1, 2, 3", 2011). Who knows the counter can draw the same words again.
#pragma once

#include "simd/vec_math.h"

namespace {

// Turns each lane's counter of four words into four random words.
inline void philox(const uint32_t* key, Vec::Int* words) noexcept {
  uint32_t low = key[0];
  uint32_t high = key[1];
  for (int round = 0; round < 10; ++round, low += 0x9E3779B9U, high += 0xBB67AE85U) {
    Vec::Int high0;
    Vec::Int high2;
    const Vec::Int low0 = Vec::mul_wide(words[0], 0xD2511F53U, high0);
    const Vec::Int low2 = Vec::mul_wide(words[2], 0xCD9E8D57U, high2);
    words[0] = Vec::xor_int(Vec::xor_int(high2, words[1]), Vec::set_int(low));
    words[1] = low2;
    words[2] = Vec::xor_int(Vec::xor_int(high0, words[3]), Vec::set_int(high));
    words[3] = low0;
  }
}

}  // namespace
