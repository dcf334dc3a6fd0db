// small_linear for avx2.
#include "kernels_common.h"
#include "linear.h"

#if CAW_X86
CAW_BEGIN_TARGET("avx2,fma,f16c")
#define CAW_LEVEL 2
namespace caw {
namespace {
#include "simd.inc"

#include "linear.inc"
}  // namespace
extern const LinearKernel kLinearAvx2 = {nullptr, linear};
}  // namespace caw
CAW_END_TARGET
#endif
