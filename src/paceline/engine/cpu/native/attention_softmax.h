// Softmax over a segment of scores, and the merging of segments (Milakov & Gimelshein 2018).
#pragma once

#include <cmath>
#include <cstddef>
#include <limits>

#include "simd.h"

namespace paceline {

// What a query found in some segments. In memory: the highest score, the sum of exp(score - highest), and from the next
// vector on the values times these, float32 [width], where width is a multiple of kLanes.
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
    const float mine = std::exp(highest() - most), other = std::exp(next.highest() - most);
    highest() = most;
    sum() = sum() * mine + next.sum() * other;
    for (int d = 0; d < width; d += kLanes) {
      store(values() + d, fma(load(values() + d), broadcast(mine), load(next.values() + d) * broadcast(other)));
    }
  }
};

// Replaces `count` scores by exp(score - highest) and sets the state's two numbers; `scores` has room for kLanes more.
static inline void softmax_segment(float *scores, int count, AttentionState state) {
  Vf most = broadcast(-std::numeric_limits<float>::infinity());
  store(scores + count, most);
  for (int j = 0; j < count; j += kLanes) most = max(most, load(scores + j));
  state.highest() = reduce_max(most);
  const Vf highest = broadcast(state.highest());
  Vf sum = zero();
  for (int j = 0; j < count; j += kLanes) {
    const Vf weight = exp(load(scores + j) - highest);
    store(scores + j, weight);
    sum += weight;
  }
  state.sum() = reduce_add(sum);
}

}  // namespace paceline
