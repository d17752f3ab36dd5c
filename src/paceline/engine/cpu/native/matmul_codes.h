// Products with matrices of integer codes: exact sums of integers in each group, added up group by group in float32.
//
// For group g, in this order: sum = fma(float(dot), d * scale, sum), then sum = fma(m, in.sum, sum) for formats with minima;
// formats with two scales do both for columns 0..15, then both for 16..31.
#pragma once

#include "matmul_product.h"

namespace paceline {

// The scales and minima of a group, or of a half of it. F says everything but whether they are float16: that is known at run
// time, for it saves a third of the kernels.
template <PlFormat F>
struct Scales {
  Rows d, m;

  Scales(const uint8_t *group, bool float16, int half) {
    const uint8_t *scales = group + code_bytes(F);
    d = get(scales, float16, half);
    const int bytes = kBlockRows * scales_per_group(F) * (float16 ? 2 : 4);
    m = has_minima(F) ? get(scales + bytes, float16, half) : zero_rows();
  }

 private:
  static Rows get(const uint8_t *numbers, bool float16, int half) {
    if (float16) return load_float16_rows(numbers + half * kBlockRows * 2);
    return load_rows(reinterpret_cast<const float *>(numbers) + half * kBlockRows);
  }
};

// The sums of one token, with `dots` of a group or a half added.
template <PlFormat F>
inline Rows add_scaled(Rows sums, IntRows dots, const Scales<F> &scales, int half, const ActivationGroup &in) {
  sums = multiply_add(to_float(dots), times(scales.d, in.scale), sums);
  if (!has_minima(F)) return sums;
  const float sum = scales_per_group(F) == 2 ? in.scale * float(in.halves[half]) : in.sum;
  return multiply_add(scales.m, sum, sums);
}

// The sums of N tokens for a block of 16 rows. Codes are unpacked anew for each tile: the block stays in L1, and keeping what
// was unpacked costs more than it saves. Compilers take several times as long when tiles are not functions of their own.
template <PlFormat F, int N>
__attribute__((noinline)) void multiply_block(const uint8_t *block, PlFormat format, int groups,
                                              const ActivationGroup *const *rows, float *out) {
  const bool float16 = has_float16_scales(format);
  const int bytes = group_bytes(format);
  const ActivationGroup *begin[N];
  Rows sums[N];
  PACELINE_UNROLL
  for (int n = 0; n < N; n++) begin[n] = rows[n], sums[n] = zero_rows();
  for (int g = 0; g < groups; g++, block += bytes) {
    prefetch<group_bytes(F)>(block + kAhead);
    const ActivationGroup *in[N];
    PACELINE_UNROLL
    for (int n = 0; n < N; n++) in[n] = begin[n] + g;
    for (int half = 0; half < scales_per_group(F); half++) {
      const Scales<F> scales(block, float16, half);
      IntRows products[N];
      dots<F, N>(block, half, in, products);
      PACELINE_UNROLL
      for (int n = 0; n < N; n++) sums[n] = add_scaled(sums[n], products[n], scales, half, *in[n]);
    }
  }
  PACELINE_UNROLL
  for (int n = 0; n < N; n++) store_rows(out + n * kBlockRows, sums[n]);
}

// F is the format, or one that differs by the type of its scales alone.
template <PlFormat F>
void multiply_codes(const Product &product) {
  const PlFormat format = PlFormat(product.w.format);
  const int groups = product.w.columns / kGroupColumns;
  for (int row = product.row_begin; row < product.row_end; row += kBlockRows) {
    const uint8_t *block = block_of(product.w, row);
    for_tiles<kTile, kWideTile>(product.tokens, [&](int first, auto size) {
      constexpr int N = size;
      const ActivationGroup *rows[N];
      for (int n = 0; n < N; n++) rows[n] = product.in.groups + ptrdiff_t{product.row_of(first + n)} * groups;
      float sums[N * kBlockRows];
      multiply_block<F, N>(block, format, groups, rows, sums);
      for (int n = 0; n < N; n++) product.write(first + n, row, load_rows(sums + n * kBlockRows));
    });
  }
}

}  // namespace paceline
