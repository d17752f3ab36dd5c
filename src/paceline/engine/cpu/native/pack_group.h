// What every quantised file says of 32 columns of a row, whatever its blocks look like.
#pragma once

#include <cstdint>

#include "formats.h"

namespace paceline {

// value = code * d + m; d and m may differ between the first and the second 16 columns. Where a file has no minima, m is 0
// and codes are signed: a Q4_0 nibble q is the code q - 8.
struct Group {
  alignas(32) int8_t codes[kGroupColumns];
  float d[2], m[2];
};

inline void set_scale(Group &group, float d, float m = 0) {
  group.d[0] = group.d[1] = d;
  group.m[0] = group.m[1] = m;
}

// float32 [32]: a product and a sum, each rounded, as `paceline.model.ggml` has them.
inline void values_of(const Group &group, float *values) {
  for (int i = 0; i < kGroupColumns; ++i) values[i] = float(group.codes[i]) * group.d[i / 16] + group.m[i / 16];
}

}  // namespace paceline
