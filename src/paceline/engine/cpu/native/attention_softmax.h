// Softmax over a segment of scores, and the merging of segments (Milakov & Gimelshein 2018).
#pragma once

#include <cmath>
#include <cstddef>
#include <limits>

#include "kv.h"
#include "simd.h"

namespace paceline {

// What a query found in some segments. In memory: the highest score, the sum of exp(score - highest), and from the next
// vector on the values times these, float32 [width], where width is a multiple of kLanes. Scores count powers of two here.
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
      store(values() + d, fma(load(values() + d), broadcast(mine), load(next.values() + d) * broadcast(other)));
    }
  }
};

// 2^(x + kShift) for x <= 0, relative error below 2e-7, never 0.
//
// As `exp`, without what attention does not need: x is hardly larger than 0.
template <int kShift>
static inline Vf power_of_two(Vf x) {
  // Added to a number of this size, others are rounded to integers, which the low bits of the sum then hold.
  const Vf rounder = broadcast(12582912.0f + kShift);
  const Vf clamped = max(broadcast(-125.0f), x);
  const Vf shifted = clamped + rounder;
  const Vf f = clamped - (shifted - rounder);
  // Minimax on [-1/2, 1/2].
  Vf p = broadcast(0x1.5c08e6p-10f);
  p = fma(p, f, broadcast(0x1.3d0c52p-7f));
  p = fma(p, f, broadcast(0x1.c6b6e4p-5f));
  p = fma(p, f, broadcast(0x1.ebf918p-3f));
  p = fma(p, f, broadcast(0x1.62e428p-1f));
  p = fma(p, f, broadcast(0x1.000002p+0f));
  return times_power_of_two(p, shifted);
}

// Replaces `count` scores by exp((score - highest) * kScoreUnit) * 2^kWeightShift, and sets the state's two numbers;
// `scores` has room for kLanes more.
template <typename Reader>
static inline void softmax_segment(float *scores, int count, AttentionState state) {
  Vf most = broadcast(-std::numeric_limits<float>::infinity());
  store(scores + count, most);
  for (int j = 0; j < count; j += kLanes) most = max(most, load(scores + j));
  const Vf unit = broadcast(Reader::kScoreUnit * 1.44269504f);
  state.highest() = reduce_max(most) * (Reader::kScoreUnit * 1.44269504f);
  const Vf highest = broadcast(-state.highest());
  Vf sum = zero();
  for (int j = 0; j < count; j += kLanes) {
    const Vf weight = power_of_two<Reader::kWeightShift>(fma(load(scores + j), unit, highest));
    store(scores + j, weight);
    sum += weight;
  }
  state.sum() = reduce_add(sum);
}

}  // namespace paceline
