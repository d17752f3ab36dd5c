// Matrices from the order of files into the order that is multiplied fastest.
//
// What a file has quantised is kept exactly: every packed value is the float32 that `paceline.model` reads. Any matrix can
// also be stored in another precision: rounded to narrower floats, or with codes that quantise.h finds.
#pragma once

#include <cstdint>

#include "formats.h"
#include "pack_floats.h"
#include "pack_groups.h"
#include "pack_source.h"

extern "C" {

// Bytes of a packed matrix.
PL_EXPORT int64_t pl_packed_bytes(int32_t format, int32_t rows, int32_t columns) {
  using namespace paceline;
  return (rows + kBlockRows - 1) / kBlockRows * block_bytes(PlFormat(format), columns);
}

// Packs `rows` rows of `source` as `format` to `target`, which has pl_packed_bytes. Rows that fill up the last block are
// zero. A matrix may be packed in parts that begin at multiples of 16 rows, by several threads.
//
// `columns` is a multiple of 32, of 256 for formats of such blocks; any number where source and format both are floats.
// Returns 0; 1 when codes have to be found for values that are not finite or have no scale in float16; 2 when `format`
// neither holds the source's codes nor is one that codes are made for.
PL_EXPORT int32_t pl_pack(const PlSource *source, int32_t format, int32_t rows, int32_t columns, uint8_t *target) {
  using namespace paceline;
  const PlFormat kind = PlFormat(format);
  if (!is_float(kind) && !same_codes(*source, kind) && !can_quantise(kind)) return 2;
  switch (kind) {
    case PL_F32: return pack_floats<PL_F32>(*source, rows, columns, target), 0;
    case PL_F16: return pack_floats<PL_F16>(*source, rows, columns, target), 0;
    case PL_BF16: return pack_floats<PL_BF16>(*source, rows, columns, target), 0;
    default: return pack_groups(*source, kind, rows, columns, target) ? 0 : 1;
  }
}
}
