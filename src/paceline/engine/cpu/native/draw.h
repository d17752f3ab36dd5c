// From a row of logits to a token, as `paceline.engine.sampling` draws it: mask, temperature, min_p, top_k, top_p,
// then the inverse of the cumulative distribution in order of token ids.
//
// Everything is float64 in one order, however wide vectors are: a token does not depend on the level. Weights
// come in blocks, whose sums and maxima say which blocks need not be looked at again.
#pragma once

#include <algorithm>
#include <cmath>
#include <limits>

#include "abi.h"
#include "draw_floor.h"
#include "draw_weights.h"

namespace paceline {

// Leaves the logits of the tokens that `mask` allows.
static inline void exclude(float *logits, int vocab, const uint32_t *mask) {
  constexpr float kNever = -std::numeric_limits<float>::infinity();
  for (int begin = 0; begin < vocab; begin += 32) {
    const uint32_t bits = mask[begin / 32];
    // Most words are all or nothing: what a grammar tells apart are few tokens, or all but few.
    if (bits == 0xFFFFFFFF) continue;
    float *block = logits + begin;
    const int count = std::min(32, vocab - begin);
    if (bits == 0) {
      std::fill(block, block + count, kNever);
    } else {
      for (int i = 0; i < count; i++) block[i] = (bits >> i) & 1 ? block[i] : kNever;
    }
  }
}

// The largest logit, NaN if there is one.
static inline float largest(const float *logits, int vocab) {
  constexpr int kLanes = 32;
  float best[kLanes];
  int32_t nan[kLanes] = {};
  for (int j = 0; j < kLanes; j++) best[j] = -std::numeric_limits<float>::infinity();
  int i = 0;
  for (; i + kLanes <= vocab; i += kLanes) {
    for (int j = 0; j < kLanes; j++) {
      const float x = logits[i + j];
      best[j] = x > best[j] ? x : best[j];
      nan[j] |= x != x;
    }
  }
  for (; i < vocab; i++) {
    best[0] = logits[i] > best[0] ? logits[i] : best[0];
    nan[0] |= logits[i] != logits[i];
  }
  for (int j = 1; j < kLanes; j++) {
    best[0] = best[j] > best[0] ? best[j] : best[0];
    nan[0] |= nan[j];
  }
  return nan[0] ? std::numeric_limits<float>::quiet_NaN() : best[0];
}

static inline int32_t first_equal(const float *logits, int vocab, float value) {
  constexpr int kTogether = 64;
  int i = 0;
  for (; i + kTogether <= vocab; i += kTogether) {
    int found = 0;
    for (int j = 0; j < kTogether; j++) found |= logits[i + j] == value;
    if (found) break;
  }
  while (logits[i] != value) i++;
  return i;
}

// The first token at which the sum of the weights from `floor` on passes u times the whole; of those alone.
static inline int32_t pick(const Weights &weights, double floor, double u, std::vector<double> &sums) {
  const int blocks = weights.blocks();
  sums.resize(size_t(blocks));
  double whole = 0.0;
  for (int b = 0; b < blocks; b++) {
    sums[size_t(b)] = weights.sum_from(b, floor);
    whole += sums[size_t(b)];
  }
  // Added up in another order a block may stay below: then it is its last token, as it is the row's last one
  // where the target was rounded up to the whole.
  double rest = u * whole, within = 0.0;
  int chosen = 0;
  for (int b = 0; b < blocks; b++) {
    if (sums[size_t(b)] <= 0.0) continue;
    chosen = b;
    within = rest;
    if (sums[size_t(b)] > rest) break;
    rest -= sums[size_t(b)];
  }
  return chosen * Weights::kBlock + weights.scan(chosen, floor, within);
}

// The token after a row. logits: [vocab], u: in [0, 1). -1 where they hold no distribution: the largest is NaN or
// infinite.
static inline int32_t draw_token(const float *logits, int vocab, const PlDraw &how, double u) {
  const float best = largest(logits, vocab);
  if (!std::isfinite(best)) return -1;
  if (how.temperature == 0.0) return first_equal(logits, vocab, best);
  // A megabyte at most, kept by each thread of the team.
  thread_local Weights weights;
  thread_local std::vector<double> pool;
  weights.compute(logits, vocab, double(best), how.temperature, how.min_p);
  double floor = 0.0;
  if (how.top_k > 0 && how.top_k < vocab) floor = top_k_floor(weights, how.top_k, pool);
  if (how.top_p < 1.0) floor = top_p_floor(weights, floor, how.top_p, pool);
  return pick(weights, floor, u, pool);
}

}  // namespace paceline
