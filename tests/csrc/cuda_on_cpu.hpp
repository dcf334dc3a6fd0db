// Stands for CUDA's header where a .cu file is compiled for the CPU (cuda_on_cpu.py): blocks run one after another, and a
// block's threads are fibres that take turns, each from one __syncthreads to the next, in an order that a seed shuffles.
//
// A kernel that leaves out a barrier gives other results under other orders; one that reads shared memory before anybody
// wrote it reads garbage, another in each block; threads that wait at different barriers are counted as faults. Compiled
// with the address sanitizer, reads and writes out of bounds are found, those of shared memory too. What does not show:
// races of threads between two barriers that no order of whole stretches brings out, memory ordering, speed.
#pragma once

#include <ucontext.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <memory>
#include <numeric>
#include <utility>
#include <vector>

#if defined(__SANITIZE_ADDRESS__)
#include <sanitizer/common_interface_defs.h>
#define ON_CPU_UNWATCHED __attribute__((no_sanitize_address))
#else
inline void __sanitizer_start_switch_fiber(void**, const void*, size_t) {}
inline void __sanitizer_finish_switch_fiber(void*, const void**, size_t*) {}
#define ON_CPU_UNWATCHED
#endif

#define __global__ static
#define __device__
#define __host__
#define __forceinline__ inline
#define __shared__ static __attribute__((section("caw_shared")))
#define __syncthreads() ::on_cpu::barrier(__LINE__)

struct dim3 {
  unsigned x, y, z;
  dim3(unsigned x = 1, unsigned y = 1, unsigned z = 1) : x(x), y(y), z(z) {}
};
using cudaStream_t = void*;
using cudaError_t = int;
constexpr int cudaSuccess = 0;
inline cudaError_t cudaGetLastError() { return cudaSuccess; }
inline const char* cudaGetErrorString(cudaError_t) { return ""; }

extern "C" char __start_caw_shared[] __attribute__((weak));
extern "C" char __stop_caw_shared[] __attribute__((weak));

namespace on_cpu {

constexpr size_t kStack = 256 << 10;
constexpr int64_t kMostStretches = 1 << 20;  // of a block: a loop that a missing barrier made endless

struct Fibre {
  ucontext_t context;
  std::unique_ptr<char[]> stack;
  void* fake = nullptr;  // the sanitizer's
  int line = 0;          // of the barrier it waits at, 0 = it ended
};

inline dim3 thread, block, threads, grid;
inline std::vector<Fibre> fibres;
inline ucontext_t home;
inline const void* home_stack = nullptr;
inline size_t home_size = 0;
inline unsigned current = 0;
inline std::function<void()> body;
inline uint64_t state = 0;  // of the order; 0 = the threads' own
inline int skipped = 0;     // line of a barrier that nobody waits at: a planted fault
inline int64_t faults = 0;

inline uint64_t next_random() {  // xorshift64
  state ^= state << 13, state ^= state >> 7, state ^= state << 17;
  return state;
}

inline void enter() {
  __sanitizer_finish_switch_fiber(nullptr, &home_stack, &home_size);
  body();
  fibres[current].line = 0;
  __sanitizer_start_switch_fiber(nullptr, home_stack, home_size);
  setcontext(&home);
}

inline void barrier(int line) {
  if (line == skipped) return;
  Fibre& mine = fibres[current];
  mine.line = line;
  __sanitizer_start_switch_fiber(&mine.fake, home_stack, home_size);
  swapcontext(&mine.context, &home);
  __sanitizer_finish_switch_fiber(mine.fake, &home_stack, &home_size);
}

inline void resume(unsigned number) {
  void* fake = nullptr;
  current = number;
  thread = dim3(number, 0, 0);
  __sanitizer_start_switch_fiber(&fake, fibres[number].stack.get(), kStack);
  swapcontext(&home, &fibres[number].context);
  __sanitizer_finish_switch_fiber(fake, nullptr, nullptr);
}

ON_CPU_UNWATCHED inline void spoil_shared_memory(unsigned number) {
  volatile char* place = __start_caw_shared;  // volatile: no call of memset, which the sanitizer would look into
  for (; place != __stop_caw_shared; ++place) *place = char(0x5A + 37 * number);
}

inline void begin(unsigned count) {
  if (fibres.size() < count) fibres.resize(count);
  for (unsigned i = 0; i < count; ++i) {
    Fibre& fibre = fibres[i];
    if (!fibre.stack) fibre.stack.reset(new char[kStack]);
    getcontext(&fibre.context);
    fibre.context.uc_stack.ss_sp = fibre.stack.get();
    fibre.context.uc_stack.ss_size = kStack;
    fibre.context.uc_link = nullptr;
    fibre.line = -1;
    makecontext(&fibre.context, enter, 0);
  }
}

inline void run_block(unsigned count) {
  std::vector<unsigned> order(count);
  std::iota(order.begin(), order.end(), 0u);
  begin(count);
  for (int64_t stretch = 0; !order.empty(); ++stretch) {
    // the first thread last, every other time: what it writes for all is what most barriers guard
    if (state && next_random() % 2) std::sort(order.begin(), order.end(), std::greater<>());
    else
      for (size_t i = order.size() - 1; state && i > 0; --i) std::swap(order[i], order[next_random() % (i + 1)]);
    for (const unsigned number : order) resume(number);
    int line = 0;
    std::vector<unsigned> waiting;
    for (const unsigned number : order) {
      if (!fibres[number].line) continue;
      faults += line && fibres[number].line != line;
      line = fibres[number].line;
      waiting.push_back(number);
    }
    // some have ended and others wait: CUDA lets those go on, but a kernel here that does it is not meant to
    faults += !waiting.empty() && waiting.size() != order.size();
    if (stretch > kMostStretches) std::fprintf(stderr, "a block of threads does not end\n"), std::abort();
    order = waiting;
  }
}

inline void launch(dim3 blocks, dim3 of, const std::function<void()>& kernel) {
  body = kernel, grid = blocks, threads = of;
  for (unsigned y = 0; y < blocks.y; ++y) {
    for (unsigned x = 0; x < blocks.x; ++x) {
      block = dim3(x, y, 0);
      spoil_shared_memory(x + y);
      run_block(of.x);
    }
  }
}

}  // namespace on_cpu

#define threadIdx (::on_cpu::thread)
#define blockIdx (::on_cpu::block)
#define blockDim (::on_cpu::threads)
#define gridDim (::on_cpu::grid)

// threads take turns, so these need no more
template <class T>
T atomicMin(T* place, T value) {
  const T old = *place;
  if (value < old) *place = value;
  return old;
}

template <class T>
T atomicOr(T* place, T value) {
  const T old = *place;
  *place = old | value;
  return old;
}

// what a test sets and reads
extern "C" inline __attribute__((used, visibility("default"))) void on_cpu_order(uint64_t seed) { on_cpu::state = seed; }
extern "C" inline __attribute__((used, visibility("default"))) void on_cpu_skip(int line) { on_cpu::skipped = line; }
extern "C" inline __attribute__((used, visibility("default"))) int64_t on_cpu_faults() {
  return std::exchange(on_cpu::faults, 0);
}
