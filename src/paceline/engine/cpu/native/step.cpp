// The steps of an engine; its functions are those of abi.h.
#include <exception>

#include "abi.h"
#include "engine.h"

struct PlEngine {
  paceline::Engine engine;
};

extern "C" {

PlEngine *pl_open(const PlModel *model, int32_t threads) {
  try {
    return new PlEngine{{*model, threads}};
  } catch (const std::exception &) {  // no memory, or no thread
    return nullptr;
  }
}

void pl_bind(PlEngine *engine, uint8_t *pages, int64_t count, int64_t page_bytes) {
  engine->engine.bind(pages, count, page_bytes);
}

void pl_step(PlEngine *engine, const PlStep *step) { engine->engine.run(*step); }

void pl_close(PlEngine *engine) { delete engine; }
}
