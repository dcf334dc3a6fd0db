// The vector kernels of the CPU ops, compiled once per instruction set and chosen when the library is loaded.
#pragma once

#include <cmath>
#include <cstdint>

namespace caw {

enum Dtype : int { kFloat32 = 0, kBFloat16 = 1, kFloat16 = 2 };

// Where topk_softmax keeps what passes its threshold; one per thread, reused.
struct TopkScratch {
  uint64_t* keys;  // [V]
  float* maxima;   // [blocks]
};

constexpr int64_t kMaxDim = 512;  // head dim of sibling_attention, after padding
constexpr int64_t kTile = 64;     // keys scored before the running maximum is updated
constexpr int kSecondLevel = 2;   // __builtin_prefetch's locality

// A query of an AttendTask, and where its results go.
struct AttendRow {
  const float* q;       // [padded], scaled
  int64_t count;        // it reads the keys [0, count)
  float* out;           // [padded], not normalised
  float *peak, *total;  // greatest score, sum of exp(score - peak)
};

// One KV head's share of sibling_attention: queries that read the same keys, some perhaps fewer of them.
struct AttendTask {
  const AttendRow* row;
  int rows;
  const void *k, *v;
  int64_t k_stride, v_stride, count;  // strides between tokens, in elements; count: the most that a row reads
  int dtype;
  int64_t dim, padded;
  float softcap;  // 0 = none
  const void *next_k, *next_v;  // what is read after these keys, to prefetch it; null = unknown
};

// What a look at a row of logits says. kept: elements above -inf. ordered: none is NaN. top: the greatest.
struct Survey {
  float top;
  int64_t kept;
  bool ordered;
};

// The draws of one row: which of its k greatest sums of logit and noise there are, and those within `reach` of the
// greatest.
struct DrawTask {
  const uint32_t* counter;  // the last three counter words
  uint32_t key_lo, key_hi;
  int64_t k, room;  // room: of keys, more than k
  float reach, kth;  // kth: a bound below the k-th greatest sum
  uint64_t* keys;    // [room], of sums and tokens
  uint32_t* quads;   // [kQuadRoom], scratch
  // Drops keys that no longer matter and grows the room where all do; returns the k-th greatest sum, or `kth` where there
  // are fewer.
  float (*prune)(DrawTask& task, int64_t* count, float kth, float top);
  void* owner;
};

// Probabilities of tokens and their bits, for SynthID's tournament (tournament.h). weights, grown: or null.
struct BinsTask {
  float* probs;  // those that grow: each by grown[bits >> grown_shift & grown_mask]
  const float* weights;
  const uint32_t* patterns;
  const float* grown;
  int grown_shift, shift;
  uint32_t grown_mask, mask;
  int64_t count;
  double* sums;  // each grows by the probabilities of tokens with bits >> shift & mask
  float least;
};

struct Kernels {
  const char* name;
  // Largest element (NaN left out) of each block of `block` elements, and of the row; the sum of exp(x - largest).
  float (*maxima_and_sum)(const void* row, int dtype, int64_t size, int64_t block, float* maxima, double* sum);
  // Keys of x >= threshold (> if it is -inf) into `keys`; returns how many.
  int64_t (*filter)(const void* row, int dtype, int64_t size, int64_t block, const float* maxima, float threshold,
      uint64_t* keys);
  void (*exp_shifted)(const float* x, float shift, int64_t size, float* out);  // exp(x - shift)
  void (*attend)(const AttendTask& task, float* scratch);                     // scratch: attend_scratch floats
  // out[i] = bias[i] + sum_j weight[i, j] x[j], at least 0 if `relu`
  void (*affine)(const float* weight, const float* bias, const float* x, int64_t rows, int64_t size, bool relu,
      float* out);
  // Gumbel noise of tokens [begin, end) (begin a multiple of 4) from a Philox key and the last 3 counter words.
  void (*gumbel_row)(const uint32_t* counter, uint32_t key_lo, uint32_t key_hi, int64_t begin, int64_t end, float* out);
  // The token of the greatest logit / temperature + noise of a row (0 if no logit is above -inf), from a Philox key and
  // the last 3 counter words. quads: scratch, kRacePiece words.
  int64_t (*race_winner)(const float* logits, int64_t size, double temperature, const uint32_t* counter,
      uint32_t key_lo, uint32_t key_hi, uint32_t* quads);
  void (*divide)(const float* x, float by, int64_t size, float* out);  // out = x / by; may be x itself
  void (*keep_at_least)(float* x, float least, int64_t size);          // -inf in place of what is below `least`, and NaN
  void (*exponentials)(const float* x, float top, int64_t size, float* out);  // exp(x - top) for x <= top
  Survey (*survey)(const float* x, int64_t size, int64_t block, float* maxima);  // maxima: of each block, NaN left out
  // Keys of every token whose sum of logit and noise is among the k greatest or within reach of the greatest, and of some
  // others; returns how many. block: of `maxima`, a multiple of 4. No element may be NaN or +inf.
  int64_t (*draw_row)(DrawTask& task, const float* x, int64_t size, int64_t block, const float* maxima);
  // Tokens whose probability times weight is at least `least` then, into `ahead`; returns how many.
  int64_t (*fill_bins)(const BinsTask& task, int32_t* ahead);
  // Words of `count` tokens, PRF(key, the `window` ids before, token). ids: 32 bits each; context word k of token i is
  // ids[i + k * step], the token ids[i + window * step]. Vectors read up to kScorePad ids and write up to kScorePad words
  // beyond the end.
  void (*context_words)(
      uint64_t key, const uint32_t* ids, int64_t step, int64_t window, int64_t count, uint32_t* words);
  // The same of selfhash, with its seeds. states: selfhash_scratch(count, window) words.
  void (*selfhash_words)(uint64_t key, const uint32_t* ids, int64_t window, int64_t count, uint32_t* states,
      uint32_t* seeds, uint32_t* words);
  void (*race_scores)(const uint32_t* words, int64_t count, double* values);  // -log(1 - uniform(word))
  int64_t (*count_green)(const uint32_t* words, int64_t count, uint32_t threshold);
  double (*sum_races)(const uint32_t* words, int64_t count);  // of their race scores; count below 2^31
  // MT19937 (random_lists.h): the next 624 words of the state, in place and untempered.
  void (*twist)(uint32_t* state);
  // target[j] = first + j + tempered(state[j]) % (size - first - j) for j < count <= min(624, size - first); entries up
  // to the next multiple of 16 may be overwritten.
  void (*draw_targets)(const uint32_t* state, uint32_t size, uint32_t first, int count, uint32_t* target);
  // The first j in [begin, end) with values[j] == wanted, else end; reads up to 15 entries beyond the end.
  int (*first_equal)(const uint32_t* values, int begin, int end, uint32_t wanted);
};

constexpr int64_t kRacePiece = 4096;  // tokens that one bound is worked out for; a multiple of 4
constexpr int64_t kQuadsAtOnce = 512, kQuadRoom = kQuadsAtOnce + kRacePiece / 4 + 64;
constexpr float kMostDraw = 22.88f, kLeastDraw = -3.14f;  // bounds of the noise of a 32-bit draw
constexpr int64_t kScorePad = 32;
// The least sum that matters: of the k greatest, or within reach of the greatest, rounding included.
inline float least_drawn(float kth, float top, float reach) {
  const float slack = 1e-3f + 1e-6f * (top < 0 ? -top : top), behind = top - reach - slack;
  return behind < kth ? behind : behind == behind ? kth : -INFINITY;
}
inline int64_t selfhash_scratch(int64_t count, int64_t window) { return 4 * (count + window + kScorePad); }

inline int64_t attend_scratch(int64_t rows, int64_t padded) { return 3 * kTile * padded + rows * (kTile + 1); }

extern const Kernels kGeneric, kAvx2, kAvx512;

// The best set this machine runs; CAW_CPU_ISA=generic|avx2|avx512 lowers it (for tests), read once.
const Kernels& kernels();

// Float order as unsigned integers, NaN greatest, then smaller ids first: one integer orders a record.
inline uint64_t order_key(float x, int64_t id) {
  uint32_t bits;
  x = x == 0 ? 0.0f : x;
  __builtin_memcpy(&bits, &x, 4);
  bits = bits & 0x80000000u ? ~bits : bits | 0x80000000u;
  return uint64_t(bits) << 32 | (0xFFFFFFFFu - uint32_t(id));
}
inline int64_t key_id(uint64_t key) { return int64_t(0xFFFFFFFFu - uint32_t(key)); }

}  // namespace caw
