// Threads that go through many short pieces of work together, with one start for all of them.
//
// Starting threads for each product of a layer costs as much as the smaller products take. A team is started once: every
// member runs the same function, and where it says `each`, the members share the items and wait for each other. What is
// computed does not depend on their number.
#pragma once

#include <algorithm>
#include <atomic>
#include <exception>
#include <thread>

#include "tensors.h"

namespace caw {

class Team {
 public:
  // f(team) in `members` threads at most, all at once. What one of them throws is thrown here; the others stop waiting.
  template <class F>
  static void run(int64_t members, const F& f) {
    Shared shared{members < 1 ? 1 : members};
    const auto member = [&](int64_t first, int64_t last) {
      Team team(shared, first, last);
      try {
        f(team);
      } catch (...) {
        if (!shared.failed.exchange(true)) shared.error = std::current_exception();
      }
    };
    if (members <= 1) {
      member(0, 1);
    } else {
      torch::stable::parallel_for(0, members, 1, member);
    }
    if (shared.error) std::rethrow_exception(shared.error);
  }

  // How many members `work` nanoseconds are worth.
  static int64_t worth(int64_t work) {
    const int64_t most = work / kWorthAThread;
    return most < 2 ? 1 : std::min(most, int64_t(torch::stable::get_num_threads()));
  }

  // f(begin, end) over this member's share of [0, count); returns when all shares are done.
  template <class F>
  void each(int64_t count, const F& f) {
    const int64_t begin = count * first_ / shared_.members, end = count * last_ / shared_.members;
    if (begin < end) f(begin, end);
    wait();
  }

 private:
  struct Shared {
    int64_t members;
    std::atomic<int64_t> arrived{0};
    std::atomic<uint32_t> turn{0};
    std::atomic<bool> failed{false};
    std::exception_ptr error = nullptr;
  };
  struct Stopped : std::exception {};

  static constexpr int kSpins = 2000;  // looks before the processor is offered to others; about 50 us

  // A thread may stand for several members: threads may be fewer than were asked for.
  Team(Shared& shared, int64_t first, int64_t last) : shared_(shared), first_(first), last_(last) {}

  void wait() {
    if (last_ - first_ == shared_.members) return;
    const uint32_t turn = shared_.turn.load(std::memory_order_acquire);
    if (shared_.arrived.fetch_add(last_ - first_, std::memory_order_acq_rel) + last_ - first_ == shared_.members) {
      shared_.arrived.store(0, std::memory_order_relaxed);
      shared_.turn.store(turn + 1, std::memory_order_release);
      return;
    }
    for (int looks = 0; shared_.turn.load(std::memory_order_acquire) == turn; ++looks) {
      if (shared_.failed.load(std::memory_order_relaxed)) throw Stopped();
      if (looks < kSpins) {
        pause();
      } else {
        std::this_thread::yield();
      }
    }
  }

  static void pause() {
#if defined(__x86_64__)
    __builtin_ia32_pause();
#endif
  }

  Shared& shared_;
  int64_t first_, last_;
};

}  // namespace caw
