// The kernels for avx512.
#include "kernels_common.h"

#if CAW_BUILDS_AVX512
CAW_BEGIN_TARGET("avx512f,avx512bw,avx512dq,avx512vl,avx2,fma,f16c")
#define CAW_LEVEL 3
namespace caw {
namespace {
#include "set.inc"
}  // namespace
extern const Kernels kAvx512 = CAW_TABLE("avx512");
}  // namespace caw
CAW_END_TARGET
#endif
