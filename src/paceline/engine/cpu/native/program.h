// Which phases a step has, in order.
#pragma once

#include <vector>

#include "abi.h"
#include "inputs.h"

namespace paceline {

enum class Stage {
  embed,     // rows of the embedding, which become the residual stream
  qkv,       // queries, keys and values
  store,     // norms of heads, rotary embedding, keys and values into their pages
  attend,    // attention over the pages
  quantise,  // what attention found, for the matrix that follows
  out,       // the attention's last matrix, added to the residual stream
  gate_up,   // the first half of SwiGLU
  down,      // its second half, added to the residual stream
  head,      // logits
  draw,      // tokens from logits
};

struct Place {
  Stage stage;
  int layer;
};

// Up to so many rows every thread quantises what attention found for itself, which takes less time than a phase.
constexpr int kOwnRows = 4;

// `rows` of the last layer are those whose logits are wanted: nobody attends to the others. Without any, the last layer
// only stores its keys and values.
inline std::vector<Place> plan_program(int layers, int rows, int logits, bool draws) {
  std::vector<Place> program{{Stage::embed, 0}};
  for (int layer = 0; layer < layers; ++layer) {
    const bool last = layer == layers - 1;
    program.push_back({Stage::qkv, layer});
    program.push_back({Stage::store, layer});
    if (last && logits == 0) return program;
    program.push_back({Stage::attend, layer});
    if ((last ? logits : rows) > kOwnRows) program.push_back({Stage::quantise, layer});
    program.push_back({Stage::out, layer});
    program.push_back({Stage::gate_up, layer});
    program.push_back({Stage::down, layer});
  }
  program.push_back({Stage::head, 0});
  if (draws) program.push_back({Stage::draw, 0});
  return program;
}

}  // namespace paceline
