// The kernels for generic.
#include "kernels_common.h"

#define CAW_LEVEL 1
namespace caw {
namespace {
#include "set.inc"
}  // namespace
extern const Kernels kGeneric = CAW_TABLE("generic");
}  // namespace caw
