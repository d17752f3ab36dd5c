// The packed formats of abi.h: their sizes, 16-bit floats, and rows read back as float32.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>

#include "abi.h"

namespace paceline {

constexpr int kBlockRows = 16;
constexpr int kGroupColumns = 32;

constexpr bool is_float(PlFormat format) { return format >= PL_BF16; }

constexpr int code_bits(PlFormat format) { return format <= PL_U4_F32 ? 4 : 8; }

// Codes are q, but q - 8 is meant.
constexpr bool is_offset(PlFormat format) { return format == PL_U4_F16 || format == PL_U4_F32; }

constexpr bool has_float16_scales(PlFormat format) {
  return format == PL_U4_F16_MIN || format == PL_U4_F16 || format == PL_I8_F16;
}

constexpr bool has_minima(PlFormat format) {
  return format == PL_U4_F16_MIN || format == PL_U4_F32_MIN || format == PL_I8_F32_MIN ||
         format == PL_I8_F32_MIN_16;
}

// Scales of a row in a group of 32 columns.
constexpr int scales_per_group(PlFormat format) { return format == PL_I8_F32_MIN_16 ? 2 : 1; }

constexpr int code_bytes(PlFormat format) { return kBlockRows * kGroupColumns * code_bits(format) / 8; }

constexpr int scale_bytes(PlFormat format) {
  return kBlockRows * scales_per_group(format) * (has_float16_scales(format) ? 2 : 4);
}

constexpr int group_bytes(PlFormat format) {
  return code_bytes(format) + scale_bytes(format) * (has_minima(format) ? 2 : 1);
}

// Bytes of 16 rows of `columns`.
constexpr int64_t block_bytes(PlFormat format, int64_t columns) {
  if (format == PL_F32) return columns * kBlockRows * 4;
  if (is_float(format)) return (columns + 1) / 2 * kBlockRows * 4;
  return columns / kGroupColumns * group_bytes(format);
}

inline const uint8_t *block_of(const PlMatrix &matrix, int row) {
  return matrix.data + row / kBlockRows * block_bytes(PlFormat(matrix.format), matrix.columns);
}

inline float float_of_bits(uint32_t bits) {
  float value;
  std::memcpy(&value, &bits, 4);
  return value;
}

inline uint32_t bits_of_float(float value) {
  uint32_t bits;
  std::memcpy(&bits, &value, 4);
  return bits;
}

inline float bfloat16_to_float(uint16_t half) { return float_of_bits(uint32_t(half) << 16); }

// Infinities and NaN included. Without branches, so that loops over it become vectors.
inline float float16_to_float(uint16_t half) {
  const uint32_t magnitude = half & 0x7fff, sign = uint32_t(half & 0x8000) << 16;
  // The exponent's bias goes from 15 to 127 by a product, which makes subnormal numbers normal as well.
  const uint32_t finite = bits_of_float(float_of_bits(magnitude << 13) * 0x1p112f);
  const uint32_t infinite = magnitude >= 0x7c00 ? 0x7f800000 : 0;
  return float_of_bits(sign | finite | infinite);
}

template <typename T>
T load_as(const void *from) {
  T value;
  std::memcpy(&value, from, sizeof(T));
  return value;
}

// The values of a row, [columns] float32: what every product with it means.
inline void dequantise_row(const PlMatrix &matrix, int row, float *out) {
  const PlFormat format = PlFormat(matrix.format);
  const uint8_t *block = block_of(matrix, row);
  const int r = row % kBlockRows;
  if (format == PL_F32) {
    for (int k = 0; k < matrix.columns; k++) out[k] = load_as<float>(block + (k * kBlockRows + r) * 4);
    return;
  }
  if (is_float(format)) {
    for (int k = 0; k < matrix.columns; k++) {
      const uint16_t half = load_as<uint16_t>(block + (k / 2 * kBlockRows + r) * 4 + k % 2 * 2);
      out[k] = format == PL_BF16 ? bfloat16_to_float(half) : float16_to_float(half);
    }
    return;
  }
  const int halves = scales_per_group(format);
  auto number = [&](const uint8_t *numbers, int index) {
    return has_float16_scales(format) ? float16_to_float(load_as<uint16_t>(numbers + index * 2))
                                      : load_as<float>(numbers + index * 4);
  };
  for (int k = 0; k < matrix.columns; k += kGroupColumns, block += group_bytes(format)) {
    const uint8_t *scales = block + code_bytes(format);
    for (int c = 0; c < kGroupColumns; c++) {
      int code;
      if (code_bits(format) == 4) {
        const uint8_t both = block[(c % 16 / 4 * kBlockRows + r) * 4 + c % 4];
        code = (c < 16 ? both & 15 : both >> 4) - (is_offset(format) ? 8 : 0);
      } else {
        code = int8_t(block[(c / 4 * kBlockRows + r) * 4 + c % 4]);
      }
      const int index = c * halves / kGroupColumns * kBlockRows + r;
      const float product = float(code) * number(scales, index);
      out[k + c] = has_minima(format) ? product + number(scales + scale_bytes(format), index) : product;
    }
  }
}

}  // namespace paceline
