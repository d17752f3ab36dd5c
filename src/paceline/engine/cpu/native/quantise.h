// Codes for 32 values that a file has in floating point.
//
// 8 bits lose next to nothing however they are chosen. With 4 bits the choice of d and m matters: mapping the smallest and
// the largest value on codes 0 and 15 spends codes on the tails. The search here begins with two ranges, one of which clips
// the tails, and improves each in turns: the nearest code of every value, then the d and m of least squared error for these
// codes, a linear regression. (A uniform quantiser by Lloyd's method, 1982; GGML's `make_qkx2_quants` takes one turn for
// each of many ranges.) Errors of columns whose inputs are large count more: `paceline.engine.cpu.importance`.
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

// 32 values, how much the error of each counts, and what follows from these alone.
struct Values {
  Quad at[kQuads];
  Quad weight[kQuads];
  Quad weighted[kQuads];
  float least, most;
  float total, sum, squares;  // of the weights, of weight * value, of weight * value^2

  // `importance` [32] is positive, or null where all count alike.
  Values(const float *values, const float *importance) {
    std::memcpy(at, values, sizeof at);
    for (Quad &each : weight) each = quad(1);
    if (importance != nullptr) std::memcpy(weight, importance, sizeof weight);
    Quad low = at[0], high = at[0], weights{}, sums{}, squared{};
    for (int i = 0; i < kQuads; ++i) {
      low = least_of(low, at[i]);
      high = most_of(high, at[i]);
      weighted[i] = weight[i] * at[i];
      weights += weight[i];
      sums += weighted[i];
      squared += weighted[i] * at[i];
    }
    least = most = low[0];
    for (int i = 0; i < 4; ++i) {
      least = low[i] < least ? low[i] : least;
      most = high[i] > most ? high[i] : most;
    }
    total = add_up(weights);
    sum = add_up(sums);
    squares = add_up(squared);
  }

  // Whether all are finite; NaN and infinities reach the sum of squares.
  bool sound() const { return squares < INFINITY; }
};

// Codes q of values x, and weighted sums of products with them.
struct Codes {
  Quad at[kQuads];
  float q, qq, xq;

  // The nearest codes from `least` to `most` for values of code * d + m. A d of zero gives zeros.
  void round(const Values &x, float d, float m, float least, float most) {
    const Quad inverse = quad(d == 0 ? 0 : 1 / d), offset = quad(m), floor = quad(least), ceiling = quad(most);
    Quad sum{}, squares{}, products{};
    for (int i = 0; i < kQuads; ++i) {
      const Quad code = round_whole(least_of(most_of((x.at[i] - offset) * inverse, floor), ceiling));
      const Quad weighted = x.weight[i] * code;
      at[i] = code;
      sum += weighted;
      squares += weighted * code;
      products += x.weighted[i] * code;
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

// Of code * d + m, weighted.
inline float squared_error(const Values &x, const Codes &c, float d, float m) {
  return x.squares + d * d * c.qq + m * m * x.total + 2 * (d * m * c.q - d * c.xq - m * x.sum);
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
      const float spread = x.total * codes.qq - codes.q * codes.q;
      // All codes are the same, or one column counts so much that float32 sees no other.
      if (!(spread > 1e-6f * x.total * codes.qq)) break;
      d = (x.total * codes.xq - x.sum * codes.q) / spread;
      m = (x.sum - d * codes.q) / x.total;
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
inline bool quantise(const float *values, const float *importance, Group &out) {
  const Values x(values, importance);
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
