// Runs programs on a team that can be checked afterwards. Also a program of its own, for the thread sanitizer.
#include "team.h"

#include <sched.h>

#include <cstdio>
#include <cstdlib>
#include <random>

namespace {

using paceline::Phase;
using paceline::Team;

// Items write plain memory: that two threads never meet there is what the team promises.
struct Trial {
  std::vector<int> items;                     // of each phase
  std::vector<std::vector<uint64_t>> values;  // of each item
  std::vector<std::vector<int>> times;        // that each item was run
  std::vector<int> by_thread;                 // items that each thread ran
  std::vector<char> busy;                     // threads that are in an item
  int wrong = 0;
  bool slow = false;  // gives the core away in some items, so that others steal and come late
};

uint64_t mix(uint64_t x) {
  x ^= x >> 30;
  x *= 0xbf58476d1ce4e5b9u;
  x ^= x >> 27;
  return x * 0x94d049bb133111ebu;
}

// Depends on every value of the phase before.
uint64_t value_of(const std::vector<uint64_t> *before, int phase, int item) {
  uint64_t sum = uint64_t(phase) << 32 | uint64_t(item);
  if (before) {
    for (uint64_t value : *before) sum += mix(value);
  }
  return mix(sum);
}

const std::vector<uint64_t> *last_before(const std::vector<std::vector<uint64_t>> &values, int phase) {
  while (--phase >= 0) {
    if (!values[size_t(phase)].empty()) return &values[size_t(phase)];
  }
  return nullptr;
}

void run_item(void *context, int phase, int item, int thread) {
  Trial &trial = *static_cast<Trial *>(context);
  char &busy = trial.busy[size_t(thread)];
  if (busy) std::abort();
  busy = 1;
  const uint64_t value = value_of(last_before(trial.values, phase), phase, item);
  if (trial.slow && value % 7 == 0) sched_yield();
  trial.values[size_t(phase)][size_t(item)] = value;
  ++trial.times[size_t(phase)][size_t(item)];
  ++trial.by_thread[size_t(thread)];
  busy = 0;
}

Trial make_trial(std::mt19937 &random, int threads, int most_phases, int most_items) {
  Trial trial;
  trial.slow = random() % 2;
  trial.by_thread.resize(size_t(threads));
  trial.busy.resize(size_t(threads));
  for (int phase = int(random() % uint32_t(most_phases + 1)); phase > 0; --phase) {
    const size_t items = random() % uint32_t(most_items + 1);
    trial.items.push_back(int(items));
    trial.values.emplace_back(items);
    trial.times.emplace_back(items);
  }
  return trial;
}

bool is_right(const Trial &trial) {
  int ran = 0, wanted = 0;
  for (int count : trial.by_thread) ran += count;
  for (size_t phase = 0; phase < trial.items.size(); ++phase) {
    wanted += trial.items[phase];
    for (int item = 0; item < trial.items[phase]; ++item) {
      if (trial.times[phase][size_t(item)] != 1) return false;
      const auto *before = last_before(trial.values, int(phase));
      if (trial.values[phase][size_t(item)] != value_of(before, int(phase), item)) return false;
    }
  }
  return ran == wanted;
}

struct Meeting {
  std::atomic<int> arrived{0};
  int threads;
  std::vector<int> blocked;  // signals of each thread
};

void meet(void *context, int, int, int thread) {
  Meeting &meeting = *static_cast<Meeting *>(context);
  sigset_t mask;
  pthread_sigmask(SIG_SETMASK, nullptr, &mask);
  int blocked = 0;
  for (int signal : {SIGINT, SIGTERM, SIGHUP, SIGUSR1, SIGUSR2, SIGCHLD, SIGPIPE, SIGALRM}) {
    blocked += sigismember(&mask, signal);
  }
  meeting.blocked[size_t(thread)] = blocked;
  meeting.arrived.fetch_add(1);
  while (meeting.arrived.load() < meeting.threads) sched_yield();
}

struct Delay {
  std::atomic<int> others{0};  // items that are done but the first
  int items;
};

void wait_in_first(void *context, int, int item, int) {
  Delay &delay = *static_cast<Delay *>(context);
  if (item != 0) {
    delay.others.fetch_add(1);
    return;
  }
  while (delay.others.load() < delay.items - 1) sched_yield();
}

}  // namespace

extern "C" {

// How many of `runs` random programs, one after the other on one team, gave anything but what they should.
int wrong_runs(int threads, int runs, int most_phases, int most_items, uint32_t seed) {
  std::mt19937 random(seed);
  Team team(threads);
  int wrong = 0;
  for (int run = 0; run < runs; ++run) {
    Trial trial = make_trial(random, threads, most_phases, most_items);
    std::vector<Phase> phases;
    for (int items : trial.items) phases.push_back({items, run_item});
    team.run(phases.data(), int(phases.size()), &trial);
    wrong += !is_right(trial);
  }
  return wrong;
}

// A phase of one item for each thread, which ends when all have met in it: the signals, of 8, that each thread blocks.
void blocked_signals(int threads, int *blocked) {
  Team team(threads);
  Meeting meeting;
  meeting.threads = threads;
  meeting.blocked.resize(size_t(threads));
  const Phase phase{threads, meet};
  team.run(&phase, 1, &meeting);
  for (int i = 0; i < threads; ++i) blocked[i] = meeting.blocked[size_t(i)];
}

// A phase whose first item ends when all others are done: returns only when others take them from the first's thread.
void delay_first(int threads, int items) {
  Team team(threads);
  Delay delay;
  delay.items = items;
  const Phase phase{items, wait_in_first};
  team.run(&phase, 1, &delay);
}
}

int main() {
  int wrong = 0;
  for (int threads : {1, 2, 3, 8}) {
    wrong += wrong_runs(threads, 300, 12, 3 * threads, uint32_t(threads));
    std::vector<int> blocked(size_t(threads), 0);
    blocked_signals(threads, blocked.data());
    if (threads > 1) delay_first(threads, 8 * threads);
  }
  std::printf("%d wrong\n", wrong);
  return wrong != 0;
}
