// What every build of the kernels includes before its target pragma, so that shared code stays baseline.
#pragma once

#include <cmath>
#include <cstdint>
#include <cstring>

#include "../candidates.h"
#include "../random_lists.h"
#include "kernels.h"

#if (defined(__x86_64__) || defined(_M_X64)) && defined(__GNUC__)
#define CAW_X86 1
#include <immintrin.h>
#else
#define CAW_X86 0
#endif

namespace caw {
static inline float bits_to_float(uint32_t bits) {
  float x;
  __builtin_memcpy(&x, &bits, 4);
  return x;
}
}  // namespace caw
