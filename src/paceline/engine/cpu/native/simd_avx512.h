// AVX-512 F, BW, VL and DQ. Interface: simd.h.
#pragma once

namespace paceline {

constexpr int kLanes = 16;

struct Vf {
  __m512 v;
};

static inline __mmask16 first_lanes(int n) { return static_cast<__mmask16>((1u << n) - 1); }

static inline Vf zero() { return {_mm512_setzero_ps()}; }
static inline Vf broadcast(float x) { return {_mm512_set1_ps(x)}; }
static inline Vf load(const float *p) { return {_mm512_loadu_ps(p)}; }
static inline Vf load(const float *p, int n) { return {_mm512_maskz_loadu_ps(first_lanes(n), p)}; }
static inline void store(float *p, Vf a) { _mm512_storeu_ps(p, a.v); }
static inline void store(float *p, Vf a, int n) { _mm512_mask_storeu_ps(p, first_lanes(n), a.v); }

static inline Vf operator+(Vf a, Vf b) { return {_mm512_add_ps(a.v, b.v)}; }
static inline Vf operator-(Vf a, Vf b) { return {_mm512_sub_ps(a.v, b.v)}; }
static inline Vf operator*(Vf a, Vf b) { return {_mm512_mul_ps(a.v, b.v)}; }
static inline Vf fma(Vf a, Vf b, Vf c) { return {_mm512_fmadd_ps(a.v, b.v, c.v)}; }
static inline Vf max(Vf a, Vf b) { return {_mm512_max_ps(a.v, b.v)}; }
static inline Vf min(Vf a, Vf b) { return {_mm512_min_ps(a.v, b.v)}; }

static inline __m256 low_half(__m512 a) { return _mm512_castps512_ps256(a); }
static inline __m256 high_half(__m512 a) { return _mm512_extractf32x8_ps(a, 1); }

static inline float reduce_add(Vf a) {
  const __m256 half = _mm256_add_ps(low_half(a.v), high_half(a.v));
  const __m128 quarter = _mm_add_ps(_mm256_castps256_ps128(half), _mm256_extractf128_ps(half, 1));
  const __m128 pair = _mm_add_ps(quarter, _mm_movehl_ps(quarter, quarter));
  return _mm_cvtss_f32(_mm_add_ss(pair, _mm_movehdup_ps(pair)));
}

static inline float reduce_max(Vf a) {
  const __m256 half = _mm256_max_ps(low_half(a.v), high_half(a.v));
  const __m128 quarter = _mm_max_ps(_mm256_castps256_ps128(half), _mm256_extractf128_ps(half, 1));
  const __m128 pair = _mm_max_ps(quarter, _mm_movehl_ps(quarter, quarter));
  return _mm_cvtss_f32(_mm_max_ss(pair, _mm_movehdup_ps(pair)));
}

static inline Vf widen_bf16(__m256i x) {
  return {_mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(x), 16))};
}
static inline Vf load_bf16(const uint16_t *p) {
  return widen_bf16(_mm256_loadu_si256(reinterpret_cast<const __m256i *>(p)));
}
static inline Vf load_bf16(const uint16_t *p, int n) {
  return widen_bf16(_mm256_maskz_loadu_epi16(first_lanes(n), p));
}

static inline Vf widen_e4m3(__m128i x) {
  const __m512i mask = _mm512_set1_epi32(static_cast<int32_t>(0x87F00000));
  return {_mm512_castsi512_ps(_mm512_and_si512(_mm512_slli_epi32(_mm512_cvtepi8_epi32(x), 20), mask))};
}
static inline Vf load_e4m3(const uint8_t *p) {
  return widen_e4m3(_mm_loadu_si128(reinterpret_cast<const __m128i *>(p)));
}
static inline Vf load_e4m3(const uint8_t *p, int n) {
  return widen_e4m3(_mm_maskz_loadu_epi8(first_lanes(n), p));
}

struct Vd {
  __m512i v;
};

static inline Vd load_dwords(const void *p) { return {_mm512_loadu_si512(p)}; }
static inline Vd load_dwords(const void *p, int n) { return {_mm512_maskz_loadu_epi32(first_lanes(n), p)}; }
static inline void store_dwords(void *p, Vd a) { _mm512_storeu_si512(p, a.v); }

static inline void transpose(Vd (&rows)[kLanes]) {
  __m512i pairs[16], quads[16], octets[16];
  for (int i = 0; i < 16; i += 2) {
    pairs[i] = _mm512_unpacklo_epi32(rows[i].v, rows[i + 1].v);
    pairs[i + 1] = _mm512_unpackhi_epi32(rows[i].v, rows[i + 1].v);
  }
  for (int i = 0; i < 16; i += 4) {
    quads[i] = _mm512_unpacklo_epi64(pairs[i], pairs[i + 2]);
    quads[i + 1] = _mm512_unpackhi_epi64(pairs[i], pairs[i + 2]);
    quads[i + 2] = _mm512_unpacklo_epi64(pairs[i + 1], pairs[i + 3]);
    quads[i + 3] = _mm512_unpackhi_epi64(pairs[i + 1], pairs[i + 3]);
  }
  // Quarter q of quads[4 r + c] is column 4 q + c of rows 4 r to 4 r + 3.
  for (int c = 0; c < 4; ++c) {
    octets[c] = _mm512_shuffle_i32x4(quads[c], quads[4 + c], 0x88);
    octets[4 + c] = _mm512_shuffle_i32x4(quads[8 + c], quads[12 + c], 0x88);
    octets[8 + c] = _mm512_shuffle_i32x4(quads[c], quads[4 + c], 0xDD);
    octets[12 + c] = _mm512_shuffle_i32x4(quads[8 + c], quads[12 + c], 0xDD);
  }
  for (int c = 0; c < 4; ++c) {
    rows[c].v = _mm512_shuffle_i32x4(octets[c], octets[4 + c], 0x88);
    rows[8 + c].v = _mm512_shuffle_i32x4(octets[c], octets[4 + c], 0xDD);
    rows[4 + c].v = _mm512_shuffle_i32x4(octets[8 + c], octets[12 + c], 0x88);
    rows[12 + c].v = _mm512_shuffle_i32x4(octets[8 + c], octets[12 + c], 0xDD);
  }
}

static inline Vf as_floats(Vd x) { return {_mm512_castsi512_ps(x.v)}; }

static inline Vf masked(__m512i x, uint32_t mask) {
  return {_mm512_castsi512_ps(_mm512_and_si512(x, _mm512_set1_epi32(static_cast<int32_t>(mask))))};
}

static inline Vf load_bf16_apart(const uint8_t *p) { return masked(load_dwords(p - 2).v, 0xFFFF0000u); }
static inline Vf load_e4m3_apart(const uint8_t *p) {
  return masked(_mm512_srai_epi32(load_dwords(p - 3).v, 4), 0x87F00000u);
}

static inline Vf zero_where_less(Vf a, Vf b, Vf c) {
  return {_mm512_maskz_mov_ps(_mm512_cmp_ps_mask(a.v, b.v, _CMP_NLT_UQ), c.v)};
}
static inline Vf times_power_of_two(Vf a, Vf shifted) {
  const __m512i exponent = _mm512_slli_epi32(_mm512_castps_si512(shifted.v), 23);
  return {_mm512_castsi512_ps(_mm512_add_epi32(_mm512_castps_si512(a.v), exponent))};
}

}  // namespace paceline
