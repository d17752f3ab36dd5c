// Where codes, scales and minima go in the blocks of 16 rows that abi.h draws.
#pragma once

#include <cstdint>
#include <cstring>

#include "formats.h"
#include "pack_group.h"
#include "pack_round.h"

namespace paceline {

template <PlFormat format>
inline void put_scale(float value, uint8_t *scales, int index) {
  if constexpr (has_float16_scales(format)) {
    const uint16_t half = float_to_float16(value);
    std::memcpy(scales + index * 2, &half, 2);
  } else {
    std::memcpy(scales + index * 4, &value, 4);
  }
}

// Row `r` (0 to 15) of a group of a block.
template <PlFormat format>
inline void put_group(const Group &group, int r, uint8_t *target) {
  alignas(32) uint8_t codes[kGroupColumns];
  const int offset = is_offset(format) ? 8 : 0;
  for (int i = 0; i < kGroupColumns; ++i) codes[i] = uint8_t(group.codes[i] + offset);
  int bytes = kGroupColumns;
  if (code_bits(format) == 4) {
    bytes /= 2;
    for (int i = 0; i < bytes; ++i) codes[i] = uint8_t(codes[i] | codes[16 + i] << 4);
  }
  for (int i = 0; i < bytes; i += 4) std::memcpy(target + i * kBlockRows + r * 4, codes + i, 4);
  uint8_t *scales = target + code_bytes(format), *minima = scales + scale_bytes(format);
  for (int half = 0; half < scales_per_group(format); ++half) {
    put_scale<format>(group.d[half], scales, half * kBlockRows + r);
    if (has_minima(format)) put_scale<format>(group.m[half], minima, half * kBlockRows + r);
  }
}

}  // namespace paceline
