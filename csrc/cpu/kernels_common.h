// What every build of the kernels includes before CAW_BEGIN_TARGET, so that shared code stays baseline.
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

// The newest instructions that are built: 2 = AVX2, 3 = AVX-VNNI, 4 = AVX-512, 5 = AMX. A build in the checkout has its
// processor's; one with AVX-512 never uses AVX-VNNI.
#ifndef CAW_NEWEST
#define CAW_NEWEST 5
#endif
#define CAW_BUILDS_DOTS (CAW_X86 && (CAW_NEWEST == 3 || CAW_NEWEST == 5))
#define CAW_BUILDS_AVX512 (CAW_X86 && CAW_NEWEST >= 4)
#if defined(__linux__)  // which hands out tiles on request
#define CAW_BUILDS_AMX (CAW_X86 && CAW_NEWEST >= 5)
#else
#define CAW_BUILDS_AMX 0
#endif

// Between the two, functions may use the instructions of `features`.
#define CAW_PRAGMA(...) _Pragma(#__VA_ARGS__)
#if defined(__clang__)
#define CAW_BEGIN_TARGET(features) CAW_PRAGMA(clang attribute push(__attribute__((target(features))), apply_to = function))
#define CAW_END_TARGET CAW_PRAGMA(clang attribute pop)
#else
#define CAW_BEGIN_TARGET(features) CAW_PRAGMA(GCC push_options) CAW_PRAGMA(GCC target(features))
#define CAW_END_TARGET CAW_PRAGMA(GCC pop_options)
#endif

namespace caw {
static inline float bits_to_float(uint32_t bits) {
  float x;
  __builtin_memcpy(&x, &bits, 4);
  return x;
}
}  // namespace caw
