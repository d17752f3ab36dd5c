// Vectors of float64 as wide as the level's registers, in the vector extensions of GCC and Clang.
#pragma once

#include <cstdint>
#include <cstring>

namespace paceline {

#if defined(__AVX512F__)
constexpr int kDoubleLanes = 8;
#elif defined(__AVX__)
constexpr int kDoubleLanes = 4;
#else
constexpr int kDoubleLanes = 2;
#endif

typedef double Doubles __attribute__((vector_size(8 * kDoubleLanes)));
typedef int64_t Longs __attribute__((vector_size(8 * kDoubleLanes)));
typedef float HalfFloats __attribute__((vector_size(4 * kDoubleLanes)));

static inline Doubles load_doubles(const double *p) {
  Doubles a;
  std::memcpy(&a, p, sizeof a);
  return a;
}
static inline Doubles load_doubles(const float *p) {
  HalfFloats a;
  std::memcpy(&a, p, sizeof a);
  return __builtin_convertvector(a, Doubles);
}
static inline void store_doubles(double *p, Doubles a) { std::memcpy(p, &a, sizeof a); }

// a where the mask is set, else 0.
static inline Doubles where(Longs mask, Doubles a) { return Doubles(Longs(a) & mask); }
static inline Doubles max(Doubles a, Doubles b) {
  return Doubles((Longs(a) & (a > b)) | (Longs(b) & ~(a > b)));
}

// exp(x) of N vectors for -708 <= x <= 0, where results are normal numbers; relative error below 1e-13.
//
// Together, as each operation waits for the one before: four at once take two thirds of the time.
template <int N>
static inline void exp(Doubles (&x)[N]) {
  constexpr double kLog2e = 1.4426950408889634;
  constexpr double kLn2High = 6.93147180369123816490e-01, kLn2Low = 1.90821492927058770002e-10;
  // Beside 1.5 * 2^52 a float64 has no room for a fraction: the sum is an integer, in the lowest bits.
  constexpr double kInteger = 6755399441055744.0;
  // exp(r) = 1 + r + r^2 q(r), with q interpolated at Chebyshev's points of |r| <= ln(2) / 2. The highest
  // power comes first.
  constexpr double kQ[] = {2.7625145471129046e-06, 2.486788609198866e-05, 0.00019841208676433427,
                           0.0013888839086130306,  0.0083333333537594142, 0.041666666786356665,
                           0.16666666666648247,    0.49999999999955091};
  Doubles power[N], r[N], q[N];
  for (int j = 0; j < N; j++) {
    const Doubles shifted = x[j] * kLog2e + kInteger;
    const Doubles n = shifted - kInteger;
    r[j] = (x[j] - n * kLn2High) - n * kLn2Low;
    power[j] = Doubles((Longs(shifted) + 1023) << 52);
    q[j] = Doubles{} + kQ[0];
  }
  for (int i = 1; i < 8; i++) {
    for (int j = 0; j < N; j++) q[j] = q[j] * r[j] + kQ[i];
  }
  for (int j = 0; j < N; j++) x[j] = (r[j] * r[j] * q[j] + r[j] + 1.0) * power[j];
}

}  // namespace paceline
