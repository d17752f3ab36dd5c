// Softmax over a segment of scores, and the merging of segments (Milakov & Gimelshein 2018).
#pragma once

#include <cmath>
#include <cstddef>
#include <limits>

#include "kv.h"
#include "simd.h"

namespace paceline {

// What a query found in some segments. In memory: the highest score, the sum of exp(score - highest), and
// from the next vector on the values times these, float32 [width], where width is a multiple of kLanes.
// Scores count powers of two here.
struct AttentionState {
  float *data;

  static ptrdiff_t size(int width) { return kLanes + width; }
  float &highest() const { return data[0]; }
  float &sum() const { return data[1]; }
  float *values() const { return data + kLanes; }

  void clear(int width) const {
    highest() = -std::numeric_limits<float>::infinity();
    sum() = 0;
    for (int d = 0; d < width; d += kLanes) store(values() + d, zero());
  }

  // Adds what was found in the next segment.
  void merge(AttentionState next, int width) const {
    if (next.sum() == 0) return;  // the row sees nothing there
    const float most = std::fmax(highest(), next.highest());
    const float mine = std::exp2(highest() - most), other = std::exp2(next.highest() - most);
    highest() = most;
    sum() = sum() * mine + next.sum() * other;
    for (int d = 0; d < width; d += kLanes) {
      store(values() + d,
            fma(load(values() + d), broadcast(mine), load(next.values() + d) * broadcast(other)));
    }
  }
};

// x[i] = 2^(x[i] + kShift) for x <= 0, relative error below 2e-7, never 0.
//
// As `exp`, without what attention does not need: x is hardly larger than 0. Several at a time, step by step:
// one after the other, each would wait in the processor's queue for its own steps.
template <int kShift, int kCount>
static inline void powers_of_two(Vf (&x)[kCount]) {
  // Added to a number of this size, others are rounded to integers, which the low bits of the sum then hold.
  const Vf rounder = broadcast(12582912.0f + kShift);
  Vf shifted[kCount], p[kCount];
  unrolled<kCount>([&](auto i) { x[i] = max(broadcast(-125.0f), x[i]); });
  unrolled<kCount>([&](auto i) { shifted[i] = x[i] + rounder; });
  unrolled<kCount>([&](auto i) { x[i] = x[i] - (shifted[i] - rounder); });
  // Minimax on [-1/2, 1/2].
  unrolled<kCount>([&](auto i) { p[i] = fma(broadcast(0x1.5c08e6p-10f), x[i], broadcast(0x1.3d0c52p-7f)); });
  unrolled<kCount>([&](auto i) { p[i] = fma(p[i], x[i], broadcast(0x1.c6b6e4p-5f)); });
  unrolled<kCount>([&](auto i) { p[i] = fma(p[i], x[i], broadcast(0x1.ebf918p-3f)); });
  unrolled<kCount>([&](auto i) { p[i] = fma(p[i], x[i], broadcast(0x1.62e428p-1f)); });
  unrolled<kCount>([&](auto i) { p[i] = fma(p[i], x[i], broadcast(0x1.000002p+0f)); });
  unrolled<kCount>([&](auto i) { x[i] = times_power_of_two(p[i], shifted[i]); });
}

constexpr int kTogether = 4;

// Replaces `count` scores by exp((score - highest) * kScoreUnit) * 2^kWeightShift, and sets the state's two
// numbers; `scores` has room for kTogether vectors more.
template <typename Reader>
static inline void softmax_segment(float *scores, int count, AttentionState state) {
  Vf most = broadcast(-std::numeric_limits<float>::infinity());
  unrolled<kTogether>([&](auto i) { store(scores + count + i * kLanes, most); });
  for (int j = 0; j < count; j += kLanes) most = max(most, load(scores + j));
  const Vf unit = broadcast(Reader::kScoreUnit * 1.44269504f);
  state.highest() = reduce_max(most) * (Reader::kScoreUnit * 1.44269504f);
  const Vf highest = broadcast(-state.highest());
  Vf sum = zero();
  for (int j = 0; j < count; j += kTogether * kLanes) {
    Vf weights[kTogether];
    unrolled<kTogether>([&](auto i) { weights[i] = fma(load(scores + j + i * kLanes), unit, highest); });
    powers_of_two<Reader::kWeightShift>(weights);
    unrolled<kTogether>([&](auto i) {
      store(scores + j + i * kLanes, weights[i]);
      sum += weights[i];
    });
  }
  state.sum() = reduce_add(sum);
}

}  // namespace paceline
