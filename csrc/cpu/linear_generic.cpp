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
#if CAW_BUILDS_AVX512
  // an instruction set that is asked for is taken as its name says, so that tests reach all of them
  static const char* const wanted = std::getenv("CAW_CPU_ISA");
  static const bool dots = __builtin_cpu_supports("avx512bf16") && (!wanted || !std::strcmp(wanted, "avx512bf16"));
#if CAW_BUILDS_AMX
  static const bool tiles = dots && !wanted && has_amx();
  if (&kernels() == &kAvx512 && tiles) return kLinearAmx;
#endif
  if (&kernels() == &kAvx512) return dots ? kLinearAvx512Bf16 : kLinearAvx512;
#endif
#if CAW_X86
  if (&kernels() == &kAvx2) return kLinearAvx2;
#endif
  return kLinearGeneric;
}

LinearKernel float_kernel() {
#if CAW_BUILDS_AVX512
  // those with products of bfloat16 read rows that were rounded to it
  if (&kernels() == &kAvx512) return kLinearAvx512;
#endif
  return linear_kernel();
}

}  // namespace caw
