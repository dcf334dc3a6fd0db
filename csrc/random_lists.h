// The lists other systems draw from torch's CPU generator: MT19937 and a forward Fisher-Yates shuffle. Host and device.
//
// torch.randperm(n) under manual_seed(s) on the CPU: for i = 0, 1, ...: z = next() % (n - i); swap(r[i], r[i + z]).
// Only the low 32 bits of a seed count, and the first `count` entries are final after `count` draws.
#pragma once

#include "candidates.h"

namespace caw {

constexpr int kStateSize = 624, kStateMiddle = 397;

// The generator of Matsumoto and Nishimura 1998, seeded as torch and NumPy's RandomState do.
struct MersenneTwister {
  uint32_t state[kStateSize];
  int used;

  CAW_HD explicit MersenneTwister(uint32_t seed) : used(kStateSize) {
    state[0] = seed;
    for (int j = 1; j < kStateSize; ++j) state[j] = 1812433253u * (state[j - 1] ^ (state[j - 1] >> 30)) + uint32_t(j);
  }

  CAW_HD static uint32_t mixed(uint32_t here, uint32_t next, uint32_t far) {
    const uint32_t bits = (here & 0x80000000u) | (next & 0x7FFFFFFFu);
    return far ^ (bits >> 1) ^ ((next & 1u) ? 0x9908B0DFu : 0u);
  }

  CAW_HD static uint32_t tempered(uint32_t y) {
    y ^= y >> 11;
    y ^= (y << 7) & 0x9D2C5680u;
    y ^= (y << 15) & 0xEFC60000u;
    return y ^ (y >> 18);
  }

  CAW_HD void advance() {
    int j = 0;
    for (; j < kStateSize - kStateMiddle; ++j) state[j] = mixed(state[j], state[j + 1], state[j + kStateMiddle]);
    for (; j < kStateSize - 1; ++j)
      state[j] = mixed(state[j], state[j + 1], state[j + kStateMiddle - kStateSize]);
    state[j] = mixed(state[j], state[0], state[j + kStateMiddle - kStateSize]);
    used = 0;
  }

  CAW_HD uint32_t next() {
    if (used == kStateSize) advance();
    return tempered(state[used++]);
  }
};

// The first `count` entries of the permutation to head[0..count). `order` must hold 0, 1, ..., size - 1 and does so
// again afterwards: only what was moved is put back, which saves writing the whole of it for each seed.
template <class Index>
CAW_HD void draw_permutation(uint32_t seed, int64_t size, int64_t count, Index* order, Index* head) {
  MersenneTwister random(seed);
  for (int64_t i = 0; i < count; ++i) {
    const int64_t at = i + int64_t(random.next() % uint32_t(size - i));
    head[i] = order[at];
    order[at] = order[i];
  }
  // what stands at a position was there from the start unless it was moved: to i by no one, to `at` by a later draw
  for (int64_t i = 0; i < count; ++i) {
    order[i] = Index(i);
    order[head[i]] = head[i];
  }
}

}  // namespace caw
