// Integer products with AVX-512 VNNI, 16 rows as one register. Interface: dot.h.
//
// `vpdpbusd` multiplies unsigned by signed bytes and adds four neighbours to int32. Codes of 8 bits become unsigned by
// adding 128, which sums that begin with -128 * (sum of activations) take back.
#pragma once

namespace paceline {

#if defined(PACELINE_SIMDE)
constexpr int kTile = 2, kWideTile = 4;  // compilers take minutes over emulated kernels
#else
constexpr int kTile = 4, kWideTile = 8;
#endif

typedef __m512i IntRows;
typedef __m512 Rows;

inline Rows zero_rows() { return _mm512_setzero_ps(); }
inline Rows load_rows(const float *from) { return _mm512_loadu_ps(from); }
inline Rows load_float16_rows(const uint8_t *from) {
  return _mm512_cvtph_ps(_mm256_loadu_si256(reinterpret_cast<const __m256i *>(from)));
}
inline void store_rows(float *to, Rows a) { _mm512_storeu_ps(to, a); }
inline Rows to_float(IntRows a) { return _mm512_cvtepi32_ps(a); }
inline Rows times(Rows a, float b) { return _mm512_mul_ps(a, _mm512_set1_ps(b)); }
inline Rows multiply_add(Rows a, Rows b, Rows c) { return _mm512_fmadd_ps(a, b, c); }
inline Rows multiply_add(Rows a, float b, Rows c) { return _mm512_fmadd_ps(a, _mm512_set1_ps(b), c); }

// Codes of columns 4 j .. 4 j + 3 of all rows, one in a byte and not negative.
template <PlFormat F>
inline IntRows load_codes(const uint8_t *group, int j) {
  const IntRows codes = _mm512_loadu_si512(group + (code_bits(F) == 8 ? j : j % 4) * 64);
  if (code_bits(F) == 8) return _mm512_xor_si512(codes, _mm512_set1_epi8(int8_t(-128)));
  return _mm512_and_si512(j < 4 ? codes : _mm512_srli_epi16(codes, 4), _mm512_set1_epi8(15));
}

// What sums begin with.
template <PlFormat F>
inline int32_t bias_of_codes(const ActivationGroup &in, int half) {
  if (scales_per_group(F) == 2) return -128 * in.halves[half];
  if (code_bits(F) == 8) return 16 * in.offset;
  return is_offset(F) ? in.offset : 0;
}

template <PlFormat F, int N>
inline void dots(const uint8_t *group, int half, const ActivationGroup *const *in, IntRows (&out)[N]) {
  constexpr int steps = 8 / scales_per_group(F);
  PACELINE_UNROLL
  for (int n = 0; n < N; n++) out[n] = _mm512_set1_epi32(bias_of_codes<F>(*in[n], half));
  PACELINE_UNROLL
  for (int i = 0; i < steps; i++) {
    const int j = half * steps + i;
    const IntRows q = load_codes<F>(group, j);
    PACELINE_UNROLL
    for (int n = 0; n < N; n++) {
      const IntRows a = _mm512_set1_epi32(load_as<int32_t>(in[n]->codes + 4 * j));
      out[n] = _mm512_dpbusd_epi32(out[n], q, a);
    }
  }
}

}  // namespace paceline
