// Exact, stable top-K of a row with its logsumexp, in one reading from memory.
#pragma once

#include <vector>

#include "cpu/kernels.h"

namespace caw {

// One row of [V] contiguous elements; outputs of k entries. Semantics of topk_softmax_ref, NaN and -inf included.
void topk_softmax_row(const void* row, Dtype dtype, int64_t vocab_size, int64_t k, float* values, int64_t* ids,
    float* probs, float* logsumexp);

// Elements of a block so that about 4 k blocks make a row.
int64_t topk_block_size(int64_t vocab_size, int64_t k);

// The k-th greatest of the maxima, which at least k elements reach; -inf if there are fewer.
float topk_threshold(const std::vector<float>& maxima, std::vector<float>& copy, int64_t k);

}  // namespace caw
