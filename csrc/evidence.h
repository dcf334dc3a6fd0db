// Evidence of texts in the making, one token at a time: what a token scores, whether the text has shown it already, and
// how far the text is. Plain arithmetic for CPU and GPU; what it means: caw/ops_ref/evidence_ref.py.
#pragma once

#include "candidates.h"

namespace caw {

constexpr int64_t kLevels = 16;  // of weights

// E, numbers in a piece of evidence: context and token, seed and token, or the context of a race.
CAW_HD int64_t evidence_columns(int64_t scheme, int64_t window) {
  return scheme == kSelfhashGreen ? 2 : scheme == kContextGreen ? window + 1 : window;
}

// Score of a token after its context; its evidence goes to `evidence` [E].
CAW_HD double show(uint64_t key, int64_t scheme, int64_t threshold, const int64_t* context, int64_t window,
    int64_t token, int64_t* evidence) {
  const Score score = score_token(key, scheme, threshold, context, window, token);
  int64_t at = 0;
  if (scheme == kSelfhashGreen) {
    evidence[at++] = score.seed;
  } else {
    for (; at < window; ++at) evidence[at] = context[at];
  }
  if (scheme == kSelfhashGreen || scheme == kContextGreen) evidence[at] = token;
  return score.value;
}

CAW_HD bool same_evidence(const int64_t* a, const int64_t* b, int64_t columns) {
  for (int64_t i = 0; i < columns; ++i) {
    if (a[i] != b[i]) return false;
  }
  return true;
}

// The evidence of one text, in place.
struct TextEvidence {
  int64_t *seen, *distinct, *trials;
  double *score, *standing;
  int64_t columns;

  // A token whose evidence occurs for the first time; level: its weight, 0 leaves it out.
  CAW_HD void add(const int64_t* evidence, int64_t level, double value, double mean, double variance, double third) const {
    for (int64_t i = 0; i < columns; ++i) seen[*distinct * columns + i] = evidence[i];
    *distinct += 1;
    if (level < 1 || level >= kLevels) return;
    trials[level] += 1;
    *score += value * double(level);
    int64_t sums[3] = {0, 0, 0};
    for (int64_t l = 1; l < kLevels; ++l) {
      sums[0] += trials[l] * l;
      sums[1] += trials[l] * l * l;
      sums[2] += trials[l] * l * l * l;
    }
    const double spread = sqrt(variance * double(sums[1]));
    standing[0] = (*score - mean * double(sums[0])) / spread;
    standing[1] = third * double(sums[2]) / (spread * spread * spread);
  }
};

}  // namespace caw
