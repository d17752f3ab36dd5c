// Threads that run a program of phases: a phase begins when all items of the phase before it are done.
//
// There is no barrier, for at a barrier everybody waits until the kernel has given every thread a core. Here items decide:
// a phase is over when its items are done, whoever did them. Each thread has a share of every phase, so that it reads
// neighbouring weights, and takes from the shares of others when its own is used up. Who comes late finds phases that are
// over, or items left, and is waited for only while an item is in its hands.
//
// Items are numbered through all phases of all runs, so that every counter only ever grows and an old number never comes
// back: a thread that was away for any length of time cannot claim what is over.
#pragma once

#include <pthread.h>
#include <signal.h>

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <memory>
#include <mutex>
#include <thread>
#include <vector>

namespace paceline {

// `run` computes one item. Items of a phase run in any order, on any thread, at once; `thread` is below Team::threads(),
// and no two of one number run at once.
struct Phase {
  int items;
  void (*run)(void *context, int phase, int item, int thread);
};

// Tells the core that a loop waits for another core.
inline void pause_core() {
#if defined(__x86_64__) || defined(__i386__)
  __builtin_ia32_pause();
#elif defined(__aarch64__) || defined(__arm__)
  asm volatile("yield");
#endif
}

class Team {
 public:
  // The caller of `run` is one of `threads`, the others start here. Throws std::system_error when one cannot.
  explicit Team(int threads);
  ~Team();
  Team(const Team &) = delete;
  Team &operator=(const Team &) = delete;

  int threads() const { return threads_; }

  // Returns when all items of all phases are done. What the items wrote is then visible to the caller. One caller at a
  // time.
  void run(const Phase *phases, int count, void *context);

 private:
  static constexpr size_t kLine = 128;  // what cores hand each other at once: a line, or on some a pair of them

  // How long a thread looks for a change before it sleeps: as long as it takes to be woken, so that waiting costs at
  // most twice what the better of both would. A helper looks also for the next step, which its caller prepares meanwhile.
  static constexpr std::chrono::microseconds kSpin{20};
  static constexpr int kPausesPerClock = 16;

  // The next item of a share that nobody has claimed. It is below the share's part of a phase until that is touched.
  struct alignas(kLine) Share {
    std::atomic<uint64_t> next{0};
  };

  // A phase as a helper may read it while the next run is written over it; `look` says whether what it read is true.
  struct Slot {
    std::atomic<uint64_t> begin{0}, end{0};  // numbers of its items
    std::atomic<int> phase{0};
    std::atomic<decltype(Phase::run)> run{nullptr};
  };

  struct Program {
    explicit Program(int capacity) : slots(new Slot[size_t(capacity)]), capacity(capacity) {}
    std::unique_ptr<Slot[]> slots;
    int capacity;
    std::atomic<void *> context{nullptr};
  };

  // A copy of a slot that was true when it was made.
  struct Open {
    uint64_t begin, end;
    int phase;
    decltype(Phase::run) run;
    void *context;
  };

  void help(int thread);
  void walk(const Program &program, uint64_t goal, int thread);
  bool look(const Program &program, const Slot &slot, uint64_t goal, Open *open) const;
  uint64_t work(const Open &open, int thread);
  bool claim(Share &share, uint64_t begin, uint64_t end, uint64_t *item);
  void wait_until_done(uint64_t end);
  void stop();

  template <typename Condition>
  static bool spin(Condition condition);

  const int threads_;
  std::vector<std::thread> helpers_;
  std::unique_ptr<Share[]> shares_;

  // Programs only become longer, and a late helper may still read one that was replaced: all are kept.
  std::vector<std::unique_ptr<Program>> programs_;

  alignas(kLine) std::atomic<uint64_t> done_{0};  // items, of all runs
  std::atomic<int> waiting_{0};                   // threads asleep until a phase is over

  alignas(kLine) std::atomic<uint64_t> goal_{0};  // what `done_` will be at the end of the run
  std::atomic<const Program *> program_{nullptr};
  std::atomic<bool> stopping_{false};
  std::atomic<int> resting_{0};  // helpers asleep until the next run

  alignas(kLine) std::mutex mutex_;
  std::condition_variable phase_over_, run_begun_;
};

inline Team::Team(int threads) : threads_(threads), shares_(new Share[size_t(threads)]) {
  // Signals are for the threads that know of them.
  sigset_t all, before;
  sigfillset(&all);
  pthread_sigmask(SIG_SETMASK, &all, &before);
  try {
    for (int thread = 1; thread < threads; ++thread) helpers_.emplace_back(&Team::help, this, thread);
  } catch (...) {
    pthread_sigmask(SIG_SETMASK, &before, nullptr);
    stop();
    throw;
  }
  pthread_sigmask(SIG_SETMASK, &before, nullptr);
}

inline Team::~Team() { stop(); }

inline void Team::stop() {
  {
    std::lock_guard<std::mutex> lock(mutex_);
    stopping_.store(true);
  }
  run_begun_.notify_all();
  for (std::thread &helper : helpers_) helper.join();
}

inline void Team::run(const Phase *phases, int count, void *context) {
  if (threads_ == 1) {
    for (int phase = 0; phase < count; ++phase) {
      for (int item = 0; item < phases[phase].items; ++item) phases[phase].run(context, phase, item, 0);
    }
    return;
  }
  if (programs_.empty() || programs_.back()->capacity < count) {
    programs_.push_back(std::make_unique<Program>(2 * count));
    program_.store(programs_.back().get(), std::memory_order_release);
  }
  Program &program = *programs_.back();
  // Each store releases what this thread knows, that the last run is over: who reads it here sees that in `look`.
  program.context.store(context, std::memory_order_release);
  uint64_t number = done_.load(std::memory_order_acquire);
  Slot *slot = program.slots.get();
  for (int phase = 0; phase < count; ++phase) {
    if (phases[phase].items == 0) continue;
    slot->begin.store(number, std::memory_order_release);
    number += uint64_t(phases[phase].items);
    slot->end.store(number, std::memory_order_release);
    slot->phase.store(phase, std::memory_order_release);
    slot->run.store(phases[phase].run, std::memory_order_release);
    ++slot;
  }
  if (slot == program.slots.get()) return;
  goal_.store(number);
  if (resting_.load() > 0) {
    // Whoever rests has seen the old goal under the lock, or will see the new one.
    { std::lock_guard<std::mutex> lock(mutex_); }
    run_begun_.notify_all();
  }
  walk(program, number, 0);
}

inline void Team::help(int thread) {
  uint64_t last = 0;
  while (true) {
    const auto begun = [&] { return goal_.load() != last || stopping_.load(); };
    if (!spin(begun)) {
      std::unique_lock<std::mutex> lock(mutex_);
      resting_.fetch_add(1);
      run_begun_.wait(lock, begun);
      resting_.fetch_sub(1);
    }
    if (stopping_.load()) return;
    last = goal_.load();
    walk(*program_.load(std::memory_order_acquire), last, thread);
  }
}

// Through all phases of the run that ends at `goal`, or what is left of them.
inline void Team::walk(const Program &program, uint64_t goal, int thread) {
  Open open;
  for (int i = 0; i < program.capacity && look(program, program.slots[i], goal, &open); ++i) {
    if (open.run == nullptr) continue;
    if (const uint64_t items = work(open, thread)) {
      if (done_.fetch_add(items) + items == open.end && waiting_.load() > 0) {
        { std::lock_guard<std::mutex> lock(mutex_); }
        phase_over_.notify_all();
      }
    }
    wait_until_done(open.end);
  }
}

// False when the run is over. Otherwise `open` is the phase, without `run` when that is over.
inline bool Team::look(const Program &program, const Slot &slot, uint64_t goal, Open *open) const {
  *open = {slot.begin.load(std::memory_order_acquire), slot.end.load(std::memory_order_acquire),
           slot.phase.load(std::memory_order_acquire), slot.run.load(std::memory_order_acquire),
           program.context.load(std::memory_order_acquire)};
  // A later run is written only when this one is over. So what was read is of this run if that is not over now.
  const uint64_t done = done_.load(std::memory_order_acquire);
  if (done >= open->end) open->run = nullptr;
  return done < goal;
}

// Computes what is left of the phase; returns how many items that were.
inline uint64_t Team::work(const Open &open, int thread) {
  const uint64_t items = open.end - open.begin, threads = uint64_t(threads_);
  uint64_t finished = 0;
  for (int i = 0; i < threads_; ++i) {
    const uint64_t owner = uint64_t(thread + i) % threads;
    const uint64_t begin = open.begin + items * owner / threads;
    const uint64_t end = open.begin + items * (owner + 1) / threads;
    for (uint64_t item; claim(shares_[owner], begin, end, &item); ++finished) {
      open.run(open.context, open.phase, int(item - open.begin), thread);
    }
  }
  return finished;
}

// Takes the next item of [begin, end), a phase's part of a share, if there is one.
inline bool Team::claim(Share &share, uint64_t begin, uint64_t end, uint64_t *item) {
  uint64_t next = share.next.load(std::memory_order_relaxed);
  do {
    *item = next < begin ? begin : next;
    if (*item >= end) return false;
  } while (!share.next.compare_exchange_weak(next, *item + 1, std::memory_order_relaxed));
  return true;
}

inline void Team::wait_until_done(uint64_t end) {
  const auto over = [&] { return done_.load() >= end; };
  if (spin(over)) return;
  std::unique_lock<std::mutex> lock(mutex_);
  waiting_.fetch_add(1);
  phase_over_.wait(lock, over);
  waiting_.fetch_sub(1);
}

// Whether `condition` came true soon.
template <typename Condition>
bool Team::spin(Condition condition) {
  if (condition()) return true;
  const auto until = std::chrono::steady_clock::now() + kSpin;
  do {
    for (int i = 0; i < kPausesPerClock; ++i) {
      pause_core();
      if (condition()) return true;
    }
  } while (std::chrono::steady_clock::now() < until);
  return false;
}

}  // namespace paceline
