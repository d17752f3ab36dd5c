// One KV head of a tile: its queries, its keys and values in their pages, and what a segment of them gives.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>

#include "abi.h"
#include "attention_kernels.h"
#include "attention_plan.h"
#include "kv.h"
#include "scratch.h"

namespace paceline {

// What a thread works in.
struct AttentionScratch {
  Buffer<float> queries;   // [queries][width]
  Buffer<float> scores;    // [queries][kScoreStride]
  Buffer<float> drafts;    // [queries][kPageTokens], scores of a page with columns of tails
  Buffer<uint8_t> packed;  // keys of a page, behind kBefore bytes
  Buffer<float> page;      // keys or values of a page, widened
  Buffer<float> found;     // states of one segment
  Buffer<float> merged;    // states of all
};

// Up to so many queries, or values, a page is not worth widening.
constexpr int kFewQueries = 12, kFewKeys = 4;

// Bytes before packed keys, for what readers read before them.
constexpr ptrdiff_t kBefore = 64;

// A segment's scores, and room behind them for what vectors write too much. An odd number of cache lines, so
// that rows do not fall into the same sets.
constexpr ptrdiff_t kScoreStride = kSegment + kTogether * kLanes + 16;
static_assert(kScoreStride % 32 == 16, "rows alternate between sets");

// What is read after a segment: keys of `line` in pages of `table`, columns [begin, end).
struct Upcoming {
  const int32_t *table;
  int line, begin, end;
};

// One KV head of a tile.
class TileAttention {
 public:
  TileAttention(const PlModel &model, const PlStep &step, const AttentionPlan &plan,
                const AttentionTile &tile, int kv_head, const PlLayer &layer, const Pages &pages,
                AttentionScratch &scratch)
      : kernels_(attention_kernels(model.kv)),
        scaled_(model.kv == PL_KV_E4M3_SCALED),
        plan_(plan),
        tile_(tile),
        plane_(model, layer, pages),
        table_(step.page_table + ptrdiff_t{tile.sequence} * step.table_width),
        key_line_(kv_head),
        value_line_(model.kv_heads + kv_head),
        dim_(model.head_dim),
        width_(padded(model.head_dim)),
        group_(model.heads / model.kv_heads),
        queries_((tile.row_end - tile.row_begin) * group_),
        scratch_(scratch) {
    scratch.queries.require(size(queries_ * width_));
    scratch.scores.require(size(queries_ * kScoreStride));
    scratch.drafts.require(size(queries_ * kPageTokens));
    scratch.packed.require(size(kBefore + 4 * dwords() * kPageTokens));
    scratch.page.require(size(kPageTokens * width_));
    scratch.found.require(size(queries_ * AttentionState::size(width_)));
    scratch.merged.require(size(queries_ * AttentionState::size(width_)));
  }

  int queries() const { return queries_; }
  ptrdiff_t state_size() const { return AttentionState::size(width_); }

  // Reads the queries [rows][stride] of all rows of the step, from the KV head's first query head on, times
  // `scale`.
  void load_queries(const float *from, ptrdiff_t stride, float scale) const {
    const float factor = scale * kernels_.query_unit;
    for (int q = 0; q < queries_; ++q) {
      const float *x = from + (tile_.row_begin + q / group_) * stride + q % group_ * dim_;
      float *to = query(q);
      for (int d = 0; d < dim_; ++d) to[d] = x[d] * factor;
      std::fill(to + dim_, to + width_, 0.0f);
    }
  }

  // The states [queries] of one segment. While scores are computed the segment's values are fetched, and then
  // the keys of the next one: pages lie anywhere, which is more than the processor foresees.
  void attend(int segment, const Upcoming &next, float *states) const {
    const int begin = segment * kSegment, end = begin + kSegment;
    score_columns(begin, std::min(end, tile_.widest));
    score_tails(begin, end);
    for (int q = 0; q < queries_; ++q) {
      const AttentionState state = at(states, q);
      state.clear(width_);
      const int count = std::min(seen(q).count() - begin, kSegment);
      if (count > 0) kernels_.softmax(scores(q), count, state);
    }
    weigh_columns(begin, end);
    value_columns(begin, std::min(end, tile_.shared), 0, queries_, next, states);
    for (int q = 0; q < queries_; q += group_) {
      value_columns(std::max(begin, tile_.shared), std::min(end, seen(q).seen), q, group_, {}, states);
    }
    for_tails(begin, end,
              [&](int row, int column, int key) { value_column(row, column, key - begin, states); });
  }

  // merged states += the next segment's, query by query.
  void merge(float *merged, float *next) const {
    for (int q = 0; q < queries_; ++q) at(merged, q).merge(at(next, q), width_);
  }

  // Writes what the states found, times `scale`, to the rows of `out`, which begin with the KV head's first
  // query head.
  void finish(float *states, float scale, float *out, ptrdiff_t stride) const {
    for (int q = 0; q < queries_; ++q) {
      const AttentionState state = at(states, q);
      kernels_.finish(state.values(), dim_, scale * kernels_.unit / state.sum(),
                      out + (tile_.row_begin + q / group_) * stride + q % group_ * dim_);
    }
  }

 private:
  static size_t size(ptrdiff_t count) { return static_cast<size_t>(count); }

  int dwords() const { return dim_ / kernels_.per_dword; }
  float *query(int q) const { return scratch_.queries.get() + ptrdiff_t{q} * width_; }
  float *scores(int q) const { return scratch_.scores.get() + q * kScoreStride; }
  AttentionState at(float *states, int q) const { return {states + q * state_size()}; }
  const AttentionRow &seen(int q) const { return plan_.rows[size(tile_.row_begin + q / group_)]; }
  int64_t slot(int column) const {
    return int64_t{table_[column / kPageTokens]} * kPageTokens + column % kPageTokens;
  }

  // A page's rows of one line.
  Ahead rows_of(const int32_t *table, int column, int line) const {
    const uint8_t *rows = plane_.row(int64_t{table[column / kPageTokens]} * kPageTokens, line);
    return {rows, rows + kPageTokens * plane_.row_bytes()};
  }

  // Calls `run(column, count)` for the parts of columns [begin, end) that lie in one page.
  template <typename Run>
  static void for_runs(int begin, int end, const Run &run) {
    for (int column = begin, next; column < end; column = next) {
      next = std::min(end, (column / kPageTokens + 1) * kPageTokens);
      run(column, next - column);
    }
  }

  // Calls `run(first query of the row, column, number of the key)` for keys of tails numbered [begin, end).
  template <typename Run>
  void for_tails(int begin, int end, const Run &run) const {
    for (int q = 0; q < queries_; q += group_) {
      const AttentionRow &row = seen(q);
      const int first = std::max(begin - row.seen, 0), last = std::min(end, row.count()) - row.seen;
      for (int i = first; i < last; ++i) run(q, plan_.tails[size(row.tail_begin + i)], row.seen + i);
    }
  }

  // Scores of columns [begin, end), which lie in a segment, for all queries, whether they see them or not.
  void score_columns(int begin, int end) const {
    for_runs(begin, end, [&](int column, int count) {
      score_page(column, count, scores(0) + (column - begin), kScoreStride);
    });
    if (scaled_) scale(key_line_, begin, begin, end, 0, queries_);
  }

  // Scores of keys of tails numbered [begin, end). Those of a page are computed together for all rows, then
  // each row takes its own.
  void score_tails(int begin, int end) const {
    if (end <= tile_.shared || !tile_.has_tails()) return;
    const int first = tile_.first_tail / kPageTokens * kPageTokens;
    for_runs(first, tile_.columns, [&](int page, int count) {
      float *found = scratch_.drafts.get();
      score_page(page, count, found, kPageTokens);
      for_tails(begin, end, [&](int q, int column, int key) {
        if (column / kPageTokens != page / kPageTokens) return;
        for (int g = 0; g < group_; ++g)
          scores(q + g)[key - begin] = found[(q + g) * kPageTokens + (column - page)];
        if (scaled_) scale(key_line_, column - (key - begin), column, column + 1, q, group_);
      });
    });
  }

  // Scores [queries][stride] of `count` columns from the beginning of a page on, whose end they are written
  // up to.
  void score_page(int column, int count, float *to, ptrdiff_t stride) const {
    uint8_t *packed = scratch_.packed.get() + kBefore;
    pack_keys(plane_.row(slot(column), key_line_), plane_.row_bytes(), count, dwords(), packed);
    if (queries_ <= kFewQueries) {
      kernels_.score_run(query(0), width_, queries_, packed, count, dim_, to, stride,
                         rows_of(table_, column, value_line_));
    } else {
      kernels_.widen_keys(packed, count, dim_, scratch_.page.get());
      score_tile(query(0), width_, queries_, scratch_.page.get(), count, dim_, to, stride);
    }
  }

  // Multiplies weights by the scales of the values that they multiply.
  void weigh_columns(int begin, int end) const {
    if (scaled_) {
      for (int q = 0; q < queries_; q += group_) {
        scale(value_line_, begin, begin, std::min(end, seen(q).seen), q, group_);
      }
      for_tails(begin, end, [&](int q, int column, int key) {
        scale(value_line_, column - (key - begin), column, column + 1, q, group_);
      });
    }
  }

  // scores[column - origin] *= the scale of `line`, for columns [begin, end) and `count` queries.
  void scale(int line, int origin, int begin, int end, int first, int count) const {
    for_runs(begin, end, [&](int column, int run) {
      const float *scales = plane_.scale(slot(column), line);
      for (int q = first; q < first + count; ++q) {
        float *to = scores(q) + (column - origin);
        for (int j = 0; j < run; ++j) to[j] *= scales[j];
      }
    });
  }

  // Adds the values of columns [begin, end), which lie in a segment, to `count` states.
  void value_columns(int begin, int end, int first, int count, const Upcoming &next, float *states) const {
    float *out = at(states, first).values();
    for_runs(begin, end, [&](int column, int run) {
      const uint8_t *values = plane_.row(slot(column), value_line_);
      const float *weights = scores(first) + column % kSegment;
      if (count <= kFewQueries || run <= kFewKeys) {
        const int following = next.begin + column % kSegment;
        const Ahead ahead = following < next.end ? rows_of(next.table, following, next.line) : Ahead{};
        kernels_.value_run(weights, kScoreStride, count, values, plane_.row_bytes(), run, dim_, out,
                           state_size(), ahead);
      } else {
        kernels_.widen_values(values, plane_.row_bytes(), run, dim_, scratch_.page.get());
        value_tile(weights, kScoreStride, count, scratch_.page.get(), run, dim_, out, state_size());
      }
    });
  }

  void value_column(int q, int column, int key, float *states) const {
    kernels_.value_run(scores(q) + key, kScoreStride, group_, plane_.row(slot(column), value_line_),
                       plane_.row_bytes(), 1, dim_, at(states, q).values(), state_size(), {});
  }

  const AttentionKernels &kernels_;
  bool scaled_;  // rows of keys and values have scales of their own
  const AttentionPlan &plan_;
  const AttentionTile &tile_;
  KvPlane plane_;
  const int32_t *table_;
  int key_line_, value_line_;
  int dim_, width_, group_, queries_;
  AttentionScratch &scratch_;
};

}  // namespace paceline
