// Chooses the kernels once, from what the machine says it can run.
#include <cstdlib>
#include <cstring>

#include "kernels_common.h"

namespace caw {
namespace {

const Kernels* choose() {
  const char* wanted = std::getenv("CAW_CPU_ISA");
  const bool generic = wanted && !std::strcmp(wanted, "generic"), avx2 = wanted && !std::strcmp(wanted, "avx2");
#if CAW_X86
  __builtin_cpu_init();
  const bool has2 = __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma");
#if CAW_BUILDS_AVX512
  const bool has512 = has2 && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
      __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl");
  if (has512 && !generic && !avx2) return &kAvx512;
#endif
  if (has2 && !generic) return &kAvx2;
#endif
  return &kGeneric;
}

}  // namespace

const Kernels& kernels() {
  static const Kernels* const chosen = choose();
  return *chosen;
}

}  // namespace caw
