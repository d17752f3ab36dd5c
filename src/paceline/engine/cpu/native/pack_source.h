// Rows of a matrix as they lie in a file.
#pragma once

#include <cstdint>
#include <cstring>

#include "formats.h"
#include "pack_ggml.h"
#include "pack_group.h"
#include "pack_int4.h"

// A block format of GGML, the words and scales of `paceline.model.quantized.int4`, or floats.
enum PlStored : int32_t {
  PL_STORED_Q4_0 = 0,
  PL_STORED_Q4_1 = 1,
  PL_STORED_Q5_0 = 2,
  PL_STORED_Q5_1 = 3,
  PL_STORED_Q8_0 = 4,
  PL_STORED_MXFP4 = 5,
  PL_STORED_Q2_K = 6,
  PL_STORED_Q3_K = 7,
  PL_STORED_Q4_K = 8,
  PL_STORED_Q5_K = 9,
  PL_STORED_Q6_K = 10,
  PL_STORED_Q8_K = 11,
  PL_STORED_INT4 = 12,
  PL_STORED_F32 = 13,
  PL_STORED_F16 = 14,
  PL_STORED_BF16 = 15,
};

struct PlSource {
  int32_t stored;           // PlStored
  int32_t group;            // INT4: columns that share a scale, a multiple of 32
  const uint8_t *data;      // the first row
  int64_t stride;           // bytes from a row to the next
  const int64_t *order;     // the rows to take, in order, or null for all from the first on
  const float *scales;      // INT4: [rows][columns / group]; null otherwise
  const uint8_t *zeros;     // INT4: as many zero points, or null where all are 8
  const float *importance;  // [columns] what errors count where codes are searched, positive; null: all alike
};

namespace paceline {

inline bool is_stored_float(int32_t stored) { return stored >= PL_STORED_F32; }

struct Row {
  int32_t stored;
  const uint8_t *data;
  int group;
  const float *scales;
  const uint8_t *zeros;
};

inline Row row_of(const PlSource &source, int r, int columns) {
  const int64_t row = source.order == nullptr ? r : source.order[r];
  Row found{source.stored, source.data + row * source.stride, source.group, nullptr, nullptr};
  if (source.stored == PL_STORED_INT4) {
    const int64_t first = row * (columns / source.group);
    found.scales = source.scales + first;
    if (source.zeros != nullptr) found.zeros = source.zeros + first;
  }
  return found;
}

// Columns [32 g, 32 g + 32) of a row that is quantised.
inline void read_group(const Row &row, int g, Group &out) {
  switch (row.stored) {
    case PL_STORED_Q4_0: return read_q4_0(row.data, g, out);
    case PL_STORED_Q4_1: return read_q4_1(row.data, g, out);
    case PL_STORED_Q5_0: return read_q5_0(row.data, g, out);
    case PL_STORED_Q5_1: return read_q5_1(row.data, g, out);
    case PL_STORED_Q8_0: return read_q8_0(row.data, g, out);
    case PL_STORED_MXFP4: return read_mxfp4(row.data, g, out);
    case PL_STORED_Q2_K: return read_q2_k(row.data, g, out);
    case PL_STORED_Q3_K: return read_q3_k(row.data, g, out);
    case PL_STORED_Q4_K: return read_q4_k(row.data, g, out);
    case PL_STORED_Q5_K: return read_q5_k(row.data, g, out);
    case PL_STORED_Q6_K: return read_q6_k(row.data, g, out);
    case PL_STORED_Q8_K: return read_q8_k(row.data, g, out);
    default: return read_int4(row.data, g, row.group, row.scales, row.zeros, out);
  }
}

// Columns [begin, begin + count) of a row of whatever kind; those of a quantised one are a group. float32 [count]
inline void read_values(const Row &row, int begin, int count, float *values) {
  if (!is_stored_float(row.stored)) {
    Group group;
    read_group(row, begin / kGroupColumns, group);
    return values_of(group, values);
  }
  if (row.stored == PL_STORED_F32) {
    std::memcpy(values, row.data + size_t(begin) * 4, size_t(count) * 4);
    return;
  }
  uint16_t bits[kGroupColumns];
  std::memcpy(bits, row.data + size_t(begin) * 2, size_t(count) * 2);
  if (row.stored == PL_STORED_F16) {
    for (int i = 0; i < count; ++i) values[i] = float16_to_float(bits[i]);
  } else {
    for (int i = 0; i < count; ++i) values[i] = bfloat16_to_float(bits[i]);
  }
}

}  // namespace paceline
