// Exact, stable top-K of a row with its logsumexp, in one reading from memory.
#pragma once

#include "cpu/kernels.h"

namespace caw {

// One row of [V] contiguous elements; outputs of k entries. Semantics of topk_softmax_ref, NaN and -inf included.
void topk_softmax_row(const void* row, Dtype dtype, int64_t vocab_size, int64_t k, float* values, int64_t* ids,
    float* probs, float* logsumexp);

}  // namespace caw
