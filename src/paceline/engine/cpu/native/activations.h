// What matrices multiply: rows of activations, in groups of 32 columns of int8, or as float32 for matrices of floats.
//
// A group's scale is its largest magnitude / 127, so that 8 bits cost about 0.3% of perplexity where one scale for a row
// costs 2.9%. Groups keep together what a product reads of them: it walks through one array instead of four.
#pragma once

#include <cstdint>

#include "formats.h"
#include "simd.h"

namespace paceline {

// 32 columns of a row: x[c] = codes[c] * scale.
struct ActivationGroup {
  int8_t codes[kGroupColumns];  // -127..127
  float scale;
  float sum;          // scale * (sum of codes), which minima multiply
  int16_t halves[2];  // sums of codes 0..15 and 16..31, for formats with a minimum for each
  int32_t offset;     // -8 * (sum of codes), which makes q of an offset format q - 8
};
static_assert(sizeof(ActivationGroup) == 48, "groups lie without gaps");

// The rows that a product reads. Formats of integer codes read `groups`, those of floats `values`; the other may be null.
struct Activations {
  int columns;
  const ActivationGroup *groups;  // [rows][columns / 32]
  const float *values;            // [rows][columns]
  const float *factors;           // [rows] what products with a row are multiplied by; null for 1
};

// x float32 [32]. Infinities and NaN make the scale NaN or infinite, so that products show them.
inline void quantise_group(const float *x, ActivationGroup *out) {
  // Magnitudes compare like their bits, and NaN is the largest then.
  uint32_t most = 0;
  for (int c = 0; c < kGroupColumns; c++) {
    const uint32_t magnitude = bits_of_float(x[c]) & 0x7fffffff;
    most = most > magnitude ? most : magnitude;
  }
  const float largest = float_of_bits(most);
  // Below this, 127 / largest is no finite number.
  const bool tiny = largest < 1e-36f;
  const float scale = tiny ? 0.0f : largest / 127.0f, inverse = tiny ? 0.0f : 127.0f / largest;
  // Added to a number of this size, others are rounded to integers (ties to even), which the low bits of the sum hold.
  const float rounder = 12582912.0f;
  int32_t sums[2] = {0, 0};
  for (int half = 0; half < 2; half++) {
    for (int c = 0; c < 16; c++) {
      const int32_t code = int8_t(bits_of_float(x[half * 16 + c] * inverse + rounder) & 0xff);
      out->codes[half * 16 + c] = int8_t(code);
      sums[half] += code;
    }
  }
  out->scale = scale;
  out->sum = scale * float(sums[0] + sums[1]);
  out->halves[0] = int16_t(sums[0]);
  out->halves[1] = int16_t(sums[1]);
  out->offset = -8 * (sums[0] + sums[1]);
}

// gate[i] = silu(gate[i]) * up[i], both float32 [count]; silu(x) = x / (1 + exp(-x)).
inline void swiglu(float *gate, const float *up, int count) {
  for (int begin = 0; begin < count; begin += kLanes) {
    const int lanes = count - begin < kLanes ? count - begin : kLanes;
    float x[kLanes] = {}, y[kLanes] = {}, powers[kLanes];
    std::memcpy(x, gate + begin, size_t(lanes) * sizeof(float));
    std::memcpy(y, up + begin, size_t(lanes) * sizeof(float));
    store(powers, exp(zero() - load(x)));
    for (int i = 0; i < kLanes; i++) x[i] = x[i] * y[i] / (1.0f + powers[i]);
    std::memcpy(gate + begin, x, size_t(lanes) * sizeof(float));
  }
}

// out[i] = x[i] * weight[i], all float32 [count]. Returns the sum of x[i]^2. RMSNorm (Zhang & Sennrich 2019) needs both; the
// factor that the sum gives multiplies the finished products.
inline float weigh(const float *x, const float *weight, int count, float *out) {
  Vf squares = zero();
  for (int i = 0; i < count; i += kLanes) {
    const int lanes = count - i < kLanes ? count - i : kLanes;
    if (lanes == kLanes) {
      const Vf v = load(x + i);
      squares = fma(v, v, squares);
      store(out + i, v * load(weight + i));
    } else {
      const Vf v = load(x + i, lanes);
      squares = fma(v, v, squares);
      store(out + i, v * load(weight + i, lanes), lanes);
    }
  }
  return reduce_add(squares);
}

}  // namespace paceline
