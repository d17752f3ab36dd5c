// Matrices whose packed values are floats.
#pragma once

#include <algorithm>
#include <cstdint>
#include <cstring>

#include "formats.h"
#include "pack_round.h"
#include "pack_source.h"

namespace paceline {

constexpr int float_bytes(PlFormat format) { return format == PL_F32 ? 4 : 2; }

// Words of 32 bits, of one float or two, that `columns` take in a row.
constexpr int float_words(PlFormat format, int columns) {
  return format == PL_F32 ? columns : (columns + 1) / 2;
}

// Whether a file holds the very floats that are packed.
constexpr bool same_floats(int32_t stored, PlFormat format) {
  return (stored == PL_STORED_F32 && format == PL_F32) || (stored == PL_STORED_F16 && format == PL_F16) ||
         (stored == PL_STORED_BF16 && format == PL_BF16);
}

// Columns [begin, begin + count), at most 32, of a row, as the floats of `format`; rounded to the nearest, ties to even.
inline void read_words(const Row &row, PlFormat format, int begin, int count, uint32_t *words) {
  if (same_floats(row.stored, format)) {
    const size_t bytes = size_t(float_bytes(format));
    std::memcpy(words, row.data + size_t(begin) * bytes, size_t(count) * bytes);
    return;
  }
  float values[kGroupColumns];
  read_values(row, begin, count, values);
  if (format == PL_F32) {
    std::memcpy(words, values, size_t(count) * 4);
    return;
  }
  uint16_t bits[kGroupColumns];
  for (int i = 0; i < count; ++i) bits[i] = format == PL_F16 ? float_to_float16(values[i]) : float_to_bfloat16(values[i]);
  std::memcpy(words, bits, size_t(count) * 2);
}

inline void pack_floats(const PlSource &source, PlFormat format, int rows, int columns, uint8_t *target) {
  for (int block = 0; block < rows; block += kBlockRows) {
    const int count = std::min(kBlockRows, rows - block);
    Row found[kBlockRows];
    for (int r = 0; r < count; ++r) found[r] = row_of(source, block + r, columns);
    for (int begin = 0; begin < columns; begin += kGroupColumns) {
      const int width = std::min(kGroupColumns, columns - begin), words = float_words(format, width);
      uint32_t tile[kBlockRows][kGroupColumns];
      if (count < kBlockRows || width < kGroupColumns) std::memset(tile, 0, sizeof tile);
      for (int r = 0; r < count; ++r) read_words(found[r], format, begin, width, tile[r]);
      for (int word = 0; word < words; ++word) {
        for (int r = 0; r < kBlockRows; ++r, target += 4) std::memcpy(target, &tile[r][word], 4);
      }
    }
  }
}

}  // namespace paceline
