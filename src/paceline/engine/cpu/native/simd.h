// Vectors of float in the registers of one level, the only types that kernels of heads are written in.
//
// The compiler's macros say the level: AVX-512 (16 lanes), AVX2 with FMA and F16C (8 lanes), or neither (8
// lanes of GCC's vector extensions, which also compile for Arm). With PACELINE_SIMDE the AVX-512 code
// compiles everywhere.
//
//   Vf, kLanes                  a vector and its number of lanes
//   zero, broadcast             the same in all lanes
//   load, store                 (p, n) touches the first n lanes alone; the others read as 0
//   + - *, fma(a, b, c)         a * b + c, rounded once where the level has it, the same throughout a level
//   max, min                    the second operand where one is NaN
//   reduce_add, reduce_max      lanes l and l + kLanes / 2 first, then these by halves again, down to one
//   exp                         relative error below 2e-7; 0 below -87.3, exp(88) above 88, NaN for NaN
//   load_bf16, load_e4m3        widened; e4m3 divided by kE4m3Unit, and its NaN read as 480
//   load_bf16_apart, load_e4m3_apart
//                               the same, of values that lie 4 bytes apart from p on. Loads do the shifts
//                               that they can: up to 3 bytes before p are read, and do not matter
//   Vd                          kLanes times 32 bits that hold narrower values
//   load_dwords, store_dwords   as for floats
//   as_floats, transpose        the bits as floats; the transpose of kLanes vectors, in place
#pragma once

#include <cstdint>
#include <cstring>
#include <type_traits>

#if defined(PACELINE_SIMDE)
#include "simde.h"
#elif defined(__AVX2__)
#include <immintrin.h>
#endif

namespace paceline {

// The bits of e4m3 moved to where float32 has them are its value by this: the biases of the exponents differ
// by 120. What e4m3 has below its smallest normal thus becomes subnormal. Zen 3 multiplies that at full speed;
// where it is slow, it is still rare: with the scales of a calibrated cache less than one value in a thousand.
constexpr float kE4m3Unit = 0x1p120f;

}  // namespace paceline

#if defined(__AVX512F__)
#include "simd_avx512.h"
#elif defined(__AVX2__) && defined(__FMA__) && defined(__F16C__)
#include "simd_avx2.h"
#else
#include "simd_plain.h"
#endif

namespace paceline {

#if !defined(__AVX512F__)
// The first n of p, in a row of their own that may be read to its end.
template <typename T>
struct Padded {
  T at[kLanes] = {};
  Padded(const T *p, int n) { std::memcpy(at, p, static_cast<size_t>(n) * sizeof(T)); }
};

static inline Vf load_bf16(const uint16_t *p, int n) { return load_bf16(Padded<uint16_t>(p, n).at); }
static inline Vf load_e4m3(const uint8_t *p, int n) { return load_e4m3(Padded<uint8_t>(p, n).at); }
#endif

// Calls `run` with 0, ..., kCount - 1 as constants, so that vectors in an array indexed by them stay in
// registers.
template <int kCount, typename Run>
static inline void unrolled(const Run &run) {
  if constexpr (kCount > 0) {
    unrolled<kCount - 1>(run);
    run(std::integral_constant<int, kCount - 1>());
  }
}

static inline Vf &operator+=(Vf &a, Vf b) { return a = a + b; }

// exp(x) = 2^n exp(r), |r| <= ln(2) / 2, with the polynomial of Cephes' expf.
static inline Vf exp(Vf x) {
  const Vf least = broadcast(-87.3365f);
  // Added to a number of this size, others are rounded to integers, which the low bits of the sum then hold.
  const Vf rounder = broadcast(12582912.0f);
  const Vf clamped = min(broadcast(88.0f), max(least, x));
  const Vf shifted = fma(clamped, broadcast(1.44269504f), rounder);
  const Vf n = shifted - rounder;
  const Vf r = fma(n, broadcast(2.12194440e-4f), fma(n, broadcast(-0.693359375f), clamped));
  Vf p = broadcast(1.9875691500e-4f);
  p = fma(p, r, broadcast(1.3981999507e-3f));
  p = fma(p, r, broadcast(8.3334519073e-3f));
  p = fma(p, r, broadcast(4.1665795894e-2f));
  p = fma(p, r, broadcast(1.6666665459e-1f));
  p = fma(p, r, broadcast(5.0000001201e-1f));
  p = fma(p, r * r, r + broadcast(1.0f));
  return zero_where_less(x, least, times_power_of_two(p, shifted));
}

}  // namespace paceline
