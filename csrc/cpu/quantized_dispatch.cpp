// Chooses the kernel of quantized_linear once, from what the machine says it can run.
#include <cstdlib>

#include "kernels_common.h"
#include "quantized.h"

#if CAW_X86
#include <cpuid.h>
#endif
#if CAW_X86 && defined(__linux__)
#include <sys/syscall.h>
#include <unistd.h>
#endif

namespace caw {
namespace {

// Whether the processor has AMX for bytes and the system lets this process use its tiles: Linux wants to be asked.
bool may_use_tiles() {
#if CAW_X86 && defined(__linux__)
  unsigned a = 0, b = 0, c = 0, d = 0;
  constexpr unsigned kTile = 1u << 24, kInt8 = 1u << 25;
  if (!__get_cpuid_count(7, 0, &a, &b, &c, &d) || !(d & kTile) || !(d & kInt8)) return false;
  constexpr long kRequest = 0x1023, kTileData = 18;  // ARCH_REQ_XCOMP_PERM, XFEATURE_XTILEDATA
  return syscall(SYS_arch_prctl, kRequest, kTileData) == 0;
#else
  return false;
#endif
}

const QuantizedKernel* choose() {
#if CAW_X86
  if (&kernels() == &kAvx2) return &kQuantizedAvx2;
  if (&kernels() == &kAvx512) {
    if (!__builtin_cpu_supports("avx512vnni")) return &kQuantizedAvx2;
    // a set that was asked for by name is the plain one
    return std::getenv("CAW_CPU_ISA") || !may_use_tiles() ? &kQuantizedVnni : &kQuantizedAmx;
  }
#endif
  return &kQuantizedGeneric;
}

}  // namespace

const QuantizedKernel& quantized_kernel() {
  static const QuantizedKernel* const chosen = choose();
  return *chosen;
}

}  // namespace caw
