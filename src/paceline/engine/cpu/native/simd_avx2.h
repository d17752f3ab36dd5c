// AVX2 with FMA and F16C. Interface: simd.h.
#pragma once

namespace paceline {

constexpr int kLanes = 8;

struct Vf {
  __m256 v;
};

static inline __m256i first_lanes(int n) {
  return _mm256_cmpgt_epi32(_mm256_set1_epi32(n), _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7));
}

static inline Vf zero() { return {_mm256_setzero_ps()}; }
static inline Vf broadcast(float x) { return {_mm256_set1_ps(x)}; }
static inline Vf load(const float *p) { return {_mm256_loadu_ps(p)}; }
static inline Vf load(const float *p, int n) { return {_mm256_maskload_ps(p, first_lanes(n))}; }
static inline void store(float *p, Vf a) { _mm256_storeu_ps(p, a.v); }
static inline void store(float *p, Vf a, int n) { _mm256_maskstore_ps(p, first_lanes(n), a.v); }

static inline Vf operator+(Vf a, Vf b) { return {_mm256_add_ps(a.v, b.v)}; }
static inline Vf operator-(Vf a, Vf b) { return {_mm256_sub_ps(a.v, b.v)}; }
static inline Vf operator*(Vf a, Vf b) { return {_mm256_mul_ps(a.v, b.v)}; }
static inline Vf fma(Vf a, Vf b, Vf c) { return {_mm256_fmadd_ps(a.v, b.v, c.v)}; }
static inline Vf max(Vf a, Vf b) { return {_mm256_max_ps(a.v, b.v)}; }
static inline Vf min(Vf a, Vf b) { return {_mm256_min_ps(a.v, b.v)}; }

static inline float reduce_add(Vf a) {
  const __m128 half = _mm_add_ps(_mm256_castps256_ps128(a.v), _mm256_extractf128_ps(a.v, 1));
  const __m128 pair = _mm_add_ps(half, _mm_movehl_ps(half, half));
  return _mm_cvtss_f32(_mm_add_ss(pair, _mm_movehdup_ps(pair)));
}

static inline float reduce_max(Vf a) {
  const __m128 half = _mm_max_ps(_mm256_castps256_ps128(a.v), _mm256_extractf128_ps(a.v, 1));
  const __m128 pair = _mm_max_ps(half, _mm_movehl_ps(half, half));
  return _mm_cvtss_f32(_mm_max_ss(pair, _mm_movehdup_ps(pair)));
}

static inline void reduce_add4(float *out, Vf a, Vf b, Vf c, Vf d) {
  // Blends run on more ports than shuffles do.
  const auto halves = [](__m256 x, __m256 y) {
    return _mm256_add_ps(_mm256_blend_ps(x, y, 0xF0), _mm256_permute2f128_ps(x, y, 0x21));
  };
  const __m256 ac = halves(a.v, c.v), bd = halves(b.v, d.v);
  const __m256 pairs = _mm256_add_ps(_mm256_blend_ps(ac, bd, 0xCC), _mm256_shuffle_ps(ac, bd, 0x4E));
  const __m256 sums = _mm256_add_ps(pairs, _mm256_movehdup_ps(pairs));
  const __m128 low = _mm256_castps256_ps128(sums), high = _mm256_extractf128_ps(sums, 1);
  _mm_storeu_ps(out, _mm_shuffle_ps(low, high, 0x88));
}

static inline void transpose(Vf (&rows)[kLanes]) {
  __m256 pairs[8], quads[8];
  for (int i = 0; i < 8; i += 2) {
    pairs[i] = _mm256_unpacklo_ps(rows[i].v, rows[i + 1].v);
    pairs[i + 1] = _mm256_unpackhi_ps(rows[i].v, rows[i + 1].v);
  }
  for (int i = 0; i < 8; i += 4) {
    quads[i] = _mm256_shuffle_ps(pairs[i], pairs[i + 2], 0x44);
    quads[i + 1] = _mm256_shuffle_ps(pairs[i], pairs[i + 2], 0xEE);
    quads[i + 2] = _mm256_shuffle_ps(pairs[i + 1], pairs[i + 3], 0x44);
    quads[i + 3] = _mm256_shuffle_ps(pairs[i + 1], pairs[i + 3], 0xEE);
  }
  for (int i = 0; i < 4; ++i) {
    rows[i].v = _mm256_permute2f128_ps(quads[i], quads[i + 4], 0x20);
    rows[i + 4].v = _mm256_permute2f128_ps(quads[i], quads[i + 4], 0x31);
  }
}

static inline Vf widen_bf16(__m128i x) {
  return {_mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(x), 16))};
}
static inline Vf load_bf16(const uint16_t *p) {
  return widen_bf16(_mm_loadu_si128(reinterpret_cast<const __m128i *>(p)));
}

static inline Vf load_f16(const uint16_t *p) {
  return {_mm256_cvtph_ps(_mm_loadu_si128(reinterpret_cast<const __m128i *>(p)))};
}

static inline Vf load_e4m3(const uint8_t *p) {
  const __m128i wide = _mm_cvtepi8_epi16(_mm_loadl_epi64(reinterpret_cast<const __m128i *>(p)));
  const __m128i mask = _mm_set1_epi16(static_cast<int16_t>(0xBF80));
  return {_mm256_cvtph_ps(_mm_and_si128(_mm_slli_epi16(wide, 7), mask))};
}

static inline Vf zero_where_less(Vf a, Vf b, Vf c) {
  return {_mm256_and_ps(_mm256_cmp_ps(a.v, b.v, _CMP_NLT_UQ), c.v)};
}
static inline Vf times_power_of_two(Vf a, Vf shifted) {
  const __m256i exponent = _mm256_slli_epi32(_mm256_castps_si256(shifted.v), 23);
  return {_mm256_castsi256_ps(_mm256_add_epi32(_mm256_castps_si256(a.v), exponent))};
}

}  // namespace paceline
