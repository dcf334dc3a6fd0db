// The hot paths of the compiled ops without torch, one a run, for benchmarks/instruction_counts.py.
//
// Only what happens inside `measured` is counted. Inputs come from a fixed linear congruential generator.

#include <algorithm>
#include <cstdio>
#include <cstring>
#include <functional>
#include <map>
#include <memory>
#include <numeric>
#include <string>
#include <vector>

#include "../csrc/candidates.h"
#include "../csrc/cpu/kernels.h"
#include "../csrc/penalise.h"
#include "../csrc/random_lists.h"
#include "../csrc/tournament.h"

using namespace caw;

extern "C" __attribute__((noipa)) void measured(const std::function<void()>& work) {
  work();
  asm volatile("" ::: "memory");  // a tail call would leave this function, and the counting with it, at once
}

namespace {

constexpr int64_t kVocab = 49152, kRecord = 100, kBlock = 128, kTokens = 512;
constexpr uint64_t kKey = 0x123456789ABCDEF0u;

uint32_t next_number() {
  static uint64_t state = 1;
  state = state * 6364136223846793005u + 1442695040888963407u;
  return uint32_t(state >> 33);
}

std::vector<float> logits(int64_t size) {
  std::vector<float> x(static_cast<size_t>(size));
  for (float& value : x) {
    value = 0;
    for (int i = 0; i < 12; ++i) value += float(next_number() & 0xFFFF) / 16384.0f - 2.0f;  // nearly normal
  }
  return x;
}

struct Record {
  std::vector<float> scores = logits(kVocab), values;
  std::vector<int64_t> ids;
  Record() : values(kRecord), ids(kRecord) {
    std::vector<uint64_t> keys;
    for (int64_t i = 0; i < kVocab; ++i) keys.push_back(order_key(scores[size_t(i)], i));
    std::sort(keys.begin(), keys.end(), std::greater<uint64_t>());
    for (size_t j = 0; j < size_t(kRecord); ++j) {
      ids[j] = key_id(keys[j]);
      values[j] = scores[size_t(ids[j])];
    }
  }
};

void ladder(int64_t scheme, int64_t window, float full) {
  const Record record;
  const int64_t context[4] = {11, 22, 33, 44}, threshold = 1 << 22;
  const int64_t width = scheme == kRaceTopK ? reachable_ranks(kRecord, full, 1.0f) : scheme == kRaceScale ? kRecord : 2;
  std::vector<int64_t> candidates(static_cast<size_t>(width));
  std::vector<float> needs(static_cast<size_t>(width));
  std::vector<double> scratch(static_cast<size_t>(kRecord));
  int64_t count = 0;
  const Row row{record.values.data(), record.ids.data(), record.values.data(), kRecord, record.scores.data(), 1, kVocab};
  const Rungs out{candidates.data(), needs.data(), &count, width};
  measured([&] { enumerate_row(row, context, window, 1, kKey, scheme, threshold, full, 1.0f, scratch.data(), out); });
}

void top_of_row() {
  const std::vector<float> x = logits(kVocab);
  std::vector<float> maxima(static_cast<size_t>(kVocab / kBlock));
  std::vector<uint64_t> keys(static_cast<size_t>(kVocab));
  double sum = 0;
  measured([&] {
    kernels().maxima_and_sum(x.data(), kFloat32, kVocab, kBlock, maxima.data(), &sum);
    kernels().filter(x.data(), kFloat32, kVocab, kBlock, maxima.data(), 3.0f, keys.data());
  });
}

void scores(bool selfhash, int64_t window) {
  std::vector<uint32_t> ids(size_t(window + kTokens + kScorePad)), words(size_t(kTokens + kScorePad)), seeds(words.size());
  std::vector<uint32_t> states(static_cast<size_t>(selfhash_scratch(kTokens, window)));
  std::vector<double> values(static_cast<size_t>(kTokens));
  for (uint32_t& id : ids) id = next_number() % kVocab;
  measured([&] {
    if (selfhash) {
      kernels().selfhash_words(kKey, ids.data(), window, kTokens, states.data(), seeds.data(), words.data());
    } else {
      kernels().context_words(kKey, ids.data(), 1, window, kTokens, words.data());
      kernels().race_scores(words.data(), kTokens, values.data());
    }
  });
}

void list() {
  uint32_t target[kStateSize + 16] = {};
  int found = 0;
  measured([&] {
    MersenneTwister random(42);
    for (uint32_t first = 0; first + kStateSize <= kVocab / 4; first += kStateSize) {
      kernels().twist(random.state);
      kernels().draw_targets(random.state, uint32_t(kVocab), first, kStateSize, target);
      found += kernels().first_equal(target, 0, kStateSize, 40000);
    }
  });
}

void noise() {
  const uint32_t counter[3] = {1, 2, 3};
  std::vector<float> out(4096);
  measured([&] { kernels().gumbel_row(counter, 5, 6, 0, 4096, out.data()); });
}

float no_prune(DrawTask&, int64_t*, float kth, float) { return kth; }

// The draws of a row whose k-th greatest sum is known to be 12 at least.
void draws() {
  const std::vector<float> x = logits(kVocab);
  const uint32_t counter[3] = {1, 2, 3};
  std::vector<float> maxima(static_cast<size_t>(kVocab / kBlock));
  std::vector<uint64_t> keys(static_cast<size_t>(kVocab));
  std::vector<uint32_t> quads(static_cast<size_t>(kQuadRoom));
  DrawTask task{counter, 5, 6, kRecord, kVocab, 0.0f, 12.0f, keys.data(), quads.data(), no_prune, nullptr};
  measured([&] {
    kernels().survey(x.data(), kVocab, kBlock, maxima.data());
    kernels().draw_row(task, x.data(), kVocab, kBlock, maxima.data());
  });
}

void warped() {
  const std::vector<float> x = logits(kVocab);
  std::vector<float> out(x.size()), powers(x.size());
  measured([&] {
    kernels().divide(x.data(), 0.7f, kVocab, out.data());
    kernels().exponentials(out.data(), 9.0f, kVocab, powers.data());
    kernels().keep_at_least(out.data(), 3.0f, kVocab);
  });
}

// A text of 512 tokens, many of them repeated, after a prompt of some 500; or its penalties alone, without a copy of the
// row, which the processor and the C library decide about. The first call makes the room for counts.
void penalised(bool whole) {
  const std::vector<float> x = logits(kVocab), bias = logits(kVocab);
  std::vector<uint8_t> prompt(x.size());
  std::vector<int64_t> text(static_cast<size_t>(kTokens));
  for (uint8_t& flag : prompt) flag = next_number() % 100 == 0;
  for (int64_t& token : text) token = next_number() % 300;
  const float numbers[3] = {1.2f, 0.5f, 0.1f};
  std::vector<float> out(x.size());
  const auto penalise = [&] {
    if (whole) {
      penalise_row(x.data(), bias.data(), text.data(), kTokens, numbers, prompt.data(), kVocab, out.data());
    } else {
      penalise_text(out.data(), text.data(), kTokens, numbers, nullptr, kVocab);
    }
  };
  penalise();
  measured(penalise);
}

void whole_race() {
  const std::vector<float> x = logits(kVocab);
  const uint32_t counter[3] = {1, 2, 3};
  std::vector<uint32_t> quads(static_cast<size_t>(kRacePiece));
  measured([&] { kernels().race_winner(x.data(), kVocab, 0.7, counter, 5, 6, quads.data()); });
}

// Greedy, and drawn from what a sampler has left.
void tournament(float least, bool drawn) {
  std::vector<float> warped = logits(kVocab), scores = warped;
  for (float& value : warped) value = value >= least ? value : -INFINITY;
  for (size_t i = 0; i < warped.size(); ++i) scores[i] = drawn ? warped[i] + float(next_number() & 0xFF) / 64 : warped[i];
  std::vector<int32_t> table(size_t(1) << 16);
  for (int32_t& bits : table) bits = int32_t(next_number() ^ next_number() << 16);
  std::vector<int64_t> winners(30);
  const auto row = std::make_unique<Tournament>();
  measured([&] {
    if (row->begin(warped.data(), scores.data(), kVocab)) row->run(table.data(), 1 << 16, 12345, 30, winners.data());
  });
}

void layer() {
  const std::vector<float> weight = logits(128 * 300), bias = logits(128), x = logits(300);
  std::vector<float> out(128);
  measured([&] { kernels().affine(weight.data(), bias.data(), x.data(), 128, 300, true, out.data()); });
}

void attention() {
  constexpr int64_t kCount = 512, kDim = 64, kRows = 6;
  const std::vector<float> q = logits(kRows * kDim), k = logits(kCount * kDim), v = logits(kCount * kDim);
  std::vector<float> out(size_t(kRows * kDim)), peak(kRows), total(kRows), scratch(size_t(attend_scratch(kRows, kDim)));
  std::vector<AttendRow> rows;
  for (int64_t r = 0; r < kRows; ++r)
    rows.push_back({q.data() + r * kDim, kCount, out.data() + r * kDim, &peak[size_t(r)], &total[size_t(r)]});
  const AttendTask task{
      rows.data(), int(kRows), k.data(), v.data(), kDim, kDim, kCount, kFloat32, kDim, kDim, 0.0f, nullptr, nullptr};
  measured([&] { kernels().attend(task, scratch.data()); });
}

const std::map<std::string, std::function<void()>> kCases = {
    {"top-k and logsumexp of 49152 logits", top_of_row},
    {"ladder, lefthash", [] { ladder(kContextGreen, 1, 4.0f); }},
    {"ladder, selfhash", [] { ladder(kSelfhashGreen, 3, 4.0f); }},
    {"ladder, race by top_k 20", [] { ladder(kRaceTopK, 4, 20.0f); }},
    {"ladder, race by scale", [] { ladder(kRaceScale, 4, 1.0f); }},
    {"scores of 512 tokens, race", [] { scores(false, 4); }},
    {"scores of 512 tokens, selfhash", [] { scores(true, 3); }},
    {"one list of 12288 draws", list},
    {"noise of 4096 tokens", noise},
    {"draws of 49152 tokens", draws},
    {"temperature, powers and cut of 49152 logits", warped},
    {"bias and penalties of 49152 logits", [] { penalised(true); }},
    {"penalties of a text of 512 tokens", [] { penalised(false); }},
    {"race of 49152 tokens", whole_race},
    {"tournament of 49152 tokens, greedy", [] { tournament(-INFINITY, false); }},
    {"tournament of a nucleus, drawn", [] { tournament(2.6f, true); }},
    {"layer of 128 x 300", layer},
    {"attention of 6 rows over 512 keys", attention},
};

}  // namespace

int main(int count, char** arguments) {
  if (count == 2 && kCases.count(arguments[1])) {
    kCases.at(arguments[1])();
    return 0;
  }
  std::printf("%s\n", kernels().name);
  for (const auto& item : kCases) std::printf("%s\n", item.first.c_str());
  return 0;
}
