// Draws tokens for many numbers at once, and what drawing is made of.
#include "draw.h"
#include "philox.h"

using paceline::Doubles, paceline::kDoubleLanes;

extern "C" {

PL_EXPORT void draw_tokens(const float *logits, int32_t vocab, const PlDraw *how, const double *us, int32_t count,
                           int32_t *tokens) {
  for (int32_t i = 0; i < count; i++) tokens[i] = paceline::draw_token(logits, vocab, *how, us[i]);
}

PL_EXPORT void exclude(float *logits, int32_t vocab, const uint32_t *mask) {
  paceline::exclude(logits, vocab, mask);
}

// `count` is a multiple of 16.
PL_EXPORT void exponentials(const double *x, int32_t count, double *result) {
  for (int32_t i = 0; i < count; i += 2 * kDoubleLanes) {
    Doubles some[2] = {paceline::load_doubles(x + i), paceline::load_doubles(x + i + kDoubleLanes)};
    paceline::exp(some);
    paceline::store_doubles(result + i, some[0]);
    paceline::store_doubles(result + i + kDoubleLanes, some[1]);
  }
}

PL_EXPORT double uniform(uint64_t seed, uint32_t position) {
  return paceline::uniform(seed, position);
}
}
