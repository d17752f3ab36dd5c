// How the attention of a step is cut into items, and which keys each row sees.
//
// Columns are a sequence's slots in order, one for each position and each draft. A row sees columns [0, seen)
// and, in a tree of drafts, those of its ancestors behind them. What it sees is numbered from 0 as if it lay
// together, so that a draft computes what its token will when it is decoded again, to the bit.
//
// That numbering is cut into segments of 512. Softmax is exact within a segment, and segments are merged in
// order (Milakov & Gimelshein 2018): results do not depend on which items computed them.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "abi.h"

namespace paceline {

constexpr int kSegment = 512;

// What a row sees: columns [0, seen), then tails[tail_begin, tail_end) of its plan.
struct AttentionRow {
  int32_t seen, tail_begin, tail_end;

  int32_t count() const { return seen + (tail_end - tail_begin); }
};

// Rows [row_begin, row_end) of one sequence, which read keys together.
struct AttentionTile {
  int32_t sequence, row_begin, row_end;
  int32_t shared;      // columns that all rows see
  int32_t longest;     // most that a row sees
  int32_t widest;      // most columns that a row sees without its tail
  int32_t columns;     // of the sequence
  int32_t first_tail;  // first column in a tail, if there is one
  int32_t pieces;      // items for each KV head; above 1 their results wait in memory to be merged
  ptrdiff_t partials;  // where: states, segment by segment, of the first KV head
  int32_t counter;     // of the first KV head's items that are not done

  bool has_tails() const { return first_tail < columns; }
  int segments() const { return (longest + kSegment - 1) / kSegment; }
};

// One KV head of a tile, segments [segment_begin, segment_end).
struct AttentionItem {
  int32_t tile, kv_head, segment_begin, segment_end;
};

struct AttentionPlan {
  std::vector<AttentionRow> rows;  // [T]
  std::vector<int32_t> tails;      // columns
  std::vector<AttentionTile> tiles;
  std::vector<AttentionItem> items;
  ptrdiff_t partials = 0;  // states of one query and segment that are kept for merging
  int32_t counters = 0;
};

// Queries that a tile has if its sequence has so many rows: enough to pay for decoding a page, few enough
// that their scores stay in the L2 cache.
constexpr int kTileQueries = 96;
// Items for each thread that a step should have, if it is long enough: the last one to finish is waited for.
constexpr int kItemsPerThread = 16;

// A draft's parent precedes it, and drafts are the last rows of their sequence.
static inline void plan_rows(const PlStep &step, int sequence, AttentionPlan &plan) {
  const int begin = step.query_starts[sequence], end = step.query_starts[sequence + 1];
  const int context = step.contexts[sequence];
  int drafts = 0;
  for (int t = begin; t < end; ++t) drafts += step.parents[t] >= 0;
  const int first_draft = end - drafts, before = context - drafts;
  std::vector<int32_t> path;
  for (int t = begin; t < end; ++t) {
    AttentionRow row{context - (end - t) + 1, 0, 0};
    if (step.parents[t] >= 0) {
      path.clear();
      for (int a = t; a >= first_draft; a = step.parents[a]) path.push_back(before + a - first_draft);
      row.seen = before;
      while (!path.empty() && path.back() == row.seen) {
        path.pop_back();
        ++row.seen;
      }
      row.tail_begin = static_cast<int32_t>(plan.tails.size());
      plan.tails.insert(plan.tails.end(), path.rbegin(), path.rend());
      row.tail_end = static_cast<int32_t>(plan.tails.size());
    }
    plan.rows.push_back(row);
  }
}

static inline void plan_tiles(const PlStep &step, int sequence, int group, AttentionPlan &plan) {
  const int end = step.query_starts[sequence + 1];
  const int rows = std::max(1, kTileQueries / group);
  for (int t = step.query_starts[sequence]; t < end; t += rows) {
    const int columns = step.contexts[sequence];
    AttentionTile tile{sequence, t, std::min(end, t + rows), INT32_MAX, 0, 0, columns, columns, 1, 0, 0};
    for (int r = tile.row_begin; r < tile.row_end; ++r) {
      const AttentionRow &row = plan.rows[static_cast<size_t>(r)];
      tile.shared = std::min(tile.shared, row.seen);
      tile.widest = std::max(tile.widest, row.seen);
      tile.longest = std::max(tile.longest, row.count());
      if (row.tail_begin < row.tail_end) {
        tile.first_tail = std::min(tile.first_tail, plan.tails[static_cast<size_t>(row.tail_begin)]);
      }
    }
    plan.tiles.push_back(tile);
  }
}

// Fills `plan`, whose memory is kept from step to step.
static inline void plan_attention(const PlStep &step, const PlModel &model, int threads,
                                  AttentionPlan &plan) {
  const int group = model.heads / model.kv_heads;
  plan.rows.clear();
  plan.tails.clear();
  plan.tiles.clear();
  plan.items.clear();
  plan.partials = plan.counters = 0;
  for (int s = 0; s < step.sequences; ++s) {
    plan_rows(step, s, plan);
    plan_tiles(step, s, group, plan);
  }

  // In rows times columns; what a column costs whatever the number of rows is worth about two of them.
  const auto cost = [](const AttentionTile &tile) {
    return (tile.row_end - tile.row_begin + 2.0) * tile.longest;
  };
  double total = 0;
  for (const AttentionTile &tile : plan.tiles) total += cost(tile) * model.kv_heads;
  const double fair = total / (threads * kItemsPerThread);
  for (AttentionTile &tile : plan.tiles) {
    const int segments = tile.segments();
    const int wanted =
        threads == 1 ? 1 : static_cast<int>(std::min<double>(segments, cost(tile) / fair + 0.5));
    tile.pieces = std::max(1, wanted);
    if (tile.pieces == 1) continue;
    const int queries = (tile.row_end - tile.row_begin) * group;
    tile.partials = plan.partials;
    tile.counter = plan.counters;
    plan.partials += ptrdiff_t{model.kv_heads} * segments * queries;
    plan.counters += model.kv_heads;
  }

  // Items of a KV head of a sequence follow each other: they read the same pages.
  for (size_t first = 0, last = 0; first < plan.tiles.size(); first = last) {
    while (last < plan.tiles.size() && plan.tiles[last].sequence == plan.tiles[first].sequence) ++last;
    for (int h = 0; h < model.kv_heads; ++h) {
      for (size_t i = first; i < last; ++i) {
        const int segments = plan.tiles[i].segments(), pieces = plan.tiles[i].pieces;
        for (int p = 0; p < pieces; ++p) {
          plan.items.push_back(
              {static_cast<int32_t>(i), h, segments * p / pieces, segments * (p + 1) / pieces});
        }
      }
    }
  }
}

}  // namespace paceline
