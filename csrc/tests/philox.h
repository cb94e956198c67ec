// The generator that drops weights, one word at a time: Philox4x32-10 (Salmon et al., 2011).
#pragma once

#include <array>
#include <cstdint>

namespace headwise::testing {

inline std::array<uint32_t, 4> philox_words(std::array<uint32_t, 4> counter,
                                            std::array<uint32_t, 2> key) {
  for (int round = 0; round < 10; ++round) {
    const uint64_t first = uint64_t{counter[0]} * 0xD2511F53U;
    const uint64_t third = uint64_t{counter[2]} * 0xCD9E8D57U;
    counter = {
        static_cast<uint32_t>(third >> 32U) ^ counter[1] ^ key[0], static_cast<uint32_t>(third),
        static_cast<uint32_t>(first >> 32U) ^ counter[3] ^ key[1], static_cast<uint32_t>(first)};
    key[0] += 0x9E3779B9U;
    key[1] += 0xBB67AE85U;
  }
  return counter;
}

}  // namespace headwise::testing
