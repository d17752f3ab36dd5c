// What a product is asked for, and how its results are written.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <type_traits>

#include "activations.h"
#include "dot.h"

namespace paceline {

// Weights are asked for so many bytes before they are used: hardware alone leaves a fifth of the memory's speed unused.
constexpr int kAhead = 40 * 64;

// The number of bytes is a constant: a loop that ends when memory says so costs more than it saves.
template <int kBytes>
inline void prefetch(const uint8_t *from) {
  for (int line = 0; line < kBytes; line += 64) __builtin_prefetch(from + line);
}

// The arguments of `matmul`.
struct Product {
  const PlMatrix &w;
  int row_begin, row_end;
  const Activations &in;
  const int32_t *row_map;
  int tokens;
  float *out;
  ptrdiff_t out_stride;

  int row_of(int t) const { return row_map ? row_map[t] : t; }

  // Results of one token for the block of 16 rows that begins at `row`.
  void write(int t, int row, Rows sums) const {
    if (in.factors) sums = times(sums, in.factors[row_of(t)]);
    float *to = out + t * out_stride + (row - row_begin);
    const int count = std::min(kBlockRows, row_end - row);
    if (count == kBlockRows && !w.bias) return store_rows(to, sums);
    float values[kBlockRows];
    store_rows(values, sums);
    for (int r = 0; r < count; r++) {
      to[r] = w.bias && row + r < w.rows ? values[r] + w.bias[row + r] : values[r];
    }
  }
};

// Calls `run(first, size)` with the size as a compile-time constant from 1 to `kMost`.
template <int kMost, class Run>
inline void run_tile(int size, int first, const Run &run) {
  if constexpr (kMost > 0) {
    if (size == kMost) return run(first, std::integral_constant<int, kMost>());
    run_tile<kMost - 1>(size, first, run);
  }
}

// Calls `run(first, N)` for tiles of N tokens, N a compile-time constant, until `count` are covered: tiles of `kWide`, which
// is `kMost` or twice that, then one or two of nearly equal size, so that no odd token is alone with the weights.
template <int kMost, int kWide, class Run>
inline void for_tiles(int count, const Run &run) {
  for (int first = 0; first < count;) {
    const int left = count - first;
    const int size = left >= 2 * kMost ? kWide : left > kMost ? (left + 1) / 2 : left;
    if (kWide > kMost && size == kWide) {
      run(first, std::integral_constant<int, kWide>());
    } else {
      run_tile<kMost>(size, first, run);
    }
    first += size;
  }
}

}  // namespace paceline
