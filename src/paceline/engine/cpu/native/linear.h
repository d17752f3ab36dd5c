// `matmul`, compiled apart from the step: the kernels of all formats take as long to compile as everything else.
#pragma once

#include <cstddef>
#include <cstdint>

#include "abi.h"
#include "activations.h"

namespace paceline {

// As `matmul` of matmul.h.
void linear(const PlMatrix &w, int row_begin, int row_end, const Activations &in, const int32_t *row_map, int tokens,
            float *out, ptrdiff_t out_stride);

}  // namespace paceline
