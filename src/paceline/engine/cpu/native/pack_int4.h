// `paceline.model.quantized.int4`: words of eight codes, element i in bits 4 (i % 8) of word i / 8; (code - zero) * scale.
#pragma once

#include <cstdint>

#include "pack_group.h"

namespace paceline {

// `scales` and `zeros` are those of the group's row, one for each `group` columns; null zeros are all 8.
//
// With zeros, code * d + m has three roundings where the file's value has one. All products are exact for scales of 16
// bits, which files have. For others values may be some steps of float32 apart.
inline void read_int4(const uint8_t *row, int g, int group, const float *scales, const uint8_t *zeros, Group &out) {
  const int zero = zeros == nullptr ? 8 : 0, at = g * kGroupColumns / group;
  for (int i = 0; i < kGroupColumns / 2; ++i) {
    const int both = row[g * kGroupColumns / 2 + i];
    out.codes[2 * i] = int8_t((both & 15) - zero);
    out.codes[2 * i + 1] = int8_t((both >> 4) - zero);
  }
  set_scale(out, scales[at], zeros == nullptr ? 0 : -(float(zeros[at]) * scales[at]));
}

}  // namespace paceline
