// Codes for 32 values that a file has in floating point.
//
// 8 bits lose next to nothing however they are chosen. With 4 bits the choice of d and m matters: mapping the smallest and
// the largest value on codes 0 and 15 spends codes on the tails. The search here begins with two ranges, one of which clips
// the tails, and improves each in turns: the nearest code of every value, then the d and m of least squared error for these
// codes, a linear regression. (A uniform quantiser by Lloyd's method, 1982; GGML's `make_qkx2_quants` takes one turn for
// each of many ranges.)
#pragma once

#include <cmath>
#include <cstdint>
#include <cstring>
#include <initializer_list>

#include "formats.h"
#include "pack_group.h"
#include "pack_round.h"

namespace paceline {

inline float round_to_float16(float x) { return float16_to_float(float_to_float16(x)); }

// As wide as SSE2 and NEON are: every level rounds in the same order, and finds the same codes.
typedef float Quad __attribute__((vector_size(16)));
constexpr int kQuads = kGroupColumns / 4;

inline Quad quad(float x) { return Quad{x, x, x, x}; }
inline Quad least_of(Quad a, Quad b) { return a < b ? a : b; }
inline Quad most_of(Quad a, Quad b) { return a > b ? a : b; }
inline float add_up(Quad a) { return (a[0] + a[2]) + (a[1] + a[3]); }

// To the nearest, ties to even, for magnitudes below 2^22: beside 1.5 * 2^23 a float32 has no room for a fraction.
inline Quad round_whole(Quad x) {
  const Quad whole = quad(0x1.8p23f);
  return x + whole - whole;
}

// 32 values, and what follows from them alone.
struct Values {
  Quad at[kQuads];
  float least, most;
  float sum, squares;

  explicit Values(const float *values) {
    std::memcpy(at, values, sizeof at);
    Quad low = at[0], high = at[0], total = at[0], squared = at[0] * at[0];
    for (int i = 1; i < kQuads; ++i) {
      low = least_of(low, at[i]);
      high = most_of(high, at[i]);
      total += at[i];
      squared += at[i] * at[i];
    }
    least = most = low[0];
    for (int i = 0; i < 4; ++i) {
      least = low[i] < least ? low[i] : least;
      most = high[i] > most ? high[i] : most;
    }
    sum = add_up(total);
    squares = add_up(squared);
  }

  // Whether all are finite; NaN and infinities reach the sum of squares.
  bool sound() const { return squares < INFINITY; }
};

// Codes q of values x, and sums of products with them.
struct Codes {
  Quad at[kQuads];
  float q, qq, xq;

  // The nearest codes from `least` to `most` for values of code * d + m. A d of zero gives zeros.
  void round(const Values &x, float d, float m, float least, float most) {
    const Quad inverse = quad(d == 0 ? 0 : 1 / d), offset = quad(m), floor = quad(least), ceiling = quad(most);
    Quad sum{}, squares{}, products{};
    for (int i = 0; i < kQuads; ++i) {
      const Quad code = round_whole(least_of(most_of((x.at[i] - offset) * inverse, floor), ceiling));
      at[i] = code;
      sum += code;
      squares += code * code;
      products += x.at[i] * code;
    }
    q = add_up(sum);
    qq = add_up(squares);
    xq = add_up(products);
  }

  void copy_to(int8_t *codes) const {
    float all[kGroupColumns];
    std::memcpy(all, at, sizeof all);
    for (int i = 0; i < kGroupColumns; ++i) codes[i] = int8_t(int(all[i]));
  }
};

// Of code * d + m.
inline float squared_error(const Values &x, const Codes &c, float d, float m) {
  return x.squares + d * d * c.qq + m * m * kGroupColumns + 2 * (d * m * c.q - d * c.xq - m * x.sum);
}

inline void quantise_i8(const Values &x, Group &out) {
  const float d = round_to_float16((x.most > -x.least ? x.most : -x.least) / 127);
  Codes codes;
  codes.round(x, d, 0, -127, 127);
  codes.copy_to(out.codes);
  set_scale(out, d);
}

inline void quantise_u4_min(const Values &x, Group &out) {
  const float middle = (x.least + x.most) / 2;
  float best = INFINITY;
  // Steps that the range is cut into: with more than 15 the tails are clipped.
  for (const float steps : {15.0f, 17.0f}) {
    float d = (x.most - x.least) / steps, m = middle - d * 7.5f;
    Codes codes;
    for (int turn = 0; turn < 2; ++turn) {
      codes.round(x, d, m, 0, 15);
      const float spread = kGroupColumns * codes.qq - codes.q * codes.q;
      if (!(spread > 0)) break;
      d = (kGroupColumns * codes.xq - x.sum * codes.q) / spread;
      m = (x.sum - d * codes.q) / kGroupColumns;
    }
    d = round_to_float16(d);
    m = round_to_float16(m);
    codes.round(x, d, m, 0, 15);
    const float error = squared_error(x, codes, d, m);
    if (error < best) {
      best = error;
      codes.copy_to(out.codes);
      set_scale(out, d, m);
    }
  }
}

constexpr bool can_quantise(PlFormat format) { return format == PL_U4_F16_MIN || format == PL_I8_F16; }

// False for values that are not finite, or so large that float16 does not hold their scale.
template <PlFormat format>
inline bool quantise(const float *values, Group &out) {
  const Values x(values);
  set_scale(out, NAN);
  if (!x.sound()) return false;
  if constexpr (format == PL_I8_F16) {
    quantise_i8(x, out);
  } else {
    quantise_u4_min(x, out);
  }
  return out.d[0] < INFINITY && out.m[0] < INFINITY;
}

}  // namespace paceline
