// The kernels for generic.
#include "kernels_common.h"

#define CAW_LEVEL 1
namespace caw {
namespace {
#include "simd.inc"

#include "kernels.inc"

#include "words.inc"

#include "noise.inc"

#include "race.inc"

#include "draw.inc"

#include "bins.inc"

#include "lists.inc"
}  // namespace
extern const Kernels kGeneric = {
    "generic", maxima_and_sum, filter, exp_shifted, attend, affine, gumbel_row, race_winner, divide, keep_at_least,
    exponentials, survey, draw_row, fill_bins, context_words, selfhash_words, race_scores, count_green, sum_races, twist, draw_targets, first_equal};
}  // namespace caw
