// Matrices whose packed values are floats.
#pragma once

#include <algorithm>
#include <cstdint>
#include <cstring>

#include "formats.h"
#include "pack_round.h"
#include "pack_source.h"

namespace paceline {

// Words of 32 bits, of one float or two, that `columns` take in a row.
constexpr int float_words(PlFormat format, int columns) { return format == PL_F32 ? columns : (columns + 1) / 2; }

// Whether a file holds the very floats that are packed.
constexpr bool same_floats(int32_t stored, PlFormat format) {
  return (stored == PL_STORED_F32 && format == PL_F32) || (stored == PL_STORED_F16 && format == PL_F16) ||
         (stored == PL_STORED_BF16 && format == PL_BF16);
}

// Columns [begin, begin + count), at most 32, of a row, as the floats of `format`; rounded to the nearest, ties to even.
template <PlFormat format>
inline void read_words(const Row &row, int begin, int count, uint32_t *words) {
  constexpr size_t kBytes = format == PL_F32 ? 4 : 2;
  if (same_floats(row.stored, format)) {
    std::memcpy(words, row.data + size_t(begin) * kBytes, size_t(count) * kBytes);
    return;
  }
  float values[kGroupColumns];
  read_values(row, begin, count, values);
  if constexpr (format == PL_F32) {
    std::memcpy(words, values, size_t(count) * kBytes);
  } else {
    uint16_t bits[kGroupColumns];
    for (int i = 0; i < count; ++i) {
      bits[i] = format == PL_F16 ? float_to_float16(values[i]) : float_to_bfloat16(values[i]);
    }
    std::memcpy(words, bits, size_t(count) * kBytes);
  }
}

// 16 rows of up to 32 columns. A width that the compiler knows doubles the speed.
template <PlFormat format>
inline void pack_tile(const Row *rows, int count, int begin, int width, uint8_t *target) {
  uint32_t tile[kBlockRows][kGroupColumns];
  if (count < kBlockRows || width < kGroupColumns) std::memset(tile, 0, sizeof tile);
  for (int r = 0; r < count; ++r) read_words<format>(rows[r], begin, width, tile[r]);
  const int words = float_words(format, width);
  for (int word = 0; word < words; ++word) {
    uint32_t column[kBlockRows];
    for (int r = 0; r < kBlockRows; ++r) column[r] = tile[r][word];
    std::memcpy(target + size_t(word) * sizeof column, column, sizeof column);
  }
}

template <PlFormat format>
void pack_floats(const PlSource &source, int rows, int columns, uint8_t *target) {
  for (int block = 0; block < rows; block += kBlockRows) {
    const int count = std::min(kBlockRows, rows - block);
    Row found[kBlockRows];
    for (int r = 0; r < count; ++r) found[r] = row_of(source, block + r, columns);
    for (int begin = 0; begin < columns; begin += kGroupColumns) {
      const int width = std::min(kGroupColumns, columns - begin);
      if (width == kGroupColumns) {
        pack_tile<format>(found, count, begin, kGroupColumns, target);
      } else {
        pack_tile<format>(found, count, begin, width, target);
      }
      target += float_words(format, width) * kBlockRows * 4;
    }
  }
}

}  // namespace paceline
