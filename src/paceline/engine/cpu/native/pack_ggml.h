// The block formats of GGML, read 32 columns at a time. `paceline.model.ggml` draws the blocks; names are the same here.
//
// A reader gets the first byte of a row and the number of a group in it.
#pragma once

#include <cstdint>
#include <cstring>

#include "formats.h"
#include "pack_group.h"

namespace paceline {

inline float float16_at(const uint8_t *p) {
  uint16_t bits;
  std::memcpy(&bits, p, sizeof bits);
  return float16_to_float(bits);
}

// Both halves of 16 bytes, less `zero`.
inline void nibbles(const uint8_t *packed, int zero, int8_t *codes) {
  for (int i = 0; i < 16; ++i) {
    codes[i] = int8_t((packed[i] & 15) - zero);
    codes[16 + i] = int8_t((packed[i] >> 4) - zero);
  }
}

// The same with a fifth bit, bit i of `high` for column i.
inline void five_bits(const uint8_t *packed, const uint8_t *high, int zero, int8_t *codes) {
  for (int i = 0; i < 16; ++i) {
    codes[i] = int8_t(((packed[i] & 15) | (high[i / 8] >> i % 8 & 1) << 4) - zero);
    codes[16 + i] = int8_t(((packed[i] >> 4) | (high[2 + i / 8] >> i % 8 & 1) << 4) - zero);
  }
}

inline void read_q4_0(const uint8_t *row, int g, Group &out) {
  const uint8_t *block = row + g * 18;
  nibbles(block + 2, 8, out.codes);
  set_scale(out, float16_at(block));
}

inline void read_q4_1(const uint8_t *row, int g, Group &out) {
  const uint8_t *block = row + g * 20;
  nibbles(block + 4, 0, out.codes);
  set_scale(out, float16_at(block), float16_at(block + 2));
}

inline void read_q5_0(const uint8_t *row, int g, Group &out) {
  const uint8_t *block = row + g * 22;
  five_bits(block + 6, block + 2, 16, out.codes);
  set_scale(out, float16_at(block));
}

inline void read_q5_1(const uint8_t *row, int g, Group &out) {
  const uint8_t *block = row + g * 24;
  five_bits(block + 8, block + 4, 0, out.codes);
  set_scale(out, float16_at(block), float16_at(block + 2));
}

inline void read_q8_0(const uint8_t *row, int g, Group &out) {
  const uint8_t *block = row + g * 34;
  std::memcpy(out.codes, block + 2, kGroupColumns);
  set_scale(out, float16_at(block));
}

// e2m1 times two is whole, so that d is half of the block's e8m0.
inline void read_mxfp4(const uint8_t *row, int g, Group &out) {
  static constexpr int8_t kTwice[16] = {0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12};
  const uint8_t *block = row + g * 17;
  nibbles(block + 1, 0, out.codes);
  for (int8_t &code : out.codes) code = kTwice[code];
  // 2^(e - 128): below 2^-126 float32 is subnormal, and e = 255 means NaN.
  const uint32_t e = block[0];
  const uint32_t bits = e == 255 ? 0x7fc00000 : e > 1 ? (e - 1) << 23 : 0x200000u << e;
  float d;
  std::memcpy(&d, &bits, sizeof d);
  set_scale(out, d);
}

inline void read_q2_k(const uint8_t *row, int g, Group &out) {
  const uint8_t *block = row + g / 8 * 84, *packed = block + 16 + g % 8 / 4 * 32;
  g %= 8;
  for (int i = 0; i < kGroupColumns; ++i) out.codes[i] = int8_t(packed[i] >> g % 4 * 2 & 3);
  const float d = float16_at(block + 80), m = float16_at(block + 82);
  for (int half = 0; half < 2; ++half) {
    const int both = block[2 * g + half];
    out.d[half] = d * float(both & 15);
    out.m[half] = -(m * float(both >> 4));
  }
}

inline void read_q3_k(const uint8_t *row, int g, Group &out) {
  const uint8_t *block = row + g / 8 * 110, *packed = block + 32 + g % 8 / 4 * 32, *s = block + 96;
  g %= 8;
  for (int i = 0; i < kGroupColumns; ++i) {
    out.codes[i] = int8_t(((packed[i] >> g % 4 * 2 & 3) | (block[i] >> g & 1) << 2) - 4);
  }
  const float d = float16_at(block + 108);
  for (int half = 0; half < 2; ++half) {
    const int n = 2 * g + half;
    const int low = n < 8 ? s[n] & 15 : s[n - 8] >> 4, high = s[8 + n % 4] >> n / 4 * 2 & 3;
    out.d[half] = d * float((low | high << 4) - 32);
    out.m[half] = 0;
  }
}

// The six-bit scale and minimum of group g of Q4_K and Q5_K.
inline void scale_and_minimum(const uint8_t *block, int g, Group &out) {
  const uint8_t *first_s = block + 4, *first_n = block + 8, *low = block + 12;
  int s, n;
  if (g < 4) {
    s = first_s[g] & 63;
    n = first_n[g] & 63;
  } else {
    s = (low[g - 4] & 15) | first_s[g - 4] >> 6 << 4;
    n = low[g - 4] >> 4 | first_n[g - 4] >> 6 << 4;
  }
  set_scale(out, float16_at(block) * float(s), -(float16_at(block + 2) * float(n)));
}

inline void read_q4_k(const uint8_t *row, int g, Group &out) {
  const uint8_t *block = row + g / 8 * 144, *packed = block + 16 + g % 8 / 2 * 32;
  for (int i = 0; i < kGroupColumns; ++i) out.codes[i] = int8_t(packed[i] >> g % 2 * 4 & 15);
  scale_and_minimum(block, g % 8, out);
}

inline void read_q5_k(const uint8_t *row, int g, Group &out) {
  const uint8_t *block = row + g / 8 * 176, *packed = block + 48 + g % 8 / 2 * 32, *fifth = block + 16;
  for (int i = 0; i < kGroupColumns; ++i) {
    out.codes[i] = int8_t((packed[i] >> g % 2 * 4 & 15) | (fifth[i] >> g % 8 & 1) << 4);
  }
  scale_and_minimum(block, g % 8, out);
}

inline void read_q6_k(const uint8_t *row, int g, Group &out) {
  const uint8_t *block = row + g / 8 * 210;
  g %= 8;
  const uint8_t *low = block + g / 4 * 64 + g % 2 * 32, *high = block + 128 + g / 4 * 32;
  for (int i = 0; i < kGroupColumns; ++i) {
    out.codes[i] = int8_t(((low[i] >> g % 4 / 2 * 4 & 15) | (high[i] >> g % 4 * 2 & 3) << 4) - 32);
  }
  const float d = float16_at(block + 208);
  for (int half = 0; half < 2; ++half) {
    out.d[half] = d * float(int8_t(block[192 + 2 * g + half]));
    out.m[half] = 0;
  }
}

inline void read_q8_k(const uint8_t *row, int g, Group &out) {
  const uint8_t *block = row + g / 8 * 292;
  std::memcpy(out.codes, block + 4 + g % 8 * kGroupColumns, kGroupColumns);
  float d;
  std::memcpy(&d, block, sizeof d);
  set_scale(out, d);
}

}  // namespace paceline
