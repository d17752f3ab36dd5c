// How likely each token of a row is, not normalised: exp((logit - best) / temperature), which is 1 for the best.
#pragma once

#include <algorithm>
#include <limits>
#include <vector>

#include "doubles.h"

namespace paceline {

class Weights {
 public:
  static constexpr int kBlock = 64;

  // Of `vocab` logits, the largest of which is `best`. Weights below `min_p` become 0.
  void compute(const float *logits, int vocab, double best, double temperature, double min_p) {
    const size_t blocks = size_t((vocab + kBlock - 1) / kBlock);
    of_.resize(blocks * kBlock);
    tops_.resize(blocks);
    sums_.resize(blocks);
    // A tiny temperature has no finite inverse, and the likeliest token must not become 0 * infinity.
    const double inverse = 1.0 / temperature, largest = std::numeric_limits<double>::max();
    const double scale = inverse < largest ? inverse : largest;
    const double least = min_p > kLeast ? min_p : kLeast;
    for (int b = 0; b < int(blocks); b++) {
      const int count = vocab - b * kBlock;
      const float *row = logits + size_t(b) * kBlock;
      float padded[kBlock];
      if (count < kBlock) {
        std::fill(padded, padded + kBlock, -std::numeric_limits<float>::infinity());
        std::copy(row, row + count, padded);
        row = padded;
      }
      compute_block(b, row, best, scale, least);
    }
  }

  int blocks() const { return int(tops_.size()); }
  const double *block(int b) const { return of_.data() + size_t(b) * kBlock; }
  const std::vector<double> &tops() const { return tops_; }

  // The sum of the block's weights from `floor` on.
  double sum_from(int b, double floor) const {
    if (floor <= 0.0) return sums_[size_t(b)];
    if (tops_[size_t(b)] < floor) return 0.0;
    return sum(block(b), floor);
  }

  // The same of the whole row.
  double mass_from(double floor) const {
    double mass = 0.0;
    for (int b = 0; b < blocks(); b++) mass += sum_from(b, floor);
    return mass;
  }

  // Where in the block the sum of the weights from `floor` on passes `target`; their last one if it does not.
  int scan(int b, double floor, double target) const {
    const double *weights = block(b);
    double mass = 0.0;
    int last = 0;
    for (int i = 0; i < kBlock; i++) {
      if (weights[i] <= 0.0 || weights[i] < floor) continue;
      mass += weights[i];
      last = i;
      if (mass > target) break;
    }
    return last;
  }

 private:
  static constexpr double kLowest = -708.0, kLeast = 1e-307;  // above exp(kLowest)
  static constexpr int kParts = 16;                           // sums of a block, whatever a vector's width is
  static constexpr int kVectors = kParts / kDoubleLanes;

  void compute_block(int b, const float *logits, double best, double scale, double least) {
    double *weights = of_.data() + size_t(b) * kBlock;
    Doubles tops = {};
    for (int i = 0; i < kBlock; i += 4 * kDoubleLanes) {
      Doubles some[4];
      for (int j = 0; j < 4; j++) {
        some[j] = max((load_doubles(logits + i + j * kDoubleLanes) - best) * scale, Doubles{} + kLowest);
      }
      exp(some);
      for (int j = 0; j < 4; j++) {
        some[j] = where(some[j] >= least, some[j]);
        tops = max(tops, some[j]);
        store_doubles(weights + i + j * kDoubleLanes, some[j]);
      }
    }
    double top = tops[0];
    for (int j = 1; j < kDoubleLanes; j++) top = tops[j] > top ? tops[j] : top;
    tops_[size_t(b)] = top;
    sums_[size_t(b)] = sum(weights, 0.0);
  }

  static double sum(const double *weights, double floor) {
    Doubles parts[kVectors] = {};
    for (int i = 0; i < kBlock; i += kParts) {
      for (int j = 0; j < kVectors; j++) {
        const Doubles weight = load_doubles(weights + i + j * kDoubleLanes);
        parts[j] += where(weight >= floor, weight);
      }
    }
    double all[kParts];
    for (int j = 0; j < kVectors; j++) store_doubles(all + j * kDoubleLanes, parts[j]);
    for (int half = kParts / 2; half > 0; half /= 2) {
      for (int j = 0; j < half; j++) all[j] += all[j + half];
    }
    return all[0];
  }

  std::vector<double> of_;    // [blocks][kBlock], 0 behind the row
  std::vector<double> tops_;  // [blocks] the largest of each
  std::vector<double> sums_;  // [blocks]
};

}  // namespace paceline
