// small_linear for any machine, and the choice among its builds.
#include <cstdlib>
#include <cstring>

#include "kernels_common.h"
#include "linear.h"

#define CAW_LEVEL 1
namespace caw {
namespace {
#include "simd.inc"

#include "linear.inc"
}  // namespace
extern const LinearKernel kLinearGeneric = {nullptr, linear};

LinearKernel linear_kernel() {
#if CAW_X86
  const char* name = kernels().name;
  // an instruction set that is asked for is taken as its name says, so that tests reach both
  static const bool dots = __builtin_cpu_supports("avx512bf16") && !std::getenv("CAW_CPU_ISA");
  if (!std::strcmp(name, "avx512")) return dots ? kLinearAvx512Bf16 : kLinearAvx512;
  if (!std::strcmp(name, "avx2")) return kLinearAvx2;
#endif
  return kLinearGeneric;
}

}  // namespace caw
