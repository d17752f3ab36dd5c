// The forward pass: what each item of each phase of a step computes.
//
//   h = h + attention(norm(h))
//   h = h + mlp(norm(h))
#pragma once

#include <algorithm>
#include <cstring>
#include <vector>

#include "abi.h"
#include "activations.h"
#include "attention.h"
#include "draw.h"
#include "philox.h"
#include "formats.h"
#include "inputs.h"
#include "kv.h"
#include "linear.h"
#include "program.h"
#include "rope.h"
#include "scratch.h"
#include "team.h"

namespace paceline {

constexpr int kEmbedRows = 8;   // rows of an item of `embed`, `store` and `quantise`
constexpr int kHeadRows = 64;   // of the vocabulary, in an item of `head`

inline int items_of(int count, int each) { return (count + each - 1) / each; }

// The forms in which a layer's four inputs are wanted.
struct LayerForms {
  Forms attention, out, mlp, down;

  explicit LayerForms(const PlLayer &layer) {
    for (const PlMatrix *m : {&layer.q, &layer.k, &layer.v}) attention.add(*m);
    out.add(layer.out);
    for (const PlMatrix *m : {&layer.gate, &layer.up}) mlp.add(*m);
    down.add(layer.down);
  }
};

// What a thread has for itself.
struct Own {
  Buffer<float> first, second;  // [T][32] of a product before it is added or activated
  Buffer<float> factors;        // [T] of RMSNorm
  int factors_of = -1;          // the phase for which they were computed
  Input attended;               // what attention found, when every thread quantises it
  int attended_of = -1;
};

class Engine {
 public:
  Engine(const PlModel &model, int threads)
      : model_(model), layers_(model.layer, model.layer + model.layers), team_(threads), own_(size_t(threads)) {
    model_.layer = layers_.data();
    for (const PlLayer &layer : layers_) forms_.emplace_back(layer);
    final_.add(model_.head);
  }

  void bind(uint8_t *pages, int64_t count, int64_t page_bytes) { pages_ = {pages, count, page_bytes}; }

  void run(const PlStep &step) {
    for (int m = 0; m < step.moves_count; ++m) {
      copy_slot(model_, pages_, step.moves[2 * m], step.moves[2 * m + 1]);
    }
    if (step.tokens_count == 0) return;
    begin(step);
    team_.run(phases_.data(), int(phases_.size()), this);
  }

 private:
  int q_width() const { return model_.heads * model_.head_dim; }
  int kv_width() const { return model_.kv_heads * model_.head_dim; }
  int qkv_width() const { return q_width() + 2 * kv_width(); }
  bool is_last(int layer) const { return layer == model_.layers - 1; }
  // Rows that a layer's `out` and MLP compute, and which rows of the step these are: null for all.
  int rows_of(int layer) const { return is_last(layer) ? step_.logits_count : step_.tokens_count; }
  const int32_t *map_of(int layer) const { return is_last(layer) ? step_.logit_rows : nullptr; }

  void begin(const PlStep &step) {
    step_ = step;
    const size_t rows = size_t(step.tokens_count);
    residual_.require(rows * size_t(model_.hidden));
    qkv_.require(rows * size_t(qkv_width()));
    attended_.require(rows * size_t(q_width()));
    normed_.require(int(rows), model_.hidden);
    out_input_.require(int(rows), q_width());
    down_input_.require(int(rows), model_.intermediate);
    for (Own &own : own_) {
      own.first.require(rows * kGroup);
      own.second.require(rows * kGroup);
      own.factors.require(rows);
      own.factors_of = own.attended_of = -1;
    }
    rotations_.compute(model_, step.positions, step.tokens_count);
    attention_.plan(step_, model_, team_.threads());
    places_ = plan_program(model_.layers, step.tokens_count, step.logits_count, step.draws != nullptr);
    phases_.clear();
    for (const Place &place : places_) phases_.push_back({items(place), &Engine::enter});
  }

  int items(const Place &place) const {
    const int rows = step_.tokens_count;
    switch (place.stage) {
      case Stage::embed:
      case Stage::store:
        return items_of(rows, kEmbedRows);
      case Stage::qkv:
        return items_of(q_width(), kGroup) + 2 * items_of(kv_width(), kGroup);
      case Stage::attend:
        return attention_.items();
      case Stage::quantise:
        return items_of(rows_of(place.layer), kEmbedRows);
      case Stage::out:
      case Stage::down:
        return items_of(model_.hidden, kGroup);
      case Stage::gate_up:
        return items_of(model_.intermediate, kGroup);
      case Stage::head:
        return items_of(model_.vocab, kHeadRows);
      case Stage::draw:
        return step_.logits_count;
    }
    return 0;
  }

  static void enter(void *engine, int phase, int item, int thread) {
    static_cast<Engine *>(engine)->item(phase, item, thread);
  }

  void item(int phase, int item, int thread) {
    const auto [stage, layer] = places_[size_t(phase)];
    Own &own = own_[size_t(thread)];
    switch (stage) {
      case Stage::embed:
        return embed(item);
      case Stage::qkv:
        return qkv(phase, layer, item, own);
      case Stage::store:
        return store(layer, item);
      case Stage::attend:
        return attention_.run(item, thread, layers_[size_t(layer)], pages_, qkv_.get(), attended_.get());
      case Stage::quantise:
        return quantise(layer, item);
      case Stage::out:
        return out(phase, layer, item, own);
      case Stage::gate_up:
        return gate_up(phase, layer, item, own);
      case Stage::down:
        return down(layer, item, own);
      case Stage::head:
        return head(phase, item, own);
      case Stage::draw:
        return draw(item);
    }
  }

  void embed(int item) {
    const int end = std::min(step_.tokens_count, (item + 1) * kEmbedRows);
    for (int t = item * kEmbedRows; t < end; ++t) {
      float *x = residual(t);
      dequantise_row(model_.embedding, step_.tokens[t], x);
      for (int g = 0; g < groups_of(model_.hidden); ++g) put_normed(0, Stage::embed, t, t, g);
    }
  }

  void qkv(int phase, int layer, int item, Own &own) {
    const PlLayer &weights = layers_[size_t(layer)];
    const int q_items = items_of(q_width(), kGroup), kv_items = items_of(kv_width(), kGroup);
    const PlMatrix *matrix = &weights.q;
    int column = 0;
    if (item >= q_items + kv_items) {
      matrix = &weights.v, column = q_width() + kv_width(), item -= q_items + kv_items;
    } else if (item >= q_items) {
      matrix = &weights.k, column = q_width(), item -= q_items;
    }
    multiply(*matrix, item, normed_.view(factors(phase, step_.tokens_count, own)), nullptr, step_.tokens_count,
             qkv_.get() + column + item * kGroup, qkv_width());
  }

  void store(int layer, int item) {
    const int end = std::min(step_.tokens_count, (item + 1) * kEmbedRows);
    for (int t = item * kEmbedRows; t < end; ++t) {
      float *row = qkv_.get() + size_t(t) * size_t(qkv_width());
      rotate_and_store(model_, layers_[size_t(layer)], rotations_, t, step_.slots[t], pages_, row);
    }
  }

  void quantise(int layer, int item) {
    const int end = std::min(rows_of(layer), (item + 1) * kEmbedRows);
    for (int i = item * kEmbedRows; i < end; ++i) {
      out_input_.put_row(forms_[size_t(layer)].out, i, attended(layer, i));
    }
  }

  void out(int phase, int layer, int item, Own &own) {
    const int rows = rows_of(layer);
    const Input *input = &out_input_;
    if (rows <= kOwnRows) {
      if (own.attended_of != phase) {
        own.attended.require(rows, q_width());
        for (int i = 0; i < rows; ++i) own.attended.put_row(forms_[size_t(layer)].out, i, attended(layer, i));
        own.attended_of = phase;
      }
      input = &own.attended;
    }
    add(layer, Stage::out, layers_[size_t(layer)].out, item, input->view(nullptr), own);
  }

  void gate_up(int phase, int layer, int item, Own &own) {
    const PlLayer &weights = layers_[size_t(layer)];
    const int rows = rows_of(layer), count = std::min(kGroup, model_.intermediate - item * kGroup);
    const Activations input = normed_.view(factors(phase, rows, own));
    multiply(weights.gate, item, input, nullptr, rows, own.first.get(), kGroup);
    multiply(weights.up, item, input, nullptr, rows, own.second.get(), kGroup);
    for (int i = 0; i < rows; ++i) {
      float *gate = own.first.get() + i * kGroup;
      swiglu(gate, own.second.get() + i * kGroup, count);
      down_input_.put(forms_[size_t(layer)].down, i, item, count, gate);
    }
  }

  void down(int layer, int item, Own &own) {
    add(layer, Stage::down, layers_[size_t(layer)].down, item, down_input_.view(nullptr), own);
  }

  void head(int phase, int item, Own &own) {
    const int rows = step_.logits_count, begin = item * kHeadRows;
    const Activations input = normed_.view(factors(phase, rows, own));
    const int end = std::min(model_.vocab, begin + kHeadRows);
    linear(model_.head, begin, end, input, nullptr, rows, step_.logits + begin, model_.vocab);
  }

  void draw(int row) {
    const PlDraw &wanted = step_.draws[row];
    if (!wanted.wanted) return;
    const double u = uniform(wanted.seed, uint32_t(step_.positions[step_.logit_rows[row]]));
    float *logits = step_.logits + size_t(row) * size_t(model_.vocab);
    if (wanted.mask) exclude(logits, model_.vocab, wanted.mask);
    step_.drawn[row] = draw_token(logits, model_.vocab, wanted, u);
  }

  // One group of a matrix's rows times `rows` rows of `input`.
  void multiply(const PlMatrix &matrix, int item, const Activations &input, const int32_t *map, int rows, float *out,
                int stride) const {
    linear(matrix, item * kGroup, std::min(matrix.rows, (item + 1) * kGroup), input, map, rows, out, stride);
  }

  // The same, added to the residual stream, which is then prepared for whatever comes next.
  void add(int layer, Stage stage, const PlMatrix &matrix, int item, const Activations &input, Own &own) {
    const int rows = rows_of(layer), count = std::min(kGroup, model_.hidden - item * kGroup);
    const int32_t *map = map_of(layer);
    multiply(matrix, item, input, nullptr, rows, own.first.get(), kGroup);
    for (int i = 0; i < rows; ++i) {
      const int t = map ? map[i] : i;
      float *x = residual(t) + item * kGroup;
      const float *y = own.first.get() + i * kGroup;
      for (int c = 0; c < count; ++c) x[c] += y[c];
      put_normed(layer, stage, t, i, item);
    }
  }

  // A group of the residual stream of row `t`, as row `i` of the input of what follows `stage`.
  void put_normed(int layer, Stage stage, int t, int i, int g) {
    const int count = std::min(kGroup, model_.hidden - g * kGroup);
    const float *x = residual(t) + g * kGroup;
    if (stage == Stage::out) {
      normed_.put_normed(forms_[size_t(layer)].mlp, i, g, count, x, layers_[size_t(layer)].mlp_norm);
    } else if (stage == Stage::down && is_last(layer)) {
      normed_.put_normed(final_, i, g, count, x, model_.norm);
    } else {
      const size_t next = stage == Stage::embed ? 0 : size_t(layer) + 1;
      normed_.put_normed(forms_[next].attention, i, g, count, x, layers_[next].attention_norm);
    }
  }

  const float *factors(int phase, int rows, Own &own) const {
    if (own.factors_of != phase) {
      normed_.norm_factors(rows, model_.eps, own.factors.get());
      own.factors_of = phase;
    }
    return own.factors.get();
  }

  float *residual(int t) { return residual_.get() + size_t(t) * size_t(model_.hidden); }

  const float *attended(int layer, int i) const {
    const int t = map_of(layer) ? map_of(layer)[i] : i;
    return attended_.get() + size_t(t) * size_t(q_width());
  }

  PlModel model_;
  std::vector<PlLayer> layers_;
  std::vector<LayerForms> forms_;
  Forms final_;
  Team team_;
  Pages pages_{};

  PlStep step_{};
  std::vector<Place> places_;
  std::vector<Phase> phases_;
  Rotations rotations_;
  Attention attention_;
  Buffer<float> residual_;  // [T][hidden]
  Buffer<float> qkv_;       // [T][(heads + 2 kv_heads) * head_dim]
  Buffer<float> attended_;  // [T][heads * head_dim]
  NormedInput normed_;      // the residual stream
  Input out_input_, down_input_;
  std::vector<Own> own_;
};

}  // namespace paceline
