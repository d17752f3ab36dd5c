// Rows into pages and attention over them, for test_attention.py.
#include "attention.h"

#include <atomic>
#include <thread>
#include <vector>

#include "rope.h"

#define EXPORT extern "C" __attribute__((visibility("default")))

using namespace paceline;

EXPORT int lanes() { return kLanes; }

// `count` is a multiple of kLanes.
EXPORT void exponentials(const float *x, float *y, int count) {
  for (int i = 0; i < count; i += kLanes) store(y + i, exp(load(x + i)));
}

// x: [kLanes]
EXPORT float sum(const float *x) { return reduce_add(load(x)); }

// `count` codes of a format, a multiple of 4 * kLanes, by both ways to widen them: as they lie, and those
// that lie 4 bytes apart. e4m3 times its unit. 3 bytes before the codes are read.
EXPORT void widened(bool e4m3, const uint8_t *codes, int count, float *out, float *apart) {
  const Vf unit = broadcast(e4m3 ? kE4m3Unit : 1.0f);
  const int per = e4m3 ? 4 : 2;
  for (int i = 0; i < count; i += kLanes) {
    store(out + i,
          unit * (e4m3 ? load_e4m3(codes + i) : load_bf16(reinterpret_cast<const uint16_t *>(codes) + i)));
  }
  for (int i = 0; i < count; i += per * kLanes) {
    for (int part = 0; part < per; ++part) {
      const uint8_t *first = codes + (i + part) * 4 / per;
      float lanes[kLanes];
      store(lanes, unit * (e4m3 ? load_e4m3_apart(first) : load_bf16_apart(first)));
      for (int l = 0; l < kLanes; ++l) apart[i + l * per + part] = lanes[l];
    }
  }
}

EXPORT void store_rows(const PlModel *model, const PlStep *step, int layer, uint8_t *pages, int64_t count,
                       int64_t page_bytes, float *qkv) {
  const Pages pool{pages, count, page_bytes};
  Rotations rotations;
  rotations.compute(*model, step->positions, step->tokens_count);
  const ptrdiff_t width = (model->heads + 2 * model->kv_heads) * model->head_dim;
  for (int t = 0; t < step->tokens_count; ++t) {
    rotate_and_store(*model, model->layer[layer], rotations, t, step->slots[t], pool, qkv + t * width);
  }
}

EXPORT void copy_slots(const PlModel *model, uint8_t *pages, int64_t count, int64_t page_bytes, int64_t from,
                       int64_t to) {
  copy_slot(*model, {pages, count, page_bytes}, from, to);
}

// Attends twice, as two layers of a step do. Returns the number of items.
EXPORT int attend(const PlModel *model, const PlStep *step, int layer, uint8_t *pages, int64_t count,
                  int64_t page_bytes, const float *qkv, float *out, int thread_count) {
  const Pages pool{pages, count, page_bytes};
  Attention attention;
  attention.plan(*step, *model, thread_count);
  for (int round = 0; round < 2; ++round) {
    std::atomic<int> next{0};
    std::vector<std::thread> threads;
    for (int t = 0; t < thread_count; ++t) {
      threads.emplace_back([&, t] {
        for (int item; (item = next.fetch_add(1)) < attention.items();) {
          attention.run(item, t, model->layer[layer], pool, qkv, out);
        }
      });
    }
    for (std::thread &thread : threads) thread.join();
  }
  return attention.items();
}
