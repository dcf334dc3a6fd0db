// The arithmetic of watermarks for one position: keyed function, green test, ladders. Host and device, no torch.
//
// Meaning and order of every float operation are those of caw/watermarks (prf, ladder, green_list, exp): integers are
// equal to the reference's, ties go to the smaller id, float32 is rounded where the reference rounds. Compile without
// contraction (-ffp-contract=off, nvcc -fmad=false): a fused multiply-add would flip exact ties. Logarithms come from
// the platform's math library; they may differ from PyTorch's by one unit in the last place of a float64.
#pragma once

#include <math.h>
#include <stdint.h>

#ifdef __CUDACC__
#define CAW_HD __host__ __device__ inline
#else
#define CAW_HD inline
#endif

namespace caw {

constexpr uint32_t kContextDomain = 0x574D4358u, kTokenDomain = 0x574D544Bu;
constexpr int64_t kMissing = -1;

// How candidates are found. The numbers are part of the op's schema.
enum Scheme : int64_t { kContextGreen = 0, kSelfhashGreen = 1, kRaceTopK = 2, kRaceScale = 3 };

struct Words {
  uint32_t w[4];
};

// ---- keyed function -------------------------------------------------------------------------------------------------

CAW_HD Words philox4x32(Words c, uint32_t key_lo, uint32_t key_hi) {
  for (int round = 0; round < 10; ++round) {
    const uint64_t p0 = uint64_t(c.w[0]) * 0xD2511F53u, p1 = uint64_t(c.w[2]) * 0xCD9E8D57u;
    c = Words{{uint32_t(p1 >> 32) ^ c.w[1] ^ key_lo, uint32_t(p1), uint32_t(p0 >> 32) ^ c.w[3] ^ key_hi, uint32_t(p0)}};
    key_lo += 0x9E3779B9u;
    key_hi += 0xBB67AE85u;
  }
  return c;
}

// State after `width` context tokens, oldest first, `stride` elements apart.
CAW_HD Words absorb_context(uint64_t key, const int64_t* context, int64_t width, int64_t stride = 1) {
  Words state{{kContextDomain, uint32_t(width), 0u, 0u}};
  for (int64_t offset = 0; offset < width; offset += 4) {
    for (int64_t i = 0; i < 4; ++i) {
      const bool given = offset + i < width;
      state.w[i] ^= given ? uint32_t(context[(offset + i) * stride]) : 0xFFFFFFFFu - uint32_t(i);
    }
    state = philox4x32(state, uint32_t(key) ^ uint32_t(offset), uint32_t(key >> 32));
  }
  return state;
}

CAW_HD uint32_t token_word(uint64_t key, const Words& state, int64_t token) {
  const uint32_t t = uint32_t(token);
  const Words counter{{t >> 2, state.w[0], state.w[1], state.w[2]}};
  return philox4x32(counter, uint32_t(key) ^ state.w[3], uint32_t(key >> 32) ^ kTokenDomain).w[t & 3];
}

CAW_HD bool green_word(uint32_t word, int64_t threshold) { return int64_t(word >> 8) < threshold; }

CAW_HD double uniform(uint32_t word) { return double(float(double((word >> 8) + 1u) / 16777217.0)); }

CAW_HD double gumbel(uint32_t word) { return -log(-log(uniform(word))); }

// ---- green tests ----------------------------------------------------------------------------------------------------

// The anchored minimum of selfhash: the smallest word of `token` under each single window token.
CAW_HD uint32_t selfhash_seed(uint64_t key, const int64_t* window, int64_t width, int64_t stride, int64_t token) {
  uint32_t least = 0xFFFFFFFFu;
  for (int64_t i = 0; i < width; ++i) {
    const uint32_t word = token_word(key, absorb_context(key, window + i * stride, 1), token);
    least = word < least ? word : least;
  }
  return least;
}

CAW_HD bool selfhash_green(uint64_t key, uint32_t seed, int64_t token, int64_t threshold) {
  const int64_t pair[2] = {int64_t(seed), token};
  return green_word(token_word(key, absorb_context(key, pair, 2), token), threshold);
}

// Green test of many tokens at one position; the context is absorbed once.
struct GreenTest {
  uint64_t key;
  int64_t threshold;
  const int64_t* context;
  int64_t width, stride;
  bool selfhash;
  Words state;

  CAW_HD GreenTest(uint64_t key_, int64_t threshold_, const int64_t* context_, int64_t width_, int64_t stride_, bool self)
      : key(key_), threshold(threshold_), context(context_), width(width_), stride(stride_), selfhash(self) {
    state = self ? Words{{0, 0, 0, 0}} : absorb_context(key, context, width, stride);
  }
  CAW_HD bool operator()(int64_t token) const {
    if (!selfhash) return green_word(token_word(key, state, token), threshold);
    return selfhash_green(key, selfhash_seed(key, context, width, stride, token), token, threshold);
  }
};

// ---- ladders --------------------------------------------------------------------------------------------------------

// One row of the inputs: K record entries, sorted; `race` are the unperturbed values of the same ids.
struct Row {
  const float* values;
  const int64_t* ids;
  const float* race;
  int64_t size;  // K
  const float* scores;
  int64_t scores_stride, vocab_size;
};

// One row of the outputs, `width` columns.
struct Rungs {
  int64_t* candidates;
  float* needs;
  int64_t* count;
  int64_t width;
};

// How many ranks the strength reaches; the width of a top_k ladder.
CAW_HD int64_t reachable_ranks(int64_t size, float full, float max_strength) {
  int64_t width = 0;
  const float reach = (2.0f * max_strength) * full;
  for (int64_t rank = 1; rank <= size; ++rank) width += reach > 2.0f * float(rank) - 1.0f;
  return width > 1 ? width : 1;
}

CAW_HD void fill_rungs(const Rungs& out, int64_t token, int64_t from) {
  for (int64_t j = from; j < out.width; ++j) {
    out.candidates[j] = token;
    out.needs[j] = INFINITY;
  }
}

struct Pick {
  int64_t token;
  float logit;
};

// Likeliest green token of a whole row, ties to the smaller id; the keyed function runs only where the score would win.
CAW_HD Pick scan_green(const Row& row, const GreenTest& green) {
  Pick best{-1, -INFINITY};
  for (int64_t token = 0; token < row.vocab_size; ++token) {
    const float score = row.scores[token * row.scores_stride];
    if (score <= best.logit) continue;
    if (!green(token)) continue;
    if (score != score) return Pick{-1, score};  // a NaN among the green scores leaves the row unmarked
    best = Pick{token, score};
  }
  return best;
}

// The first green token of the record; the whole row only if the record has none and one beyond it could still win.
CAW_HD Pick best_green(const Row& row, const GreenTest& green, float boost) {
  for (int64_t j = 0; j < row.size; ++j) {
    if (row.values[j] > -INFINITY && green(row.ids[j])) return Pick{row.ids[j], row.values[j]};
  }
  const float last = row.values[row.size - 1];
  if (last > -INFINITY && last + boost >= row.values[0]) return scan_green(row, green);
  return Pick{-1, -INFINITY};
}

CAW_HD void reweight_ladder(const Row& row, const Pick& pick, float boost, const Rungs& out) {
  const int64_t original = row.ids[0];
  const float logit = row.values[0];
  out.needs[0] = logit;
  out.needs[1] = pick.token >= 0 ? pick.logit : logit;
  const float boosted = out.needs[1] + boost;
  const bool wins = boosted > logit || (boosted == logit && pick.token < original);
  const bool reached = pick.token >= 0 && pick.token != original && wins;
  out.candidates[0] = original;
  out.candidates[1] = reached ? pick.token : original;
  *out.count = reached ? 2 : 1;
}

CAW_HD double race_value(const Row& row, uint64_t key, const Words& state, int64_t j) {
  if (!(row.values[j] > -INFINITY)) return -INFINITY;
  return double(row.race[j]) + gumbel(token_word(key, state, row.ids[j]));
}

// Records of a running argmax over race values [out.width]; `out.width` must be reachable_ranks.
CAW_HD void top_k_ladder(const Row& row, const double* races, const Rungs& out) {
  int64_t count = 0, best_id = 0;
  double best = 0;
  bool unordered = false;  // nothing comes after a NaN
  for (int64_t j = 0; j < out.width; ++j) {
    const double race = races[j];
    const bool ahead = j == 0 || race > best || (race == best && row.ids[j] < best_id);
    unordered |= race != race;
    if (ahead) {
      best = race;
      best_id = row.ids[j];
    }
    if (j > 0 && (!ahead || unordered || !(race > -INFINITY))) continue;
    out.candidates[count] = row.ids[j];
    out.needs[count++] = float(j + 1);
  }
  fill_rungs(out, row.ids[0], count);
  *out.count = count;
}

CAW_HD float floor32(double x) {
  const float y = float(x);
  return double(y) > x ? nextafterf(y, -INFINITY) : y;
}

CAW_HD float ceil32(double x) {
  const float y = float(x);
  return double(y) < x ? nextafterf(y, INFINITY) : y;
}

// Where line i overtakes the current one, not before `at`; INFINITY if it never does.
CAW_HD double crossing(const Row& row, const double* slope, int64_t current, int64_t i, double at) {
  const double rise = slope[i] - slope[current];
  if (!(rise > 0) || !(row.values[i] > -INFINITY)) return INFINITY;
  double x = (double(row.values[current]) - double(row.values[i])) / rise;
  if (x < 0) x = 0;
  return x < at ? at : x;
}

CAW_HD double slope_value(const Row& row, uint64_t key, const Words& state, int64_t j) {
  const double race = race_value(row, key, state, j);
  return race > -INFINITY ? race - double(row.values[j]) : -INFINITY;
}

// Upper envelope of values + strength * slope, slopes [row.size].
CAW_HD void scale_ladder(const Row& row, const double* slope, float max_strength, const Rungs& out) {
  int64_t count = 1, current = 0;
  double at = 0;
  out.candidates[0] = row.ids[0];
  out.needs[0] = -INFINITY;
  while (count < out.width) {
    double nearest = INFINITY;
    int64_t next = -1;
    for (int64_t j = 0; j < row.size; ++j) {
      const double x = crossing(row, slope, current, j, at);
      if (x != x) {
        next = -1;
        break;
      }
      const bool tie = next >= 0 && x == nearest;
      const bool steeper =
          tie && (slope[j] > slope[next] || (slope[j] == slope[next] && row.ids[j] < row.ids[next]));
      if (x < nearest || steeper) {
        nearest = x;
        next = j;
      }
    }
    if (next < 0) break;
    const float need = row.ids[next] < row.ids[current] ? nextafterf(ceil32(nearest), -INFINITY) : floor32(nearest);
    if (!(need < max_strength)) break;
    current = next;
    at = nearest;
    out.candidates[count] = row.ids[current];
    out.needs[count++] = need;
  }
  fill_rungs(out, row.ids[0], count);
  *out.count = count;
}

// The whole ladder of one row. `scratch`: row.size doubles for races, else unused.
CAW_HD void enumerate_row(const Row& row, const int64_t* context, int64_t width, int64_t stride, uint64_t key,
    int64_t scheme, int64_t threshold, float full, float max_strength, double* scratch, const Rungs& out) {
  if (scheme == kContextGreen || scheme == kSelfhashGreen) {
    const GreenTest green(key, threshold, context, width, stride, scheme == kSelfhashGreen);
    const float boost = max_strength * full;
    reweight_ladder(row, best_green(row, green, boost), boost, out);
    return;
  }
  const Words state = absorb_context(key, context, width, stride);
  if (scheme == kRaceTopK) {
    for (int64_t j = 0; j < out.width; ++j) scratch[j] = race_value(row, key, state, j);
    top_k_ladder(row, scratch, out);
  } else {
    for (int64_t j = 0; j < row.size; ++j) scratch[j] = slope_value(row, key, state, j);
    scale_ladder(row, scratch, max_strength, out);
  }
}

// ---- scores ---------------------------------------------------------------------------------------------------------

struct Score {
  double value;
  int64_t seed;  // selfhash: the anchored minimum; else 0
};

// Score of one token after its `width` context tokens: 0/1 for green lists, -log(1 - u) for races.
CAW_HD Score score_token(
    uint64_t key, int64_t scheme, int64_t threshold, const int64_t* context, int64_t width, int64_t token) {
  if (scheme == kSelfhashGreen) {
    const uint32_t seed = selfhash_seed(key, context, width, 1, token);
    return Score{selfhash_green(key, seed, token, threshold) ? 1.0 : 0.0, int64_t(seed)};
  }
  const uint32_t word = token_word(key, absorb_context(key, context, width), token);
  if (scheme == kContextGreen) return Score{green_word(word, threshold) ? 1.0 : 0.0, 0};
  return Score{-log1p(-uniform(word)), 0};
}

}  // namespace caw
