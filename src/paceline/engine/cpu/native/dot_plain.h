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
  typedef uint16_t Halves __attribute__((vector_size(8)));
  Rows out;
  for (int i = 0; i < 4; i++) {
    const I4 bits = __builtin_convertvector(load_as<Halves>(from + i * 8), I4);
    // As in float16_to_float.
    const I4 magnitude = (bits & 0x7fff) << 13, sign = (bits & 0x8000) << 16;
    const I4 infinite = (magnitude >= 0x0f800000) & 0x7f800000;
    out.v[i] = floats_of(bits_of(floats_of(magnitude) * 0x1p112f) | sign | infinite);
  }
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

// Two columns of four rows.
struct Columns {
  S8 even, odd;
};

// int8 [4 row][4 column] to columns 0 and 2, and 1 and 3.
inline Columns widen_bytes(S8 bytes) { return {bytes << 8 >> 8, bytes >> 8}; }

// Codes of columns 4 j .. 4 j + 3 of rows 4 r .. 4 r + 3.
template <PlFormat F>
inline Columns load_codes(const uint8_t *group, int j, int r) {
  const S8 bytes = load_as<S8>(group + (code_bits(F) == 8 ? j : j % 4) * 64 + r * 16);
  if (code_bits(F) == 8) return widen_bytes(bytes);
  Columns out = {(j < 4 ? bytes : bytes >> 4) & 15, (j < 4 ? bytes >> 8 : bytes >> 12) & 15};
  if (is_offset(F)) out.even -= 8, out.odd -= 8;
  return out;
}

// int16 [4 row][2] to the sums of neighbours.
inline I4 widen(S8 pairs) {
  const I4 wide = load_as<I4>(&pairs);
  return (wide << 16 >> 16) + (wide >> 16);
}

// Otherwise compilers make a tree of a chain of sums, whose leaves do not fit into registers.
template <typename T>
inline void keep_order(T &a) {
#if defined(__SSE2__)
  asm("" : "+x"(a));
#elif defined(__aarch64__)
  asm("" : "+w"(a));
#else
  (void)a;
#endif
}

template <PlFormat F, int N>
inline void dots(const uint8_t *group, int half, const ActivationGroup *const *in, IntRows (&out)[N]) {
  constexpr int steps = 8 / scales_per_group(F);
  S8 narrow[N][4] = {};
  PACELINE_UNROLL
  for (int n = 0; n < N; n++) out[n] = {};
  PACELINE_UNROLL
  for (int i = 0; i < steps; i++) {
    const int j = half * steps + i;
    Columns a[N];
    PACELINE_UNROLL
    for (int n = 0; n < N; n++) {
      const int32_t four = load_as<int32_t>(in[n]->codes + 4 * j);
      const I4 everywhere = {four, four, four, four};
      a[n] = widen_bytes(load_as<S8>(&everywhere));
    }
    PACELINE_UNROLL
    for (int r = 0; r < 4; r++) {
      const Columns q = load_codes<F>(group, j, r);
      PACELINE_UNROLL
      for (int n = 0; n < N; n++) {
        const S8 products = q.even * a[n].even + q.odd * a[n].odd;
        if (code_bits(F) == 8) {
          out[n].v[r] += widen(products);
          keep_order(out[n].v[r]);
        } else {
          narrow[n][r] += products;
          keep_order(narrow[n][r]);
        }
      }
    }
  }
  if (code_bits(F) == 8) return;
  PACELINE_UNROLL
  for (int n = 0; n < N; n++) {
    for (int r = 0; r < 4; r++) out[n].v[r] = widen(narrow[n][r]);
  }
}

}  // namespace paceline
