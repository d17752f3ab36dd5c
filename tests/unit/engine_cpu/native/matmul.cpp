// The products as C functions.
#include "matmul.h"

using namespace paceline;

extern "C" {

void multiply(const PlMatrix *w, int row_begin, int row_end, const Activations *in, const int32_t *row_map, int tokens,
              float *out, int64_t out_stride) {
  matmul(*w, row_begin, row_end, *in, row_map, tokens, out, out_stride);
}

int64_t bytes_of_block(int32_t format, int64_t columns) { return block_bytes(PlFormat(format), columns); }

void dequantise(const PlMatrix *w, int row, float *out) { dequantise_row(*w, row, out); }

void quantise(const float *x, int groups, ActivationGroup *out) {
  for (int g = 0; g < groups; g++) quantise_group(x + g * kGroupColumns, out + g);
}

void silu_times(float *gate, const float *up, int count) { swiglu(gate, up, count); }

float times_weight(const float *x, const float *weight, int count, float *out) { return weigh(x, weight, count, out); }
}
