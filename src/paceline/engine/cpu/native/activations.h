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

// The bits of the largest magnitude of x [32]. Magnitudes compare like their bits, and NaN is the largest then.
inline uint32_t largest_magnitude(const float *x) {
#if defined(__AVX2__)
  const __m256i magnitude = _mm256_set1_epi32(0x7fffffff);
  __m256i most = _mm256_setzero_si256();
  for (int c = 0; c < kGroupColumns; c += 8) {
    const __m256i bits = _mm256_loadu_si256(reinterpret_cast<const __m256i *>(x + c));
    most = _mm256_max_epi32(most, _mm256_and_si256(bits, magnitude));
  }
  __m128i four = _mm_max_epi32(_mm256_castsi256_si128(most), _mm256_extracti128_si256(most, 1));
  four = _mm_max_epi32(four, _mm_shuffle_epi32(four, 0x4e));
  four = _mm_max_epi32(four, _mm_shuffle_epi32(four, 0xb1));
  return uint32_t(_mm_cvtsi128_si32(four));
#else
  uint32_t most = 0;
  for (int c = 0; c < kGroupColumns; c++) {
    const uint32_t bits = bits_of_float(x[c]) & 0x7fffffff;
    most = most > bits ? most : bits;
  }
  return most;
#endif
}

// codes[c] = x[c] * inverse rounded to the nearest integer, ties to even; `halves` are the sums of the first and last 16.
inline void round_codes(const float *x, float inverse, int8_t *codes, int32_t *halves) {
#if defined(__AVX2__)
  __m256i rounded[4];
  for (int i = 0; i < 4; i++) {
    rounded[i] = _mm256_cvtps_epi32(_mm256_mul_ps(_mm256_loadu_ps(x + 8 * i), _mm256_set1_ps(inverse)));
  }
  // Packing works within halves of a register and leaves fours of columns in the order 0 2 4 6 1 3 5 7.
  const __m256i mixed = _mm256_packs_epi16(_mm256_packs_epi32(rounded[0], rounded[1]),
                                           _mm256_packs_epi32(rounded[2], rounded[3]));
  const __m256i all = _mm256_permutevar8x32_epi32(mixed, _mm256_setr_epi32(0, 4, 1, 5, 2, 6, 3, 7));
  _mm256_storeu_si256(reinterpret_cast<__m256i *>(codes), all);
  __m256i sums = _mm256_madd_epi16(_mm256_maddubs_epi16(_mm256_set1_epi8(1), all), _mm256_set1_epi16(1));
  sums = _mm256_add_epi32(sums, _mm256_shuffle_epi32(sums, 0x4e));
  sums = _mm256_add_epi32(sums, _mm256_shuffle_epi32(sums, 0xb1));
  halves[0] = _mm256_extract_epi32(sums, 0);
  halves[1] = _mm256_extract_epi32(sums, 4);
#else
  // Added to a number of this size, others are rounded to integers, which the low bits of the sum hold.
  const float rounder = 12582912.0f;
  for (int half = 0; half < 2; half++) {
    halves[half] = 0;
    for (int c = half * 16; c < half * 16 + 16; c++) {
      codes[c] = int8_t(bits_of_float(x[c] * inverse + rounder) & 0xff);
      halves[half] += codes[c];
    }
  }
#endif
}

// x float32 [32]. Infinities and NaN make the scale NaN or infinite, so that products show them.
inline void quantise_group(const float *x, ActivationGroup *out) {
  const float largest = float_of_bits(largest_magnitude(x));
  // Below this, 127 / largest is no finite number.
  const bool tiny = largest < 1e-36f;
  out->scale = tiny ? 0.0f : largest / 127.0f;
  int32_t halves[2];
  round_codes(x, tiny ? 0.0f : 127.0f / largest, out->codes, halves);
  const int32_t sum = halves[0] + halves[1];
  out->sum = out->scale * float(sum);
  out->halves[0] = int16_t(halves[0]);
  out->halves[1] = int16_t(halves[1]);
  out->offset = -8 * sum;
}

inline Vf quotient(Vf a, Vf b) {
#if defined(__AVX512F__)
  return {_mm512_div_ps(a.v, b.v)};
#elif defined(__AVX2__) && defined(__FMA__) && defined(__F16C__)
  return {_mm256_div_ps(a.v, b.v)};
#else
  return {a.low / b.low, a.high / b.high};
#endif
}

// gate[i] = silu(gate[i]) * up[i], both float32 [count]; silu(x) = x / (1 + exp(-x)).
inline void swiglu(float *gate, const float *up, int count) {
  const auto value = [](Vf x, Vf y) { return quotient(x * y, broadcast(1.0f) + exp(zero() - x)); };
  int i = 0;
  for (; i + kLanes <= count; i += kLanes) store(gate + i, value(load(gate + i), load(up + i)));
  const int left = count - i;
  if (left > 0) store(gate + i, value(load(gate + i, left), load(up + i, left)), left);
}

// out[i] = x[i] * weight[i], all float32 [count]. Returns the sum of x[i]^2. RMSNorm (Zhang & Sennrich 2019) needs both; the
// factor that the sum gives multiplies the finished products.
inline float weigh(const float *x, const float *weight, int count, float *out) {
  Vf squares = zero();
  int i = 0;
  for (; i + kLanes <= count; i += kLanes) {
    const Vf v = load(x + i);
    squares = fma(v, v, squares);
    store(out + i, v * load(weight + i));
  }
  const int left = count - i;
  if (left > 0) {
    const Vf v = load(x + i, left);
    squares = fma(v, v, squares);
    store(out + i, v * load(weight + i, left), left);
  }
  return reduce_add(squares);
}

}  // namespace paceline
