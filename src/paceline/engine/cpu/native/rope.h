// What becomes of queries, keys and values between their matrices and attention: norms of heads (Qwen 3),
// rotary embedding (Su et al. 2021), and the keys and values of every row in its slot.
#pragma once

#include <cmath>
#include <cstdint>

#include "abi.h"
#include "kv.h"
#include "scratch.h"
#include "simd.h"

namespace paceline {

// Cosine and sine of the angles by which each row's heads turn, the same for all layers: [T][rope_dim / 2].
class Rotations {
 public:
  // positions: [rows]
  void compute(const PlModel &model, const int32_t *positions, int rows) {
    half_ = model.rope_dim / 2;
    cos_.require(static_cast<size_t>(rows) * static_cast<size_t>(half_));
    sin_.require(static_cast<size_t>(rows) * static_cast<size_t>(half_));
    for (int t = 0; t < rows; ++t) {
      // In float32, as transformers computes angles: the weights were trained on that rounding.
      const float position = static_cast<float>(positions[t]);
      float *cos = cos_.get() + t * half_, *sin = sin_.get() + t * half_;
      for (int i = 0; i < half_; ++i) {
        const float angle = position * model.rope_frequencies[i];
        cos[i] = std::cos(angle) * model.rope_scale;
        sin[i] = std::sin(angle) * model.rope_scale;
      }
    }
  }

  const float *cos(int row) const { return cos_.get() + row * half_; }
  const float *sin(int row) const { return sin_.get() + row * half_; }

 private:
  ptrdiff_t half_ = 0;
  Buffer<float> cos_, sin_;
};

// head [dim] divided by its root mean square, times weight [dim].
static inline void norm_head(float *head, const float *weight, int dim, float eps) {
  Vf squares = zero();
  for (int d = 0; d < dim; d += kLanes) {
    const int n = dim - d;
    const Vf x = n >= kLanes ? load(head + d) : load(head + d, n);
    squares = fma(x, x, squares);
  }
  const float factor = 1.0f / std::sqrt(reduce_add(squares) / static_cast<float>(dim) + eps);
  for (int d = 0; d < dim; ++d) head[d] = head[d] * factor * weight[d];
}

// Turns values i and half + i of `head` by angle i; cos, sin: [half].
static inline void rotate_halves(float *__restrict head, const float *cos, const float *sin, int half) {
  float *__restrict behind = head + half;
  for (int i = 0; i < half; ++i) {
    const float x = head[i], y = behind[i];
    head[i] = x * cos[i] - y * sin[i];
    behind[i] = y * cos[i] + x * sin[i];
  }
}

// Turns values 2 i and 2 i + 1 of `head` by angle i; cos, sin: [half].
static inline void rotate_pairs(float *head, const float *cos, const float *sin, int half) {
  for (int i = 0; i < half; ++i) {
    const float x = head[2 * i], y = head[2 * i + 1];
    head[2 * i] = x * cos[i] - y * sin[i];
    head[2 * i + 1] = y * cos[i] + x * sin[i];
  }
}

// Makes queries of `qkv` [heads + 2 * kv_heads][head_dim], row `t` of the step, ready for attention, and
// stores its keys and values in `slot`.
static inline void rotate_and_store(const PlModel &model, const PlLayer &layer, const Rotations &rotations,
                                    int t, int64_t slot, const Pages &pages, float *qkv) {
  const int dim = model.head_dim;
  for (int h = 0; h < model.heads + model.kv_heads; ++h) {
    float *head = qkv + h * dim;
    const float *norm = h < model.heads ? layer.q_norm : layer.k_norm;
    if (norm != nullptr) norm_head(head, norm, dim, model.eps);
    const auto rotate = model.rope_interleaved ? rotate_pairs : rotate_halves;
    rotate(head, rotations.cos(t), rotations.sin(t), model.rope_dim / 2);
  }
  const KvPlane plane(model, layer, pages);
  for (int line = 0; line < 2 * model.kv_heads; ++line) {
    const float scale = line < model.kv_heads ? layer.k_scale : layer.v_scale;
    store_row(model, plane, slot, line, scale, qkv + (model.heads + line) * dim);
  }
}

}  // namespace paceline
