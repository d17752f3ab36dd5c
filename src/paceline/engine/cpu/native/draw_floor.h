// What top_k and top_p keep is everything from some weight on, equal weights included. That weight is found
// without sorting a vocabulary, which would take longer than a step.
#pragma once

#include <algorithm>
#include <cmath>
#include <functional>
#include <vector>

#include "draw_weights.h"

namespace paceline {

// The weights w with low <= w < high, without zeros.
static inline void gather(const Weights &weights, double low, double high, std::vector<double> &pool) {
  pool.clear();
  for (int b = 0; b < weights.blocks(); b++) {
    if (weights.tops()[size_t(b)] < low || weights.tops()[size_t(b)] <= 0.0) continue;
    const double *block = weights.block(b);
    for (int i = 0; i < Weights::kBlock; i++) {
      if (block[i] >= low && block[i] < high && block[i] > 0.0) pool.push_back(block[i]);
    }
  }
}

// The k-th largest weight; 0 where fewer are left.
static inline double top_k_floor(const Weights &weights, int k, std::vector<double> &pool) {
  double bound = 0.0;
  if (k < weights.blocks()) {
    // The k-th largest of the blocks' maxima has k weights from it on, and few more.
    pool = weights.tops();
    std::nth_element(pool.begin(), pool.begin() + (k - 1), pool.end(), std::greater<double>());
    bound = pool[size_t(k - 1)];
  }
  gather(weights, bound, 2.0, pool);
  if (pool.size() < size_t(k)) return 0.0;
  std::nth_element(pool.begin(), pool.begin() + (k - 1), pool.end(), std::greater<double>());
  return pool[size_t(k - 1)];
}

// The smallest weight of the fewest largest ones that make up `top_p` of all from `floor` on.
static inline double top_p_floor(const Weights &weights, double floor, double top_p,
                                 std::vector<double> &pool) {
  const double target = top_p * weights.mass_from(floor);
  // The weights from `low` on reach it, those from `high` on do not: these are `above`.
  double low = floor, high = 2.0, above = 0.0;
  constexpr double kUsual = 0x1p-64;  // hardly any top_p reaches below
  if (floor < kUsual && weights.mass_from(kUsual) >= target) low = kUsual;
  // Halves the exponents in between until both differ by a hundredth: a few hundred weights at most.
  for (int halving = 0; halving < 12 && low > 0.0; halving++) {
    const double middle = std::sqrt(low * high), mass = weights.mass_from(middle);
    if (mass >= target) {
      low = middle;
    } else {
      high = middle;
      above = mass;
    }
  }
  gather(weights, low, high, pool);
  std::sort(pool.begin(), pool.end(), std::greater<double>());
  for (double weight : pool) {
    above += weight;
    if (above >= target) return weight;
  }
  // Added up in another order it may be a rounding less than `target`.
  return pool.empty() ? low : pool.back();
}

}  // namespace paceline
