// What the tokens of texts score under a key, on the CPU; no torch.
#pragma once

#include <vector>

#include "candidates.h"
#include "cpu/kernels.h"

namespace caw {

constexpr int64_t kScorePiece = 512;  // tokens whose words stay in the first-level cache

struct ScoreBuffers {
  std::vector<uint32_t> ids, words, seeds, states;
  explicit ScoreBuffers(int64_t window)
      : ids(size_t(window + kScorePiece + kScorePad)), words(size_t(kScorePiece + kScorePad)), seeds(words.size()),
        states(size_t(selfhash_scratch(kScorePiece, window))) {}
};

struct ScoreText {
  const int64_t *tokens, *keys;  // keys: one a token
  int64_t window, scheme, threshold;

  // Scores of the tokens [first, first + count), run by run of equal keys.
  void score(int64_t first, int64_t count, ScoreBuffers& own, double* values, int64_t* seeds) const {
    for (int64_t begin = 0, end = 0; begin < count; begin = end) {
      const int64_t key = keys[first + begin];
      while (end < count && keys[first + end] == key) ++end;
      score_under(uint64_t(key), first + begin, end - begin, own, values + begin, seeds ? seeds + begin : nullptr);
    }
  }

  void score_under(
      uint64_t key, int64_t first, int64_t count, ScoreBuffers& own, double* values, int64_t* seeds) const {
    for (int64_t i = 0; i < window + count; ++i) {
      const int64_t at = first - window + i;
      own.ids[size_t(i)] = uint32_t(at < 0 ? kMissing : tokens[at]);
    }
    const Kernels& simd = kernels();
    if (scheme == kSelfhashGreen) {
      simd.selfhash_words(key, own.ids.data(), window, count, own.states.data(), own.seeds.data(), own.words.data());
      for (int64_t i = 0; i < count; ++i) seeds[i] = int64_t(own.seeds[size_t(i)]);
    } else {
      simd.context_words(key, own.ids.data(), 1, window, count, own.words.data());
    }
    if (scheme == kRaceTopK || scheme == kRaceScale) {
      simd.race_scores(own.words.data(), count, values);
    } else {
      for (int64_t i = 0; i < count; ++i) values[i] = green_word(own.words[size_t(i)], threshold) ? 1.0 : 0.0;
    }
  }
};

}  // namespace caw
