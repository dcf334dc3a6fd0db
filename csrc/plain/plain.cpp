// caw._plain: what detection needs, without torch and without Python. caw/text_scores.py calls it and checks what it gives.

#include "../lists.h"
#include "../text_scores.h"

#define CAW_API extern "C" __attribute__((visibility("default")))
using namespace caw;

CAW_API int caw_plain_version() { return 1; }

CAW_API void caw_score_tokens(const int64_t* tokens, int64_t n, int64_t window, uint64_t key, int64_t scheme,
    int64_t threshold, double* values, int64_t* seeds) {
  const ScoreText text{tokens, nullptr, window, scheme, threshold};
  ScoreBuffers own(window);
  for (int64_t first = 0; first < n; first += kScorePiece) {
    const int64_t count = n - first < kScorePiece ? n - first : kScorePiece;
    text.score_under(key, first, count, own, values + first, seeds + first);
  }
}

// One text under many keys: the evidence is picked once, and each key only sums its scores.
CAW_API void caw_score_keys(const int64_t* contexts, const int64_t* tokens, int64_t count, int64_t window,
    const int64_t* keys, int64_t total, int64_t scheme, int64_t threshold, double* sums) {
  const int64_t step = count + kScorePad;
  // 32-bit ids, a row for each place of the context and one for the tokens
  std::vector<uint32_t> ids(size_t((window + 1) * step));
  for (int64_t i = 0; i < count; ++i) {
    for (int64_t k = 0; k < window; ++k) ids[size_t(k * step + i)] = uint32_t(contexts[i * window + k]);
    ids[size_t(window * step + i)] = uint32_t(tokens[i]);
  }
  const Kernels& simd = kernels();
  std::vector<uint32_t> words(size_t(kScorePiece + kScorePad));
  for (int64_t j = 0; j < total; ++j) {
    sums[j] = 0;
    for (int64_t first = 0; first < count; first += kScorePiece) {
      const int64_t some = count - first < kScorePiece ? count - first : kScorePiece;
      simd.context_words(uint64_t(keys[j]), ids.data() + first, step, window, some, words.data());
      sums[j] += scheme == kRaceTopK || scheme == kRaceScale
          ? simd.sum_races(words.data(), some)
          : double(simd.count_green(words.data(), some, uint32_t(threshold)));
    }
  }
}

CAW_API void caw_contains(
    const int64_t* seeds, const int64_t* tokens, int64_t n, int64_t vocab_size, int64_t count, bool* out) {
  std::vector<int64_t> begins;
  const std::vector<Query> queries = sorted_queries(seeds, tokens, n, vocab_size, begins);
  answer_groups(queries, begins, 0, int64_t(begins.size()) - 1, vocab_size, count, out);
}

CAW_API void caw_words(const int64_t* seeds, const int64_t* indices, int64_t n, int64_t* out) {
  std::vector<int64_t> begins;
  const std::vector<Query> queries = sorted_queries(seeds, indices, n, int64_t(1) << 31, begins);
  words_of_groups(queries, begins, 0, int64_t(begins.size()) - 1, out);
}

CAW_API void caw_permutation(uint32_t seed, int64_t size, int64_t count, int64_t* out) {
  Shuffle(size).draw(seed, count, [&](uint32_t token) { *out++ = token; });
}
