// small_linear for avx2.
#include "kernels_common.h"
#include "linear.h"

#if CAW_X86
#if defined(__clang__)
#pragma clang attribute push(__attribute__((target("avx2,fma,f16c"))), apply_to = function)
#else
#pragma GCC push_options
#pragma GCC target("avx2,fma,f16c")
#endif
#define CAW_LEVEL 2
namespace caw {
namespace {
#include "simd.inc"

#include "linear.inc"
}  // namespace
extern const LinearKernel kLinearAvx2 = {nullptr, linear};
}  // namespace caw
#if defined(__clang__)
#pragma clang attribute pop
#else
#pragma GCC pop_options
#endif
#endif
