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

static inline Vf widen_bf16(__m128i x) {
  return {_mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(x), 16))};
}
static inline Vf load_bf16(const uint16_t *p) {
  return widen_bf16(_mm_loadu_si128(reinterpret_cast<const __m128i *>(p)));
}

static inline Vf load_e4m3(const uint8_t *p) {
  const __m256i wide = _mm256_cvtepi8_epi32(_mm_loadl_epi64(reinterpret_cast<const __m128i *>(p)));
  const __m256i mask = _mm256_set1_epi32(static_cast<int32_t>(0x87F00000));
  return {_mm256_castsi256_ps(_mm256_and_si256(_mm256_slli_epi32(wide, 20), mask))};
}

struct Vd {
  __m256i v;
};

static inline Vd load_dwords(const void *p) { return {_mm256_loadu_si256(static_cast<const __m256i *>(p))}; }
static inline Vd load_dwords(const void *p, int n) {
  return {_mm256_maskload_epi32(static_cast<const int *>(p), first_lanes(n))};
}
static inline void store_dwords(void *p, Vd a) { _mm256_storeu_si256(static_cast<__m256i *>(p), a.v); }

static inline void transpose(Vd (&rows)[kLanes]) {
  __m256i pairs[8], quads[8];
  for (int i = 0; i < 8; i += 2) {
    pairs[i] = _mm256_unpacklo_epi32(rows[i].v, rows[i + 1].v);
    pairs[i + 1] = _mm256_unpackhi_epi32(rows[i].v, rows[i + 1].v);
  }
  for (int i = 0; i < 8; i += 4) {
    quads[i] = _mm256_unpacklo_epi64(pairs[i], pairs[i + 2]);
    quads[i + 1] = _mm256_unpackhi_epi64(pairs[i], pairs[i + 2]);
    quads[i + 2] = _mm256_unpacklo_epi64(pairs[i + 1], pairs[i + 3]);
    quads[i + 3] = _mm256_unpackhi_epi64(pairs[i + 1], pairs[i + 3]);
  }
  for (int i = 0; i < 4; ++i) {
    rows[i].v = _mm256_permute2x128_si256(quads[i], quads[i + 4], 0x20);
    rows[i + 4].v = _mm256_permute2x128_si256(quads[i], quads[i + 4], 0x31);
  }
}

static inline Vf as_floats(Vd x) { return {_mm256_castsi256_ps(x.v)}; }

// The mask in every lane.
struct alignas(32) Mask {
  uint32_t lanes[8];
  constexpr explicit Mask(uint32_t x) : lanes{x, x, x, x, x, x, x, x} {}
};

static constexpr Mask kBf16Mask{0xFFFF0000u}, kE4m3Mask{0x87F00000u};

// x & mask, with the mask read from memory each time. Left to itself the compiler keeps it in a register, for
// which it moves a sum of attention in and out of memory in every step.
static inline Vf masked(__m256i x, const Mask &mask) {
  __m256i out;
  asm("vpand %2, %1, %0" : "=x"(out) : "x"(x), "m"(mask));
  return {_mm256_castsi256_ps(out)};
}

static inline Vf load_bf16_apart(const uint8_t *p) { return masked(load_dwords(p - 2).v, kBf16Mask); }
static inline Vf load_e4m3_apart(const uint8_t *p) {
  return masked(_mm256_srai_epi32(load_dwords(p - 3).v, 4), kE4m3Mask);
}

static inline Vf zero_where_less(Vf a, Vf b, Vf c) {
  return {_mm256_and_ps(_mm256_cmp_ps(a.v, b.v, _CMP_NLT_UQ), c.v)};
}
static inline Vf times_power_of_two(Vf a, Vf shifted) {
  const __m256i exponent = _mm256_slli_epi32(_mm256_castps_si256(shifted.v), 23);
  return {_mm256_castsi256_ps(_mm256_add_epi32(_mm256_castps_si256(a.v), exponent))};
}

}  // namespace paceline
