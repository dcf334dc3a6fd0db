// The kernels for avx2.
#include "kernels_common.h"

#if CAW_X86
CAW_BEGIN_TARGET("avx2,fma,f16c")
#define CAW_LEVEL 2
namespace caw {
namespace {
#include "set.inc"
}  // namespace
extern const Kernels kAvx2 = CAW_TABLE("avx2");
}  // namespace caw
CAW_END_TARGET
#endif
