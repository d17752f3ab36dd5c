// Keys and values in pages: where a row lies, how it is written, how vectors of it are read.
//
// A row is what one token and KV head have: [head_dim]. The plane of a layer in a page holds rows
// [2 * kv_heads][64 tokens], those of keys first; PL_KV_E4M3_SCALED has float32 [2 * kv_heads][64 tokens]
// behind them, the scale of each row. Bytes are those of engine/layout.py and engine/torch/planes.py, so that
// pages move between engines.
#pragma once

#include <cstdint>
#include <cstring>

#include "abi.h"
#include "simd.h"

namespace paceline {

constexpr int kPageTokens = 64;
constexpr float kE4m3Max = 448.0f;

// The pool: uint8 [count, page_bytes].
struct Pages {
  uint8_t *data;
  int64_t count, page_bytes;
};

inline int64_t kv_value_bytes(int format) { return format == PL_KV_F32 ? 4 : format == PL_KV_BF16 ? 2 : 1; }

// One layer's rows in all pages. `line` is a KV head for keys, kv_heads + a KV head for values.
class KvPlane {
 public:
  KvPlane(const PlModel &model, const PlLayer &layer, const Pages &pages)
      : first_(pages.data + layer.plane),
        page_bytes_(pages.page_bytes),
        row_bytes_(model.head_dim * kv_value_bytes(model.kv)),
        scales_(2 * model.kv_heads * kPageTokens * row_bytes_) {}

  int64_t row_bytes() const { return row_bytes_; }

  uint8_t *row(int64_t slot, int line) const { return page(slot) + at(slot, line) * row_bytes_; }

  // Of PL_KV_E4M3_SCALED.
  float *scale(int64_t slot, int line) const {
    return reinterpret_cast<float *>(page(slot) + scales_) + at(slot, line);
  }

 private:
  uint8_t *page(int64_t slot) const { return first_ + slot / kPageTokens * page_bytes_; }
  static int64_t at(int64_t slot, int line) { return int64_t{line} * kPageTokens + slot % kPageTokens; }

  uint8_t *first_;
  int64_t page_bytes_, row_bytes_, scales_;
};

// To the nearest, ties to even; what is too large becomes infinite, NaN stays NaN.
static inline uint16_t encode_bf16(float x) {
  uint32_t bits;
  std::memcpy(&bits, &x, sizeof bits);
  const uint32_t rounded = (bits + (0x7FFFu + ((bits >> 16) & 1u))) >> 16;
  // Rounding would carry the mantissa of some NaNs into the sign.
  const uint32_t quiet = (bits >> 16) | 0x40u;
  return static_cast<uint16_t>((bits & 0x7FFFFFFFu) > 0x7F800000u ? quiet : rounded);
}

// To the nearest, ties to even; what lies beyond +-448 becomes +-448, NaN stays NaN.
static inline uint8_t encode_e4m3(float x) {
  uint32_t bits;
  std::memcpy(&bits, &x, sizeof bits);
  const uint32_t wide = bits & 0x7FFFFFFFu;
  // A float32 of 2^14 has steps of 2^-9, which e4m3 has below its smallest normal, 2^-6.
  float magnitude, stepped;
  std::memcpy(&magnitude, &wide, sizeof magnitude);
  stepped = magnitude + 0x1p14f;
  uint32_t small;
  std::memcpy(&small, &stepped, sizeof small);
  small -= 0x46800000u;
  const uint32_t rounded = ((wide + (0x7FFFFu + ((wide >> 20) & 1u))) >> 20) - ((127u - 7u) << 3);
  const uint32_t normal = rounded > 0x7Eu ? 0x7Eu : rounded;
  // Masks instead of branches, so that loops become vectors.
  const uint32_t is_small = 0u - static_cast<uint32_t>(wide < 0x3C800000u);
  const uint32_t is_nan = 0u - static_cast<uint32_t>(wide > 0x7F800000u);
  const uint32_t code = (small & is_small) | (normal & ~is_small);
  return static_cast<uint8_t>((code & ~is_nan) | (0x7Fu & is_nan) | (bits >> 24 & 0x80u));
}

static inline void encode_e4m3_row(const float *x, int dim, float scale, uint8_t *row) {
  for (int d = 0; d < dim; ++d) row[d] = encode_e4m3(x[d] / scale);
}

// Of x [count]. Magnitudes compare like their bits, and NaN is the largest then.
static inline float largest_magnitude(const float *x, int count) {
  uint32_t most = 0;
  for (int i = 0; i < count; ++i) {
    uint32_t bits;
    std::memcpy(&bits, x + i, sizeof bits);
    bits &= 0x7FFFFFFFu;
    most = most > bits ? most : bits;
  }
  float found;
  std::memcpy(&found, &most, sizeof found);
  return found;
}

// Writes x [head_dim] as the row of `slot` and `line`; `layer_scale` belongs to PL_KV_E4M3.
static inline void store_row(const PlModel &model, const KvPlane &plane, int64_t slot, int line,
                             float layer_scale, const float *x) {
  uint8_t *row = plane.row(slot, line);
  const int dim = model.head_dim;
  switch (model.kv) {
    case PL_KV_F32:
      std::memcpy(row, x, static_cast<size_t>(plane.row_bytes()));
      return;
    case PL_KV_BF16: {
      uint16_t *values = reinterpret_cast<uint16_t *>(row);
      for (int d = 0; d < dim; ++d) values[d] = encode_bf16(x[d]);
      return;
    }
    case PL_KV_E4M3: return encode_e4m3_row(x, dim, layer_scale, row);
    case PL_KV_E4M3_SCALED: {
      const float most = largest_magnitude(x, dim);
      // A row of zeros has a scale, too.
      const float scale = (most < 1e-12f ? 1e-12f : most) / kE4m3Max;
      *plane.scale(slot, line) = scale;
      return encode_e4m3_row(x, dim, scale, row);
    }
  }
}

// Copies what all layers hold of a token from slot to slot.
static inline void copy_slot(const PlModel &model, const Pages &pages, int64_t from, int64_t to) {
  for (int l = 0; l < model.layers; ++l) {
    const KvPlane plane(model, model.layer[l], pages);
    for (int line = 0; line < 2 * model.kv_heads; ++line) {
      std::memmove(plane.row(to, line), plane.row(from, line), static_cast<size_t>(plane.row_bytes()));
      if (model.kv == PL_KV_E4M3_SCALED) {
        *plane.scale(to, line) = *plane.scale(from, line);
      }
    }
  }
}

// How attention reads a format. Values come divided by kUnit, and by the scale of the layer or of the row.
//
//   kBytes         of a value
//   kPerDword      values in 32 bits
//   load_apart     values that lie 4 bytes apart from p on; up to 3 bytes before it are read, too
//   load_at        kLanes values of `row` from value d on, or the n that are left of it
//   kQueryUnit     what queries are multiplied by, kScoreUnit what scores are multiplied by after that, and
//   kWeightShift   softmax weights by 2 to this power, so that no product becomes subnormal
struct ReadF32 {
  static constexpr int kBytes = 4, kPerDword = 1, kWeightShift = 0;
  static constexpr float kUnit = 1, kQueryUnit = 1, kScoreUnit = 1;
  static Vf load_apart(const uint8_t *p) { return as_floats(load_dwords(p)); }
  static Vf load_at(const uint8_t *row, int d) { return load(reinterpret_cast<const float *>(row) + d); }
  static Vf load_at(const uint8_t *row, int d, int n) {
    return load(reinterpret_cast<const float *>(row) + d, n);
  }
};

struct ReadBf16 {
  static constexpr int kBytes = 2, kPerDword = 2, kWeightShift = 0;
  static constexpr float kUnit = 1, kQueryUnit = 1, kScoreUnit = 1;
  static Vf load_apart(const uint8_t *p) { return load_bf16_apart(p); }
  static Vf load_at(const uint8_t *row, int d) {
    return load_bf16(reinterpret_cast<const uint16_t *>(row) + d);
  }
  static Vf load_at(const uint8_t *row, int d, int n) {
    return load_bf16(reinterpret_cast<const uint16_t *>(row) + d, n);
  }
};

struct ReadE4m3 {
  static constexpr int kBytes = 1, kPerDword = 4, kWeightShift = 100;
  static constexpr float kUnit = kE4m3Unit, kQueryUnit = 0x1p60f, kScoreUnit = kE4m3Unit / 0x1p60f;
  static Vf load_apart(const uint8_t *p) { return load_e4m3_apart(p); }
  static Vf load_at(const uint8_t *row, int d) { return load_e4m3(row + d); }
  static Vf load_at(const uint8_t *row, int d, int n) { return load_e4m3(row + d, n); }
};

}  // namespace paceline
