// The library: everything that Python calls.
#include "abi.h"
#include "engine.h"
#include "pack.h"

struct PlEngine {
  paceline::Engine engine;
};

extern "C" {

PlEngine *pl_open(const PlModel *model, int32_t threads) { return new PlEngine{paceline::Engine(*model, threads)}; }

void pl_bind(PlEngine *engine, uint8_t *pages, int64_t count, int64_t page_bytes) {
  engine->engine.bind(pages, count, page_bytes);
}

void pl_step(PlEngine *engine, const PlStep *step) { engine->engine.run(*step); }

void pl_close(PlEngine *engine) { delete engine; }
}
