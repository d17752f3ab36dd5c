// Pairs of columns of a block of floats as vectors, for one level each.
#pragma once

#include "formats.h"
#include "simd.h"

namespace paceline {

constexpr int kVectors = kBlockRows / kLanes;

// Bytes of two columns of 16 rows.
constexpr int pair_bytes(PlFormat format) { return kBlockRows * 2 * (format == PL_F32 ? 4 : 2); }

// Rows [first, first + kLanes) of the even and the odd column of a pair, exactly.
template <PlFormat F>
inline void load_pair(const uint8_t *pair, int first, Vf *even, Vf *odd) {
  if (F == PL_F32) {
    const float *columns = reinterpret_cast<const float *>(pair);
    *even = load(columns + first);
    *odd = load(columns + kBlockRows + first);
    return;
  }
  const uint8_t *from = pair + first * 4;
#if defined(__AVX512F__)
  const __m512i both = _mm512_loadu_si512(from);
  if (F == PL_BF16) {
    *even = {_mm512_castsi512_ps(_mm512_slli_epi32(both, 16))};
    *odd = {_mm512_castsi512_ps(_mm512_and_si512(both, _mm512_set1_epi32(int32_t(0xffff0000))))};
  } else {
    *even = {_mm512_cvtph_ps(_mm512_cvtepi32_epi16(both))};
    *odd = {_mm512_cvtph_ps(_mm512_cvtepi32_epi16(_mm512_srli_epi32(both, 16)))};
  }
#elif defined(__AVX2__) && defined(__FMA__) && defined(__F16C__)
  const __m256i both = _mm256_loadu_si256(reinterpret_cast<const __m256i *>(from));
  if (F == PL_BF16) {
    *even = {_mm256_castsi256_ps(_mm256_slli_epi32(both, 16))};
    *odd = {_mm256_castsi256_ps(_mm256_and_si256(both, _mm256_set1_epi32(int32_t(0xffff0000))))};
  } else {
    // Even halves before odd ones, first in each half of the register, then in all of it.
    const __m256i apart = _mm256_shuffle_epi8(both, _mm256_setr_epi8(0, 1, 4, 5, 8, 9, 12, 13, 2, 3, 6, 7, 10, 11, 14, 15,
                                                                     0, 1, 4, 5, 8, 9, 12, 13, 2, 3, 6, 7, 10, 11, 14, 15));
    const __m256i sorted = _mm256_permute4x64_epi64(apart, 0xd8);
    *even = {_mm256_cvtph_ps(_mm256_castsi256_si128(sorted))};
    *odd = {_mm256_cvtph_ps(_mm256_extracti128_si256(sorted, 1))};
  }
#else
  uint32_t both[kLanes];
  float values[2][kLanes];
  std::memcpy(both, from, sizeof both);
  for (int i = 0; i < kLanes; i++) {
    if (F == PL_BF16) {
      values[0][i] = float_of_bits(both[i] << 16);
      values[1][i] = float_of_bits(both[i] & 0xffff0000);
    } else {
      values[0][i] = float16_to_float(uint16_t(both[i]));
      values[1][i] = float16_to_float(uint16_t(both[i] >> 16));
    }
  }
  *even = load(values[0]);
  *odd = load(values[1]);
#endif
}

}  // namespace paceline
