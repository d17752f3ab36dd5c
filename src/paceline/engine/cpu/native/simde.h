// AVX-512 on machines without it: Debian's libsimde-dev (0.7.4), and what it lacks, lane by lane.
//
// For tests alone. SIMDe's own intrinsics take their AVX2 forms when the compiler may use AVX2.
#pragma once

#if !defined(__clang__)
// GCC 12 fails in this pass ("in gsi_insert_seq_nodes_after") on arrays of one of SIMDe's registers.
#pragma GCC optimize("no-tree-sra")
#endif

#include <cmath>
#include <cstdint>
#include <cstring>

#define SIMDE_ENABLE_NATIVE_ALIASES
#include <simde/x86/avx512.h>
#include <simde/x86/f16c.h>
#include <simde/x86/fma.h>

#pragma GCC diagnostic ignored "-Wignored-attributes"
#pragma GCC diagnostic ignored "-Wpsabi"

namespace paceline {
namespace simde {

// The lanes of a register in an array.
template <typename T, typename Register>
struct Lanes {
  static constexpr int kCount = static_cast<int>(sizeof(Register) / sizeof(T));
  T at[kCount] = {};

  Lanes() = default;
  explicit Lanes(Register a) { std::memcpy(at, &a, sizeof at); }
  Register packed() const {
    Register a;
    std::memcpy(&a, at, sizeof a);
    return a;
  }
};

// Every lane converted by the language.
template <typename To, typename ToRegister, typename From, typename FromRegister>
static inline ToRegister convert(FromRegister a) {
  const Lanes<From, FromRegister> from(a);
  Lanes<To, ToRegister> to;
  for (int i = 0; i < to.kCount; ++i) to.at[i] = static_cast<To>(from.at[i]);
  return to.packed();
}

template <typename T, typename Register>
static inline Register load_masked(uint64_t mask, const void *p) {
  Lanes<T, Register> to;
  for (int i = 0; i < to.kCount; ++i) {
    if (mask >> i & 1) std::memcpy(&to.at[i], static_cast<const T *>(p) + i, sizeof(T));
  }
  return to.packed();
}

template <typename T, typename Register>
static inline void store_masked(void *p, uint64_t mask, Register a) {
  const Lanes<T, Register> from(a);
  for (int i = 0; i < from.kCount; ++i) {
    if (mask >> i & 1) std::memcpy(static_cast<T *>(p) + i, &from.at[i], sizeof(T));
  }
}

static inline simde__m512i cvtps_epi32(simde__m512 a) {
  const Lanes<float, simde__m512> from(a);
  Lanes<int32_t, simde__m512i> to;
  for (int i = 0; i < to.kCount; ++i) to.at[i] = static_cast<int32_t>(std::nearbyint(from.at[i]));
  return to.packed();
}

static inline int32_t reduce_add_epi32(simde__m512i a) {
  const Lanes<uint32_t, simde__m512i> from(a);
  uint32_t sum = 0;
  for (uint32_t lane : from.at) sum += lane;
  return static_cast<int32_t>(sum);
}

static inline simde__m512 cvtph_ps(simde__m256i a) {
  Lanes<simde__m128i, simde__m256i> from(a);
  Lanes<simde__m256, simde__m512> to;
  for (int i = 0; i < 2; ++i) to.at[i] = simde_mm256_cvtph_ps(from.at[i]);
  return to.packed();
}

// Quarters of a chosen by the low half of kWhich, of b by its high half.
template <int kWhich>
static inline simde__m512i shuffle_i32x4(simde__m512i a, simde__m512i b) {
  const Lanes<simde__m128i, simde__m512i> low(a), high(b);
  Lanes<simde__m128i, simde__m512i> to;
  to.at[0] = low.at[kWhich & 3];
  to.at[1] = low.at[kWhich >> 2 & 3];
  to.at[2] = high.at[kWhich >> 4 & 3];
  to.at[3] = high.at[kWhich >> 6 & 3];
  return to.packed();
}

static inline simde__m512i srai_epi32(simde__m512i a, unsigned bits) {
  Lanes<int32_t, simde__m512i> lanes(a);
  for (int32_t &lane : lanes.at) lane >>= bits;
  return lanes.packed();
}

template <int kHalf>
static inline simde__m256 extractf32x8_ps(simde__m512 a) {
  return Lanes<simde__m256, simde__m512>(a).at[kHalf];
}

}  // namespace simde
}  // namespace paceline

#undef _mm512_cvtph_ps
#define _mm512_cvtph_ps(a) ::paceline::simde::cvtph_ps(a)
#undef _mm512_cvtps_epi32
#define _mm512_cvtps_epi32(a) ::paceline::simde::cvtps_epi32(a)
#undef _mm512_cvtepi32_ps
#define _mm512_cvtepi32_ps(a) (::paceline::simde::convert<float, simde__m512, int32_t, simde__m512i>(a))
#undef _mm512_cvtepi32_epi8
#define _mm512_cvtepi32_epi8(a) (::paceline::simde::convert<int8_t, simde__m128i, int32_t, simde__m512i>(a))
#undef _mm512_cvtepi32_epi16
#define _mm512_cvtepi32_epi16(a) (::paceline::simde::convert<int16_t, simde__m256i, int32_t, simde__m512i>(a))
#undef _mm512_cvtepu16_epi32
#define _mm512_cvtepu16_epi32(a) \
  (::paceline::simde::convert<uint32_t, simde__m512i, uint16_t, simde__m256i>(a))
#undef _mm512_cvtepi8_epi32
#define _mm512_cvtepi8_epi32(a) (::paceline::simde::convert<int32_t, simde__m512i, int8_t, simde__m128i>(a))
#undef _mm512_cvtepu8_epi32
#define _mm512_cvtepu8_epi32(a) (::paceline::simde::convert<uint32_t, simde__m512i, uint8_t, simde__m128i>(a))
#undef _mm512_reduce_add_epi32
#define _mm512_reduce_add_epi32(a) ::paceline::simde::reduce_add_epi32(a)
#undef _mm512_extractf32x8_ps
#define _mm512_extractf32x8_ps(a, half) ::paceline::simde::extractf32x8_ps<half>(a)
#undef _mm512_shuffle_i32x4
#define _mm512_shuffle_i32x4(a, b, which) ::paceline::simde::shuffle_i32x4<which>(a, b)
#undef _mm512_srai_epi32
#define _mm512_srai_epi32(a, bits) ::paceline::simde::srai_epi32(a, bits)
#undef _mm512_maskz_loadu_epi32
#define _mm512_maskz_loadu_epi32(mask, p) (::paceline::simde::load_masked<uint32_t, simde__m512i>(mask, p))
#undef _mm512_maskz_loadu_ps
#define _mm512_maskz_loadu_ps(mask, p) (::paceline::simde::load_masked<float, simde__m512>(mask, p))
#undef _mm512_mask_storeu_ps
#define _mm512_mask_storeu_ps(p, mask, a) (::paceline::simde::store_masked<float, simde__m512>(p, mask, a))
#undef _mm256_maskz_loadu_epi16
#define _mm256_maskz_loadu_epi16(mask, p) (::paceline::simde::load_masked<uint16_t, simde__m256i>(mask, p))
#undef _mm_maskz_loadu_epi8
#define _mm_maskz_loadu_epi8(mask, p) (::paceline::simde::load_masked<uint8_t, simde__m128i>(mask, p))

// Code asks the compiler's macros what there is; from here on there is all that the avx512 level has.
#define __AVX512F__ 1
#define __AVX512BW__ 1
#define __AVX512VL__ 1
#define __AVX512DQ__ 1
#define __AVX512VNNI__ 1
#define __AVX512BF16__ 1
