// The lists other systems draw from torch's CPU generator: MT19937 and a forward Fisher-Yates shuffle. Host and device.
//
// torch.randperm(n) under manual_seed(s) on the CPU: for i = 0, 1, ...: z = next() % (n - i); swap(r[i], r[i + z]).
// Only the low 32 bits of a seed count, and the first `count` entries are final after `count` draws. Whether one token
// is among them needs no list: it stays where it is until draw i takes it (r[i + z] is it: found) or meets it (r[i] is
// it: it moves to i + z).
#pragma once

#include "candidates.h"

namespace caw {

constexpr int kStateSize = 624, kStateMiddle = 397;

// The generator of Matsumoto and Nishimura 1998, seeded as torch and NumPy's RandomState do.
struct MersenneTwister {
  uint32_t state[kStateSize];

  CAW_HD explicit MersenneTwister(uint32_t seed) {
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
};

}  // namespace caw
