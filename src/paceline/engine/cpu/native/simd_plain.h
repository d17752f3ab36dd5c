// Any machine: two halves of four lanes, in GCC's vector extensions. Interface: simd.h.
#pragma once

namespace paceline {

constexpr int kLanes = 8;

// As wide as SSE2 and NEON are, so that no compiler has to split it or pass it in memory.
typedef float F4 __attribute__((vector_size(16)));
typedef int32_t I4 __attribute__((vector_size(16)));

struct Vf {
  F4 low, high;
};

static inline F4 broadcast4(float x) { return F4{x, x, x, x}; }

static inline Vf zero() { return {F4{}, F4{}}; }
static inline Vf broadcast(float x) { return {broadcast4(x), broadcast4(x)}; }
static inline Vf load(const float *p) {
  Vf a;
  std::memcpy(&a, p, sizeof a);
  return a;
}
static inline Vf load(const float *p, int n) {
  Vf a = zero();
  std::memcpy(&a, p, static_cast<size_t>(n) * sizeof(float));
  return a;
}
static inline void store(float *p, Vf a) { std::memcpy(p, &a, sizeof a); }
static inline void store(float *p, Vf a, int n) {
  std::memcpy(p, &a, static_cast<size_t>(n) * sizeof(float));
}

static inline Vf operator+(Vf a, Vf b) { return {a.low + b.low, a.high + b.high}; }
static inline Vf operator-(Vf a, Vf b) { return {a.low - b.low, a.high - b.high}; }
static inline Vf operator*(Vf a, Vf b) { return {a.low * b.low, a.high * b.high}; }
static inline Vf fma(Vf a, Vf b, Vf c) { return a * b + c; }
static inline Vf max(Vf a, Vf b) {
  return {a.low > b.low ? a.low : b.low, a.high > b.high ? a.high : b.high};
}
static inline Vf min(Vf a, Vf b) {
  return {a.low < b.low ? a.low : b.low, a.high < b.high ? a.high : b.high};
}

static inline float reduce_add(Vf a) {
  const F4 half = a.low + a.high;
  return (half[0] + half[2]) + (half[1] + half[3]);
}

static inline float reduce_max(Vf a) {
  float most = a.low[0];
  for (int i = 1; i < 4; ++i) most = most > a.low[i] ? most : a.low[i];
  for (int i = 0; i < 4; ++i) most = most > a.high[i] ? most : a.high[i];
  return most;
}

static inline Vf load_bf16(const uint16_t *p) {
  uint32_t bits[kLanes];
  for (int i = 0; i < kLanes; ++i) bits[i] = static_cast<uint32_t>(p[i]) << 16;
  Vf a;
  std::memcpy(&a, bits, sizeof a);
  return a;
}

static inline Vf load_e4m3(const uint8_t *p) {
  uint32_t bits[kLanes];
  for (int i = 0; i < kLanes; ++i) bits[i] = (p[i] & 0x80u) << 24 | (p[i] & 0x7Fu) << 20;
  Vf a;
  std::memcpy(&a, bits, sizeof a);
  return a;
}

static inline I4 bits_of(F4 a) {
  I4 b;
  std::memcpy(&b, &a, sizeof b);
  return b;
}
static inline F4 floats_of(I4 a) {
  F4 b;
  std::memcpy(&b, &a, sizeof b);
  return b;
}

struct Vd {
  I4 low, high;
};

static inline Vd load_dwords(const void *p, int n) {
  Vd a{};
  std::memcpy(&a, p, static_cast<size_t>(n) * sizeof(uint32_t));
  return a;
}
static inline Vd load_dwords(const void *p) { return load_dwords(p, kLanes); }
static inline void store_dwords(void *p, Vd a) { std::memcpy(p, &a, sizeof a); }

static inline void transpose(Vd (&rows)[kLanes]) {
  uint32_t at[kLanes][kLanes], to[kLanes][kLanes];
  std::memcpy(at, rows, sizeof at);
  for (int i = 0; i < kLanes; ++i)
    for (int j = 0; j < kLanes; ++j) to[i][j] = at[j][i];
  std::memcpy(rows, to, sizeof to);
}

static inline Vf as_floats(Vd x) { return {floats_of(x.low), floats_of(x.high)}; }

static inline Vf masked(Vd x, uint32_t mask) {
  const int32_t bits = static_cast<int32_t>(mask);
  return as_floats({x.low & bits, x.high & bits});
}

static inline Vf load_bf16_apart(const uint8_t *p) { return masked(load_dwords(p - 2), 0xFFFF0000u); }
static inline Vf load_e4m3_apart(const uint8_t *p) {
  const Vd x = load_dwords(p - 3);
  return masked({x.low >> 4, x.high >> 4}, 0x87F00000u);
}

static inline Vf zero_where_less(Vf a, Vf b, Vf c) {
  return {floats_of(bits_of(c.low) & ~(a.low < b.low)), floats_of(bits_of(c.high) & ~(a.high < b.high))};
}
static inline Vf times_power_of_two(Vf a, Vf shifted) {
  return {floats_of(bits_of(a.low) + (bits_of(shifted.low) << 23)),
          floats_of(bits_of(a.high) + (bits_of(shifted.high) << 23))};
}

}  // namespace paceline
