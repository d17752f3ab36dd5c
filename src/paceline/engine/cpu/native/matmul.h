// Products of packed matrices with rows of activations.
//
// A row's result depends on nothing but this row: every (row of activations, row of the matrix) sees the same operations in
// the same order, whatever the number of rows, their place and how the work is cut. Levels differ by rounding.
#pragma once

#include <cassert>
#include <cstddef>
#include <cstdint>

#include "activations.h"
#include "formats.h"
#include "matmul_codes.h"
#include "matmul_floats.h"

namespace paceline {

// out[t][r - row_begin] = factor[t] * (row r of `w` times activations[t]) + bias[r], for r in [row_begin, row_end).
//
// activations[t] is row `row_map[t]` of `in`, or row t without a map; t in [0, tokens). `row_begin` is a multiple of 16.
// Nothing is written behind `row_end`.
inline void matmul(const PlMatrix &w, int row_begin, int row_end, const Activations &in, const int32_t *row_map, int tokens,
                   float *out, ptrdiff_t out_stride) {
  const Product product{w, row_begin, row_end, in, row_map, tokens, out, out_stride};
  switch (w.format) {
    case PL_U4_F16_MIN:
    case PL_U4_F32_MIN: return multiply_codes<PL_U4_F32_MIN>(product);
    case PL_U4_F16:
    case PL_U4_F32: return multiply_codes<PL_U4_F32>(product);
    case PL_I8_F16: return multiply_codes<PL_I8_F16>(product);
    case PL_I8_F32_MIN: return multiply_codes<PL_I8_F32_MIN>(product);
    case PL_I8_F32_MIN_16: return multiply_codes<PL_I8_F32_MIN_16>(product);
    case PL_BF16: return multiply_floats<PL_BF16>(product);
    case PL_F16: return multiply_floats<PL_F16>(product);
    case PL_F32: return multiply_floats<PL_F32>(product);
    default: assert(!"no such format");
  }
}

}  // namespace paceline
