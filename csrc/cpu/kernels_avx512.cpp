// The kernels for avx512.
#include "kernels_common.h"

#if CAW_X86
#if defined(__clang__)
#pragma clang attribute push(__attribute__((target("avx512f,avx512bw,avx512dq,avx512vl,avx2,fma,f16c"))), apply_to = function)
#else
#pragma GCC push_options
#pragma GCC target("avx512f,avx512bw,avx512dq,avx512vl,avx2,fma,f16c")
#endif
#define CAW_LEVEL 3
namespace caw {
namespace {
#include "set.inc"
}  // namespace
extern const Kernels kAvx512 = CAW_TABLE("avx512");
}  // namespace caw
#if defined(__clang__)
#pragma clang attribute pop
#else
#pragma GCC pop_options
#endif
#endif
