// Codes and scales for 32 values.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>

#include "formats.h"
#include "pack_group.h"
#include "pack_round.h"

namespace paceline {

inline float largest_magnitude(const float *values) {
  float largest = 0;
  for (int i = 0; i < kGroupColumns; ++i) largest = std::max(largest, std::fabs(values[i]));
  return largest;
}

inline bool all_finite(const float *values) {
  // What is not finite makes NaN of zero.
  float sum = 0;
  for (int i = 0; i < kGroupColumns; ++i) sum += values[i] * 0;
  return sum == 0;
}

inline int8_t round_code(float x, float least, float most) {
  return int8_t(std::nearbyint(std::min(std::max(x, least), most)));
}

inline void quantise_i8(const float *values, Group &out) {
  float d = float16_to_float(float_to_float16(largest_magnitude(values) / 127));
  const float inverse = d > 0 ? 1 / d : 0;
  for (int i = 0; i < kGroupColumns; ++i) out.codes[i] = round_code(values[i] * inverse, -127, 127);
  set_scale(out, d);
}

inline void quantise_u4_min(const float *values, Group &out) {
  const auto [least, most] = std::minmax_element(values, values + kGroupColumns);
  const float m = float16_to_float(float_to_float16(*least));
  const float d = float16_to_float(float_to_float16((*most - *least) / 15));
  const float inverse = d > 0 ? 1 / d : 0;
  for (int i = 0; i < kGroupColumns; ++i) out.codes[i] = round_code((values[i] - m) * inverse, 0, 15);
  set_scale(out, d, m);
}

inline bool quantise(PlFormat format, const float *values, Group &out) {
  if (!all_finite(values)) return false;
  if (format == PL_I8_F16) quantise_i8(values, out);
  else quantise_u4_min(values, out);
  return true;
}

}  // namespace paceline
