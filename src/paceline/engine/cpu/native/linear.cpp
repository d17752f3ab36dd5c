// Products of packed matrices.
#include "linear.h"

#include "matmul.h"

namespace paceline {

void linear(const PlMatrix &w, int row_begin, int row_end, const Activations &in, const int32_t *row_map, int tokens,
            float *out, ptrdiff_t out_stride) {
  matmul(w, row_begin, row_end, in, row_map, tokens, out, out_stride);
}

}  // namespace paceline
