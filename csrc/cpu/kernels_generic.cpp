// The kernels for generic.
#include "kernels_common.h"

#define CAW_LEVEL 1
namespace caw {
namespace {
#include "simd.inc"

#include "kernels.inc"

#include "noise.inc"
}  // namespace
extern const Kernels kGeneric = {
    "generic", block_maxima, filter_and_sum, exp_shifted, attend, affine, gumbel_row};
}  // namespace caw
