// Chooses the kernel of quantized_linear once, from what the machine says it can run.
#include <cstdlib>

#include "kernels_common.h"
#include "quantized.h"

#if CAW_X86
#include <cpuid.h>
#endif
#if CAW_BUILDS_AMX
#include <sys/syscall.h>
#include <unistd.h>
#endif

namespace caw {
namespace {

#if CAW_BUILDS_AMX
// Whether the processor has AMX for bytes and the system lets this process use its tiles: Linux wants to be asked.
bool may_use_tiles() {
  unsigned a = 0, b = 0, c = 0, d = 0;
  constexpr unsigned kTile = 1u << 24, kInt8 = 1u << 25;
  if (!__get_cpuid_count(7, 0, &a, &b, &c, &d) || !(d & kTile) || !(d & kInt8)) return false;
  constexpr long kRequest = 0x1023, kTileData = 18;  // ARCH_REQ_XCOMP_PERM, XFEATURE_XTILEDATA
  return syscall(SYS_arch_prctl, kRequest, kTileData) == 0;
}
#endif

#if CAW_BUILDS_DOTS
bool has_dots() {
  unsigned a = 0, b = 0, c = 0, d = 0;
  constexpr unsigned kAvxVnni = 1u << 4;
  return __get_cpuid_count(7, 1, &a, &b, &c, &d) && a & kAvxVnni;
}
#endif

const QuantizedKernel* choose() {
  [[maybe_unused]] const bool named = std::getenv("CAW_CPU_ISA");  // then the set is the plain one
#if CAW_BUILDS_AMX
  if (&kernels() == &kAvx512 && !named && may_use_tiles()) return &kQuantizedAmx;
#endif
#if CAW_BUILDS_AVX512
  if (&kernels() == &kAvx512 && __builtin_cpu_supports("avx512vnni")) return &kQuantizedVnni;
#endif
#if CAW_BUILDS_DOTS
  if (&kernels() == &kAvx2 && !named && has_dots()) return &kQuantizedAvxVnni;
#endif
#if CAW_X86
  if (&kernels() != &kGeneric) return &kQuantizedAvx2;
#endif
  return &kQuantizedGeneric;
}

}  // namespace

const QuantizedKernel& quantized_kernel() {
  static const QuantizedKernel* const chosen = choose();
  return *chosen;
}

}  // namespace caw
