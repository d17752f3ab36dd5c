// Causal attention over pages, with grouped queries (Ainslie et al. 2023) and trees of drafts.
//
// See attention_plan.h for what a row sees and how work is cut; attention_direct.h and attention_tile.h for
// the products.
#pragma once

#include <algorithm>
#include <atomic>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "abi.h"
#include "attention_plan.h"
#include "attention_segment.h"
#include "kv.h"
#include "scratch.h"

namespace paceline {

// The attention of a step: `plan` it, then in each layer `run` every item once, from any thread.
class Attention {
 public:
  void plan(const PlStep &step, const PlModel &model, int threads) {
    step_ = step;
    model_ = model;
    plan_attention(step, model, threads, plan_);
    scratch_.resize(std::max(scratch_.size(), static_cast<size_t>(threads)));
    partials_.require(static_cast<size_t>(plan_.partials * AttentionState::size(padded(model.head_dim))));
    if (counters_count_ < plan_.counters) {
      counters_count_ = plan_.counters;
      counters_ = std::make_unique<std::atomic<int>[]>(static_cast<size_t>(counters_count_));
    }
    for (const AttentionTile &tile : plan_.tiles) {
      for (int h = 0; tile.pieces > 1 && h < model.kv_heads; ++h)
        counters_[size_t(tile.counter + h)] = tile.pieces;
    }
  }

  int items() const { return static_cast<int>(plan_.items.size()); }

  // qkv: [T][heads + 2 * kv_heads][head_dim], whose queries are ready and whose keys and values are stored
  // out: [T][heads][head_dim]
  void run(int index, int thread, const PlLayer &layer, const Pages &pages, const float *qkv, float *out) {
    const AttentionItem &item = plan_.items[static_cast<size_t>(index)];
    const AttentionTile &tile = plan_.tiles[static_cast<size_t>(item.tile)];
    AttentionScratch &scratch = scratch_[static_cast<size_t>(thread)];
    const TileAttention part(model_, step_, plan_, tile, item.kv_head, layer, pages, scratch);

    const bool layer_scales = model_.kv == PL_KV_E4M3;
    const float key_scale = layer_scales ? layer.k_scale : 1.0f,
                value_scale = layer_scales ? layer.v_scale : 1.0f;
    const ptrdiff_t first = ptrdiff_t{item.kv_head} * (model_.heads / model_.kv_heads) * model_.head_dim;
    const ptrdiff_t out_stride = ptrdiff_t{model_.heads} * model_.head_dim;
    const ptrdiff_t qkv_stride = out_stride + ptrdiff_t{2} * model_.kv_heads * model_.head_dim;
    const float softmax_scale = 1.0f / std::sqrt(static_cast<float>(model_.head_dim));
    part.load_queries(qkv + first, qkv_stride, softmax_scale * key_scale);

    const ptrdiff_t segment_size = part.queries() * part.state_size();
    float *states = scratch.merged.get();
    if (tile.pieces == 1) {
      part.attend(0, upcoming(index, 0), states);
      for (int s = 1; s < item.segment_end; ++s) {
        part.attend(s, upcoming(index, s), scratch.found.get());
        part.merge(states, scratch.found.get());
      }
    } else {
      states =
          partials_.get() + tile.partials * part.state_size() + item.kv_head * tile.segments() * segment_size;
      for (int s = item.segment_begin; s < item.segment_end; ++s) {
        part.attend(s, upcoming(index, s), states + s * segment_size);
      }
      std::atomic<int> &left = counters_[static_cast<size_t>(tile.counter + item.kv_head)];
      if (left.fetch_sub(1, std::memory_order_acq_rel) > 1) return;
      left.store(tile.pieces, std::memory_order_relaxed);  // for the next layer
      for (int s = 1; s < tile.segments(); ++s) part.merge(states, states + s * segment_size);
    }
    part.finish(states, value_scale, out + first, out_stride);
  }

 private:
  // What the thread that has the item reads after one of its segments, most likely.
  Upcoming upcoming(int index, int segment) const {
    const AttentionItem *item = &plan_.items[static_cast<size_t>(index)];
    int begin = (segment + 1) * kSegment;
    if (segment + 1 == item->segment_end) {
      if (index + 1 == items()) return {nullptr, 0, 0, 0};
      ++item;
      begin = item->segment_begin * kSegment;
    }
    const AttentionTile &tile = plan_.tiles[static_cast<size_t>(item->tile)];
    return {step_.page_table + ptrdiff_t{tile.sequence} * step_.table_width, item->kv_head, begin,
            tile.widest};
  }

  PlStep step_{};
  PlModel model_{};
  AttentionPlan plan_;
  std::vector<AttentionScratch> scratch_;
  Buffer<float> partials_;
  std::unique_ptr<std::atomic<int>[]> counters_;
  int32_t counters_count_ = 0;
};

}  // namespace paceline
