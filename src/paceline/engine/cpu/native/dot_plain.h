// Integer products in GCC's vector extensions, which also compile for Arm; 16 rows as four registers. Interface: dot.h.
//
// Bytes are multiplied as int16, even and odd columns apart. Products of codes of 4 bits are added as int16, 16 of at most
// 15 * 127; those of 8 bits are widened after two, 2 * 128 * 127.
#pragma once

namespace paceline {

constexpr int kTile = 2, kWideTile = 2;

typedef int16_t S8 __attribute__((vector_size(16)));

struct IntRows {
  I4 v[4];
};

struct Rows {
  F4 v[4];
};

inline Rows zero_rows() { return {}; }
inline Rows load_rows(const float *from) { return load_as<Rows>(from); }
inline Rows load_float16_rows(const uint8_t *from) {
  Rows out;
  for (int r = 0; r < kBlockRows; r++) out.v[r / 4][r % 4] = float16_to_float(load_as<uint16_t>(from + 2 * r));
  return out;
}
inline void store_rows(float *to, Rows a) { std::memcpy(to, &a, sizeof a); }
inline Rows to_float(IntRows a) {
  Rows out;
  for (int i = 0; i < 4; i++) out.v[i] = __builtin_convertvector(a.v[i], F4);
  return out;
}
inline Rows times(Rows a, float b) {
  for (F4 &v : a.v) v *= b;
  return a;
}
inline Rows multiply_add(Rows a, Rows b, Rows c) {
  for (int i = 0; i < 4; i++) c.v[i] += a.v[i] * b.v[i];
  return c;
}
inline Rows multiply_add(Rows a, float b, Rows c) {
  for (int i = 0; i < 4; i++) c.v[i] += a.v[i] * b;
  return c;
}

// Columns 4 j and 4 j + 2, and 4 j + 1 and 4 j + 3, of four rows.
struct Columns {
  S8 even[4], odd[4];
};

template <PlFormat F>
inline Columns load_codes(const uint8_t *group, int j) {
  Columns out;
  for (int i = 0; i < 4; i++) {
    const S8 bytes = load_as<S8>(group + (code_bits(F) == 8 ? j : j % 4) * 64 + i * 16);
    if (code_bits(F) == 8) {
      out.even[i] = bytes << 8 >> 8;
      out.odd[i] = bytes >> 8;
    } else {
      out.even[i] = (j < 4 ? bytes : bytes >> 4) & 15;
      out.odd[i] = (j < 4 ? bytes >> 8 : bytes >> 12) & 15;
    }
    if (is_offset(F)) out.even[i] -= 8, out.odd[i] -= 8;
  }
  return out;
}

// int16 [4 row][2] to the sums of neighbours.
inline I4 widen(S8 pairs) {
  const I4 wide = load_as<I4>(&pairs);
  return (wide << 16 >> 16) + (wide >> 16);
}

template <PlFormat F, int N>
inline void dots(const uint8_t *group, int half, const ActivationGroup *const *in, IntRows (&out)[N]) {
  constexpr int steps = 8 / scales_per_group(F);
  S8 narrow[N][4] = {};
  for (IntRows &sums : out) sums = {};
  for (int j = half * steps; j < (half + 1) * steps; j++) {
    const Columns q = load_codes<F>(group, j);
    for (int n = 0; n < N; n++) {
      const int32_t four = load_as<int32_t>(in[n]->codes + 4 * j);
      const I4 everywhere = {four, four, four, four};
      const S8 a = load_as<S8>(&everywhere), even = a << 8 >> 8, odd = a >> 8;
      for (int i = 0; i < 4; i++) {
        const S8 products = q.even[i] * even + q.odd[i] * odd;
        if (code_bits(F) == 8) {
          out[n].v[i] += widen(products);
        } else {
          narrow[n][i] += products;
        }
      }
    }
  }
  if (code_bits(F) == 8) return;
  for (int n = 0; n < N; n++) {
    for (int i = 0; i < 4; i++) out[n].v[i] = widen(narrow[n][i]);
  }
}

}  // namespace paceline
