// The normed and quantised rows that matrices multiply, in the forms that their formats take.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstddef>

#include "abi.h"
#include "activations.h"
#include "scratch.h"

namespace paceline {

constexpr int kGroup = kGroupColumns;  // also the rows of a matrix that one item multiplies

inline int groups_of(int columns) { return (columns + kGroup - 1) / kGroup; }

// Whether some matrix wants integer codes, and whether some matrix wants floats.
struct Forms {
  bool codes = false, values = false;

  void add(const PlMatrix &m) {
    values |= is_float(PlFormat(m.format));
    codes |= !is_float(PlFormat(m.format));
  }
};

// T rows of K columns, filled group by group by whoever computed these columns.
class Input {
 public:
  void require(int rows, int columns) {
    columns_ = columns;
    groups_.require(size_t(rows) * size_t(groups_of(columns)));
    values_.require(size_t(rows) * size_t(columns));
  }

  // Columns [32 g, 32 g + count) of a row; count is 32 but at the end of a row that only float formats multiply.
  void put(Forms forms, int row, int g, int count, const float *x) {
    if (forms.values) std::copy_n(x, count, values_.get() + ptrdiff_t{row} * columns_ + g * kGroup);
    if (forms.codes) quantise_group(x, groups_.get() + ptrdiff_t{row} * groups_of(columns_) + g);
  }

  void put_row(Forms forms, int row, const float *x) {
    for (int g = 0; g < groups_of(columns_); ++g) {
      const int left = columns_ - g * kGroup;
      put(forms, row, g, left < kGroup ? left : kGroup, x + g * kGroup);
    }
  }

  // What a product reads; `factors` [T] multiply its rows, null for 1.
  Activations view(const float *factors) const {
    return {columns_, groups_.get(), values_.get(), factors};
  }

 private:
  int columns_ = 0;
  Buffer<ActivationGroup> groups_;
  Buffer<float> values_;
};

// Rows that wait for RMSNorm (Zhang & Sennrich 2019). Its factor 1 / rms needs the whole row, its weight does not: columns
// are stored times their weight as soon as they are known, with the sum of squares of each group, and the factor
// multiplies the finished product.
class NormedInput : public Input {
 public:
  void require(int rows, int columns) {
    Input::require(rows, columns);
    hidden_ = columns;
    squares_.require(size_t(rows) * size_t(groups_of(columns)));
  }

  void put_normed(Forms forms, int row, int g, int count, const float *x, const float *weight) {
    float scaled[kGroup];
    squares_.get()[ptrdiff_t{row} * groups_of(hidden_) + g] = weigh(x, weight + g * kGroup, count, scaled);
    put(forms, row, g, count, scaled);
  }

  // 1 / rms of rows [0, rows) into `factors`.
  void norm_factors(int rows, float eps, float *factors) const {
    const int groups = groups_of(hidden_);
    for (int t = 0; t < rows; ++t) {
      const float *squares = squares_.get() + ptrdiff_t{t} * groups;
      float sum = 0;
      for (int g = 0; g < groups; ++g) sum += squares[g];
      factors[t] = 1.0f / std::sqrt(sum / float(hidden_) + eps);
    }
  }

 private:
  int hidden_ = 0;
  Buffer<float> squares_;
};

}  // namespace paceline
