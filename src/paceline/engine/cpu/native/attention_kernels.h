// What attention does with the keys and values of a page, for each format: the products of attention_direct.h
// and attention_tile.h behind functions that are called once a page.
#pragma once

#include <cstddef>
#include <cstdint>

#include "abi.h"
#include "attention_direct.h"
#include "attention_softmax.h"
#include "attention_tile.h"
#include "kv.h"

namespace paceline {

struct AttentionKernels {
  int per_dword;
  float unit, query_unit;  // see the readers in kv.h
  void (*finish)(const float *values, int dim, float factor, float *out);
  void (*softmax)(float *scores, int count, AttentionState state);
  void (*score_run)(const float *queries, ptrdiff_t query_stride, int query_count, const uint8_t *packed,
                    int count, int dim, float *scores, ptrdiff_t score_stride, Ahead ahead);
  void (*value_run)(const float *weights, ptrdiff_t weight_stride, int query_count, const uint8_t *values,
                    int64_t row_bytes, int count, int dim, float *out, ptrdiff_t out_stride, Ahead ahead);
  void (*widen_keys)(const uint8_t *packed, int count, int dim, float *out);
  void (*widen_values)(const uint8_t *values, int64_t row_bytes, int count, int dim, float *out);
};

template <typename Reader>
constexpr AttentionKernels kKernelsOf = {
    Reader::kPerDword, Reader::kUnit,     Reader::kQueryUnit, finish_values<Reader>, softmax_segment<Reader>,
    score_run<Reader>, value_run<Reader>, widen_keys<Reader>, widen_values<Reader>,
};

inline const AttentionKernels &attention_kernels(int format) {
  switch (format) {
    case PL_KV_F32: return kKernelsOf<ReadF32>;
    case PL_KV_BF16: return kKernelsOf<ReadBf16>;
    default: return kKernelsOf<ReadE4m3>;
  }
}

}  // namespace paceline
