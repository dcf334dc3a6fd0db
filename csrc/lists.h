// The lists of random_lists.h on the CPU, and whether tokens are in them; no torch.
#pragma once

#include <algorithm>
#include <numeric>
#include <optional>
#include <vector>

#include "cpu/kernels.h"
#include "random_lists.h"

namespace caw {

// The positions that the first `count` draws swap with, a block at a time.
class Draws {
 public:
  Draws(uint32_t seed, int64_t size, int64_t count) : random_(seed), size_(uint32_t(size)), count_(count) {}

  // Fills `target()` for the draws [first(), first() + drawn()); false when all are done.
  bool next() {
    first_ += drawn_;
    drawn_ = int(std::min<int64_t>(count_ - first_, kStateSize));
    if (drawn_ <= 0) return false;
    kernels().twist(random_.state);
    kernels().draw_targets(random_.state, size_, uint32_t(first_), drawn_, target_);
    return true;
  }
  const uint32_t* target() const { return target_; }
  int64_t first() const { return first_; }
  int drawn() const { return drawn_; }

 private:
  MersenneTwister random_;
  uint32_t target_[kStateSize + 16] = {};  // vectors may read and write beyond the end
  uint32_t size_;
  int64_t count_, first_ = 0;
  int drawn_ = 0;
};

// The first `count` entries of seeds' permutations, one after the other in one array.
class Shuffle {
 public:
  explicit Shuffle(int64_t size) : order_(size_t(size)) { fill(); }

  // f(token) for each entry in order.
  template <class F>
  void draw(uint32_t seed, int64_t count, const F& f) {
    uint32_t* order = order_.data();
    Draws draws(seed, int64_t(order_.size()), count);
    while (draws.next()) {
      uint32_t* here = order + draws.first();
      const uint32_t* target = draws.target();
      for (int j = 0; j < draws.drawn(); ++j) {
        const uint32_t at = target[j], token = order[at];
        order[at] = here[j];
        f(token);
      }
    }
    fill();
  }

 private:
  void fill() { std::iota(order_.begin(), order_.end(), 0u); }
  std::vector<uint32_t> order_;
};

// Whether `token` is among the first draws, by following it: it moves only when its position is drawn or is passed.
struct Follower {
  uint32_t place;
  bool found = false;

  void follow(const Draws& draws) {
    const uint32_t* target = draws.target();
    const int64_t first = draws.first();
    for (int j = 0; !found;) {
      const int64_t passed = int64_t(place) - first;  // the draw that moves whatever stands there
      const int stop = int(std::min<int64_t>(passed, draws.drawn()));
      found = kernels().first_equal(target, j, stop, place) < stop;
      if (found || passed >= draws.drawn()) return;
      found = target[passed] == place;
      place = target[passed];
      j = int(passed) + 1;
    }
  }
};

constexpr int64_t kWorthAList = 32;  // distinct tokens of one seed from which drawing the list beats following each

struct Query {
  uint32_t seed, token;
  int64_t index;
};

// One seed's queries, sorted by token.
inline void answer(const Query* query, int64_t n, int64_t vocab_size, int64_t count, Shuffle* shuffle,
    std::vector<uint32_t>& set, bool* out) {
  if (shuffle) {
    std::fill(set.begin(), set.end(), 0u);
    shuffle->draw(query[0].seed, count, [&](uint32_t token) { set[token >> 5] |= 1u << (token & 31); });
    for (int64_t i = 0; i < n; ++i) out[query[i].index] = set[query[i].token >> 5] >> (query[i].token & 31) & 1;
    return;
  }
  Follower followers[kWorthAList];
  int64_t distinct = 0;
  for (int64_t i = 0; i < n; ++i)
    if (i == 0 || query[i].token != query[i - 1].token) followers[distinct++] = Follower{query[i].token};
  Draws draws(query[0].seed, vocab_size, count);
  for (int64_t open = distinct; open > 0 && draws.next();) {
    open = 0;
    for (int64_t i = 0; i < distinct; ++i) {
      followers[i].follow(draws);
      open += !followers[i].found;
    }
  }
  for (int64_t i = 0, at = -1; i < n; ++i) {
    at += i == 0 || query[i].token != query[i - 1].token;
    out[query[i].index] = followers[at].found;
  }
}

// Sorted by seed and token; `begins` holds where each seed starts, and the end.
inline std::vector<Query> sorted_queries(const int64_t* seeds, const int64_t* items, int64_t n, int64_t limit,
    std::vector<int64_t>& begins) {
  std::vector<Query> queries;
  queries.reserve(size_t(n));
  for (int64_t i = 0; i < n; ++i)
    if (items[i] >= 0 && items[i] < limit) queries.push_back(Query{uint32_t(seeds[i]), uint32_t(items[i]), i});
  std::sort(queries.begin(), queries.end(), [](const Query& a, const Query& b) {
    return a.seed != b.seed ? a.seed < b.seed : a.token < b.token;
  });
  for (size_t i = 0; i < queries.size(); ++i)
    if (i == 0 || queries[i].seed != queries[i - 1].seed) begins.push_back(int64_t(i));
  begins.push_back(int64_t(queries.size()));
  return queries;
}

inline int64_t distinct_tokens(const Query* query, int64_t n) {
  int64_t distinct = n > 0;
  for (int64_t i = 1; i < n; ++i) distinct += query[i].token != query[i - 1].token;
  return distinct;
}

// The groups [begin, end) of queries, each with one seed.
inline void answer_groups(const std::vector<Query>& queries, const std::vector<int64_t>& begins, int64_t begin,
    int64_t end, int64_t vocab_size, int64_t count, bool* out) {
  std::optional<Shuffle> shuffle;
  std::vector<uint32_t> set;
  for (int64_t g = begin; g < end; ++g) {
    const Query* group = queries.data() + begins[size_t(g)];
    const int64_t size = begins[size_t(g) + 1] - begins[size_t(g)];
    const bool listed = distinct_tokens(group, size) > kWorthAList;
    if (listed && !shuffle) {
      shuffle.emplace(vocab_size);
      set.resize(size_t(vocab_size + 31) / 32);
    }
    answer(group, size, vocab_size, count, listed ? &*shuffle : nullptr, set, out);
  }
}

// Numbers of the generators of the groups [begin, end); a query's token is the number's index.
inline void words_of_groups(const std::vector<Query>& queries, const std::vector<int64_t>& begins, int64_t begin,
    int64_t end, int64_t* out) {
  for (int64_t g = begin; g < end; ++g) {
    MersenneTwister random(queries[size_t(begins[size_t(g)])].seed);
    int64_t block = -1;  // of kStateSize words; -1: nothing drawn yet
    for (int64_t i = begins[size_t(g)]; i < begins[size_t(g) + 1]; ++i) {
      const Query& query = queries[size_t(i)];
      for (; block < int64_t(query.token) / kStateSize; ++block) kernels().twist(random.state);
      out[query.index] = MersenneTwister::tempered(random.state[query.token % kStateSize]);
    }
  }
}

}  // namespace caw
