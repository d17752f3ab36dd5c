// float32 to narrower floats: the nearest, ties to even; too large is infinite, NaN stays NaN.
#pragma once

#include <cstdint>

#include "formats.h"

namespace paceline {

inline uint16_t float_to_bfloat16(float value) {
  const uint32_t bits = bits_of_float(value);
  // Rounding would carry the mantissa of some NaNs into the sign.
  if ((bits & 0x7fffffff) > 0x7f800000) return uint16_t(bits >> 16 | 0x40);
  return uint16_t((bits + 0x7fff + (bits >> 16 & 1)) >> 16);
}

inline uint16_t float_to_float16(float value) {
  const uint32_t bits = bits_of_float(value), magnitude = bits & 0x7fffffff, sign = bits >> 16 & 0x8000;
  if (magnitude >= 0x47800000) return uint16_t(sign | (magnitude > 0x7f800000 ? 0x7e00 : 0x7c00));
  if (magnitude < 0x38800000) {
    // Beside 0.5 a float32 has steps of 2^-24, as subnormal float16 have.
    return uint16_t(sign | (bits_of_float(float_of_bits(magnitude) + 0.5f) - bits_of_float(0.5f)));
  }
  // The exponent's bias goes from 127 to 15.
  return uint16_t(sign | (magnitude - (112u << 23) + 0xfff + (magnitude >> 13 & 1)) >> 13);
}

}  // namespace paceline
