// The kernels for avx512.
#include "kernels_common.h"

#if CAW_X86
#if defined(__clang__)
#pragma clang attribute push(__attribute__((target("avx512f,avx512bw,avx512dq,avx512vl,avx2,fma,f16c"))), apply_to = function)
#else
#pragma GCC push_options
#pragma GCC target("avx512f,avx512bw,avx512dq,avx512vl,avx2,fma,f16c")
#endif
#define CAW_LEVEL 3
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
extern const Kernels kAvx512 = {
    "avx512", maxima_and_sum, filter, exp_shifted, attend, affine, gumbel_row, race_winner, divide, keep_at_least,
    exponentials, survey, draw_row, fill_bins, context_words, selfhash_words, race_scores, count_green, sum_races, twist, draw_targets, first_equal};
}  // namespace caw
#if defined(__clang__)
#pragma clang attribute pop
#else
#pragma GCC pop_options
#endif
#endif
