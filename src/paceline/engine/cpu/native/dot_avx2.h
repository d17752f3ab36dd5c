// Integer products with AVX2, 16 rows as two registers. Interface: dot.h.
//
// `vpmaddubsw` multiplies unsigned by signed bytes and adds neighbours to int16. Codes of 4 bits are below 16, so all eight
// such products of a group fit, 8 * 2 * 15 * 127 = 30480, and are widened once. Codes of 8 bits take their magnitude for
// the unsigned side and give their sign to the activation; 2 * 128 * 127 fits once and is widened at once.
#pragma once

namespace paceline {

constexpr int kTile = 4, kWideTile = 4;  // tokens whose 8 sums leave registers for codes and products

struct IntRows {
  __m256i low, high;
};

struct Rows {
  __m256 low, high;
};

inline Rows zero_rows() { return {_mm256_setzero_ps(), _mm256_setzero_ps()}; }
inline Rows load_rows(const float *from) { return {_mm256_loadu_ps(from), _mm256_loadu_ps(from + 8)}; }
inline Rows load_float16_rows(const uint8_t *from) {
  const __m128i *halves = reinterpret_cast<const __m128i *>(from);
  return {_mm256_cvtph_ps(_mm_loadu_si128(halves)), _mm256_cvtph_ps(_mm_loadu_si128(halves + 1))};
}
inline void store_rows(float *to, Rows a) {
  _mm256_storeu_ps(to, a.low);
  _mm256_storeu_ps(to + 8, a.high);
}
inline Rows to_float(IntRows a) { return {_mm256_cvtepi32_ps(a.low), _mm256_cvtepi32_ps(a.high)}; }
inline Rows times(Rows a, float b) {
  const __m256 all = _mm256_set1_ps(b);
  return {_mm256_mul_ps(a.low, all), _mm256_mul_ps(a.high, all)};
}
inline Rows multiply_add(Rows a, Rows b, Rows c) {
  return {_mm256_fmadd_ps(a.low, b.low, c.low), _mm256_fmadd_ps(a.high, b.high, c.high)};
}
inline Rows multiply_add(Rows a, float b, Rows c) {
  const __m256 all = _mm256_set1_ps(b);
  return {_mm256_fmadd_ps(a.low, all, c.low), _mm256_fmadd_ps(a.high, all, c.high)};
}

// Codes of columns 4 j .. 4 j + 3 of all rows, one in a byte.
template <PlFormat F>
inline IntRows load_codes(const uint8_t *group, int j) {
  const __m256i *from = reinterpret_cast<const __m256i *>(group) + (code_bits(F) == 8 ? j : j % 4) * 2;
  IntRows codes = {_mm256_loadu_si256(from), _mm256_loadu_si256(from + 1)};
  if (code_bits(F) == 8) return codes;
  if (j >= 4) codes = {_mm256_srli_epi16(codes.low, 4), _mm256_srli_epi16(codes.high, 4)};
  const __m256i nibble = _mm256_set1_epi8(15);
  return {_mm256_and_si256(codes.low, nibble), _mm256_and_si256(codes.high, nibble)};
}

// Otherwise compilers make a tree of a chain of sums, whose leaves do not fit into registers.
inline void keep_order(IntRows &a) { asm("" : "+x"(a.low), "+x"(a.high)); }

// Products of columns 4 j .. 4 j + 3: int16 [8 row][2] for codes of 4 bits, else int32 [8 row].
template <PlFormat F>
inline __m256i product(__m256i codes, __m256i magnitudes, __m256i in) {
  if (code_bits(F) == 4) return _mm256_maddubs_epi16(codes, in);
  const __m256i pairs = _mm256_maddubs_epi16(magnitudes, _mm256_sign_epi8(in, codes));
  return _mm256_madd_epi16(pairs, _mm256_set1_epi16(1));
}

template <PlFormat F>
inline __m256i sum(__m256i a, __m256i b) {
  return code_bits(F) == 4 ? _mm256_add_epi16(a, b) : _mm256_add_epi32(a, b);
}

template <PlFormat F, int N>
inline void dots(const uint8_t *group, int half, const ActivationGroup *const *in, IntRows (&out)[N]) {
  constexpr int steps = 8 / scales_per_group(F);
  PACELINE_UNROLL
  for (int i = 0; i < steps; i++) {
    const int j = half * steps + i;
    const IntRows q = load_codes<F>(group, j);
    const IntRows magnitudes = {_mm256_abs_epi8(q.low), _mm256_abs_epi8(q.high)};
    PACELINE_UNROLL
    for (int n = 0; n < N; n++) {
      const __m256i a = _mm256_set1_epi32(load_as<int32_t>(in[n]->codes + 4 * j));
      const IntRows products = {product<F>(q.low, magnitudes.low, a), product<F>(q.high, magnitudes.high, a)};
      if (i == 0) {
        out[n] = products;
      } else {
        out[n] = {sum<F>(out[n].low, products.low), sum<F>(out[n].high, products.high)};
        keep_order(out[n]);
      }
    }
  }
  if (code_bits(F) == 8) return;
  const __m256i ones = _mm256_set1_epi16(1);
  PACELINE_UNROLL
  for (int n = 0; n < N; n++) {
    out[n] = {_mm256_madd_epi16(out[n].low, ones), _mm256_madd_epi16(out[n].high, ones)};
    if (is_offset(F)) {
      const __m256i offset = _mm256_set1_epi32(in[n]->offset);
      out[n] = {_mm256_add_epi32(out[n].low, offset), _mm256_add_epi32(out[n].high, offset)};
    }
  }
}

}  // namespace paceline
