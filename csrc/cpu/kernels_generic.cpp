// The kernels for generic.
#include "kernels_common.h"

#define CAW_LEVEL 1
namespace caw {
namespace {
#include "simd.inc"

#include "kernels.inc"

#include "words.inc"

#include "noise.inc"

#include "lists.inc"
}  // namespace
extern const Kernels kGeneric = {
    "generic", maxima_and_sum, filter, exp_shifted, attend, affine, gumbel_row, context_words, selfhash_words,
    race_scores, count_green, sum_races, twist, draw_targets, first_equal};
}  // namespace caw
