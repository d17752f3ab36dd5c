// Steps like those of SmolLM2-135M at batch 1, on a team and, for comparison, on threads that meet at a barrier.
#include "team.h"

#include <time.h>

#include <cstring>

namespace {

using paceline::Phase;
using Clock = std::chrono::steady_clock;

typedef uint64_t Lanes __attribute__((vector_size(32), aligned(16), may_alias));

// What an item does: reads so many bytes, as a product reads its weights, and computes for so many rounds.
struct Kind {
  int items, bytes, rounds;
};

constexpr int kGroupBytes = 20, kColumns = 576, kIntermediate = 1536, kRows = 32;
constexpr int kNarrow = kRows * kColumns / 32 * kGroupBytes, kWide = kRows * kIntermediate / 32 * kGroupBytes;
constexpr Kind kLayer[] = {
    {30, kNarrow, 0},      // queries, keys and values
    {1, 0, 400},           // rotary embedding
    {9, 0, 800},           // attention
    {18, kNarrow, 0},      // its last matrix
    {48, 2 * kNarrow, 0},  // gate and up
    {18, kWide, 0},        // down
};
constexpr int kLayers = 30;
constexpr Kind kHead = {768, 64 * kColumns / 32 * 34, 0};

struct Work {
  std::vector<uint8_t> weights;
  std::vector<Phase> phases;
  std::vector<Kind> kinds;
  std::vector<size_t> offsets;
  struct alignas(128) Sink {
    uint64_t sum = 0;
  };
  std::vector<Sink> sinks;
};

void run_item(void *context, int phase, int item, int thread) {
  Work &work = *static_cast<Work *>(context);
  const Kind &kind = work.kinds[size_t(phase)];
  const uint8_t *p = work.weights.data() + work.offsets[size_t(phase)] + size_t(item) * size_t(kind.bytes);
  Lanes sums[2] = {};
  const Lanes *lanes = reinterpret_cast<const Lanes *>(p);
  for (const Lanes *end = lanes + size_t(kind.bytes) / sizeof(Lanes); lanes < end; lanes += 2) {
    sums[0] += lanes[0];
    sums[1] += lanes[1];
  }
  uint64_t all = uint64_t(item) + sums[0][0] + sums[1][0];
  for (int round = 0; round < kind.rounds; ++round) all = all * 6364136223846793005u + 1;
  work.sinks[size_t(thread)].sum += all;
}

Work make_work(int threads) {
  Work work;
  work.sinks.resize(size_t(threads));
  size_t bytes = 0;
  const auto add = [&](const Kind &kind) {
    work.kinds.push_back(kind);
    work.phases.push_back({kind.items, run_item});
    work.offsets.push_back(bytes);
    bytes += size_t(kind.items) * size_t(kind.bytes);
  };
  for (int layer = 0; layer < kLayers; ++layer) {
    for (const Kind &kind : kLayer) add(kind);
  }
  add(kHead);
  work.weights.resize(bytes, 1);
  return work;
}

// Fixed shares, and a barrier after each phase at which everybody spins: as good as it gets while every thread has a core.
class Barrier {
 public:
  explicit Barrier(int threads) : threads_(threads) {
    for (int thread = 1; thread < threads; ++thread) {
      helpers_.emplace_back([this, thread] {
        for (int run = 1;; ++run) {
          while (run_.load(std::memory_order_acquire) < run) paceline::pause_core();
          if (stopping_) return;
          walk(thread);
        }
      });
    }
  }

  ~Barrier() {
    stopping_ = true;
    run_.fetch_add(1);
    for (std::thread &helper : helpers_) helper.join();
  }

  void run(const Phase *phases, int count, void *context) {
    phases_ = phases;
    count_ = count;
    context_ = context;
    run_.fetch_add(1, std::memory_order_release);
    walk(0);
  }

 private:
  void walk(int thread) {
    for (int phase = 0; phase < count_; ++phase) {
      const int items = phases_[phase].items;
      for (int item = items * thread / threads_; item < items * (thread + 1) / threads_; ++item) {
        phases_[phase].run(context_, phase, item, thread);
      }
      const int met = met_.load(std::memory_order_relaxed);
      if (arrived_.fetch_add(1, std::memory_order_acq_rel) == threads_ - 1) {
        arrived_.store(0, std::memory_order_relaxed);
        met_.store(met + 1, std::memory_order_release);
      } else {
        while (met_.load(std::memory_order_acquire) == met) paceline::pause_core();
      }
    }
  }

  const int threads_;
  std::vector<std::thread> helpers_;
  const Phase *phases_ = nullptr;
  int count_ = 0;
  void *context_ = nullptr;
  bool stopping_ = false;
  alignas(128) std::atomic<int> run_{0};
  alignas(128) std::atomic<int> arrived_{0};
  alignas(128) std::atomic<int> met_{0};
};

double seconds_since(Clock::time_point began) {
  return std::chrono::duration<double>(Clock::now() - began).count();
}

double cpu_seconds() {
  timespec now;
  clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &now);
  return double(now.tv_sec) + 1e-9 * double(now.tv_nsec);
}

// What a caller wants to know of some steps.
struct Steps {
  double *seconds;  // [most] of each step
  int most;
  double budget_s;  // after that no step begins
  double cpu_s;     // of this process, in all
  double wall_s;
};

// Steps with `gap_s` of one thread's work between them; returns how many.
template <typename Threads>
int measure(Threads &threads, Work &work, double gap_s, Steps *steps) {
  const double began_cpu = cpu_seconds();
  const auto began = Clock::now();
  int step = 0;
  for (; step < steps->most && seconds_since(began) < steps->budget_s; ++step) {
    for (const auto gap_began = Clock::now(); seconds_since(gap_began) < gap_s;) {
    }
    const auto step_began = Clock::now();
    threads.run(work.phases.data(), int(work.phases.size()), &work);
    steps->seconds[step] = seconds_since(step_began);
  }
  steps->wall_s = seconds_since(began);
  steps->cpu_s = cpu_seconds() - began_cpu;
  return step;
}

void nothing(void *, int, int, int) {}

// Seconds of runs of `count` phases that have two items each, which do nothing.
template <typename Threads>
void measure_empty(Threads &threads, int count, int runs, double *seconds) {
  const std::vector<Phase> phases(size_t(count), {2, nothing});
  for (int run = 0; run < runs; ++run) {
    const auto began = Clock::now();
    threads.run(phases.data(), count, nullptr);
    seconds[run] = seconds_since(began);
  }
}

}  // namespace

extern "C" {

int time_steps(int barrier, int threads, double gap_s, Steps *steps) {
  Work work = make_work(threads);
  if (barrier) {
    Barrier reference(threads);
    return measure(reference, work, gap_s, steps);
  }
  paceline::Team team(threads);
  return measure(team, work, gap_s, steps);
}

void time_phases(int barrier, int threads, int phases, int runs, double *seconds) {
  if (barrier) {
    Barrier reference(threads);
    return measure_empty(reference, phases, runs, seconds);
  }
  paceline::Team team(threads);
  measure_empty(team, phases, runs, seconds);
}
}
