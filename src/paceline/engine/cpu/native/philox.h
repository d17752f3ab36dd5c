// Philox4x32-10, Salmon, Moraes, Dror, Shaw: "Parallel random numbers: as easy as 1, 2, 3" (SC 2011).
#pragma once

#include <cstdint>

namespace paceline {

// A float64 in [0, 1) for one position of the sequence seeded with `seed`: `paceline.engine.philox.uniform` bit for bit.
static inline double uniform(uint64_t seed, uint32_t position) {
  uint32_t counter[4] = {position, 0, 0, 0};
  uint32_t key[2] = {uint32_t(seed), uint32_t(seed >> 32)};
  for (int round = 0; round < 10; round++) {
    const uint64_t first = 0xD2511F53ull * counter[0], second = 0xCD9E8D57ull * counter[2];
    counter[0] = uint32_t(second >> 32) ^ counter[1] ^ key[0];
    counter[1] = uint32_t(second);
    counter[2] = uint32_t(first >> 32) ^ counter[3] ^ key[1];
    counter[3] = uint32_t(first);
    key[0] += 0x9E3779B9u;
    key[1] += 0xBB67AE85u;
  }
  const uint64_t bits = uint64_t(counter[0]) << 32 | counter[1];
  return double(bits >> 11) * 0x1p-53;
}

}  // namespace paceline
