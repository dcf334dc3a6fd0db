// Watermark ops on CUDA: the arithmetic of candidates.h and random_lists.h, one block a row. No host synchronisation.

#include <cuda_runtime.h>

#include <tuple>

#include "../candidates.h"
#include "../random_lists.h"
#include "../tensors.h"

namespace caw {
namespace {

constexpr int kThreads = 128;
constexpr int kMaxRecord = 1024;  // K; bounds shared memory

cudaStream_t current_stream(const Tensor& t) {
  void* stream = nullptr;
  require(aoti_torch_get_current_cuda_stream(t.get_device_index(), &stream) == AOTI_TORCH_SUCCESS,
      "the current CUDA stream is not available");
  return static_cast<cudaStream_t>(stream);
}

void require_launched() {
  const cudaError_t error = cudaGetLastError();
  require(error == cudaSuccess, std::string("a CUDA kernel did not start: ") + cudaGetErrorString(error));
}

// ---- enumerate_candidates -------------------------------------------------------------------------------------------

struct EnumerateArgs {
  const float *values, *race, *scores;
  const int64_t *ids, *context, *keys;
  int64_t size, scores_row, scores_stride, vocab_size, window, scheme, threshold, width;
  float full, max_strength;
  int64_t *candidates, *counts;
  float* needs;
};

// The better of two picks: the greater logit, then the smaller id; a NaN wins over all (it leaves the row unmarked).
__device__ Pick better(const Pick& a, const Pick& b) {
  if (a.logit != a.logit) return a;
  if (b.logit != b.logit) return b;
  if (a.token < 0) return b;
  if (b.token < 0) return a;
  return a.logit > b.logit || (a.logit == b.logit && a.token < b.token) ? a : b;
}

__device__ Pick best_of_block(Pick mine) {
  __shared__ Pick picks[kThreads];
  picks[threadIdx.x] = mine;
  __syncthreads();
  for (int half = kThreads / 2; half > 0; half /= 2) {
    if (threadIdx.x < half) picks[threadIdx.x] = better(picks[threadIdx.x], picks[threadIdx.x + half]);
    __syncthreads();
  }
  const Pick best = picks[0];
  __syncthreads();
  return best;
}

__device__ Pick block_best_green(const Row& row, const GreenTest& green, float boost) {
  Pick mine{-1, -INFINITY};  // the record is sorted: its best green entry is its first
  for (int64_t j = threadIdx.x; j < row.size; j += kThreads) {
    if (row.values[j] > -INFINITY && green(row.ids[j])) {
      mine = Pick{row.ids[j], row.values[j]};
      break;
    }
  }
  const Pick recorded = best_of_block(mine);
  if (recorded.token >= 0) return recorded;
  const float last = row.values[row.size - 1];
  if (!(last > -INFINITY && last + boost >= row.values[0])) return recorded;
  mine = Pick{-1, -INFINITY};
  for (int64_t token = threadIdx.x; token < row.vocab_size; token += kThreads) {
    const float score = row.scores[token * row.scores_stride];
    if (score <= mine.logit || !green(token)) continue;
    mine = Pick{score != score ? -1 : token, score};
    if (score != score) break;
  }
  return best_of_block(mine);
}

__global__ void enumerate_kernel(EnumerateArgs in) {
  __shared__ double races[kMaxRecord];
  const int64_t b = blockIdx.x;
  const Row row{in.values + b * in.size, in.ids + b * in.size, in.race + b * in.size, in.size,
      in.scores + b * in.scores_row, in.scores_stride, in.vocab_size};
  const Rungs out{in.candidates + b * in.width, in.needs + b * in.width, in.counts + b, in.width};
  const int64_t* context = in.context + b * in.window;
  const uint64_t key = uint64_t(in.keys[b]);
  if (in.scheme == kContextGreen || in.scheme == kSelfhashGreen) {
    const GreenTest green(key, in.threshold, context, in.window, 1, in.scheme == kSelfhashGreen);
    const float boost = in.max_strength * in.full;
    const Pick pick = block_best_green(row, green, boost);
    if (threadIdx.x == 0) reweight_ladder(row, pick, boost, out);
    return;
  }
  const Words state = absorb_context(key, context, in.window);
  const bool top_k = in.scheme == kRaceTopK;
  for (int64_t j = threadIdx.x; j < in.size; j += kThreads)
    races[j] = top_k ? race_value(row, key, state, j) : slope_value(row, key, state, j);
  __syncthreads();
  if (threadIdx.x != 0) return;
  if (top_k) {
    top_k_ladder(row, races, out);
  } else {
    scale_ladder(row, races, in.max_strength, out);
  }
}

std::tuple<Tensor, Tensor, Tensor> enumerate_candidates(const Tensor& values, const Tensor& ids, const Tensor& race,
    const Tensor& scores, const Tensor& context, const Tensor& key, int64_t scheme, int64_t threshold, double full,
    double max_strength) {
  require(scheme >= 0 && scheme <= 3, "scheme must be 0, 1, 2 or 3, got " + std::to_string(scheme));
  require(values.dim() == 2 && values.size(1) >= 1 && values.size(1) <= kMaxRecord,
      "values must have shape [B, K] with K in [1, 1024], got " + shape_of(values));
  const int64_t batch = values.size(0), size = values.size(1);
  require_tensor("ids", ids, ScalarType::Long, {batch, size});
  require_tensor("race", race, ScalarType::Float, {batch, size});
  require(scores.dim() == 2 && scores.size(0) == batch, "scores must have shape [B, V], got " + shape_of(scores));
  require(context.dim() == 2 && context.size(0) == batch, "context must have shape [B, W], got " + shape_of(context));
  require_dtype("values", values, ScalarType::Float);
  require_dtype("scores", scores, ScalarType::Float);
  require_dtype("context", context, ScalarType::Long);
  require_tensor("key", key, ScalarType::Long, {batch});
  require(scheme != kSelfhashGreen || context.size(1) >= 1,
      "selfhash needs a context of at least one token, got " + shape_of(context));
  const Tensor value_rows = dense(values), id_rows = dense(ids), race_rows = dense(race), contexts = dense(context);
  const Tensor keys = dense(key);
  const float whole = float(full), greatest = float(max_strength);
  const int64_t width = scheme == kRaceTopK ? reachable_ranks(size, whole, greatest) : scheme == kRaceScale ? size : 2;
  Tensor candidates = make({batch, width}, ScalarType::Long, &values), counts = make({batch}, ScalarType::Long, &values);
  Tensor needs = make({batch, width}, ScalarType::Float, &values);
  if (batch > 0) {
    const EnumerateArgs args{value_rows.const_data_ptr<float>(), race_rows.const_data_ptr<float>(),
        scores.const_data_ptr<float>(), id_rows.const_data_ptr<int64_t>(), contexts.const_data_ptr<int64_t>(),
        keys.const_data_ptr<int64_t>(), size, scores.stride(0), scores.stride(1), scores.size(1), context.size(1),
        scheme, threshold, width, whole, greatest, candidates.mutable_data_ptr<int64_t>(), counts.mutable_data_ptr<int64_t>(),
        needs.mutable_data_ptr<float>()};
    enumerate_kernel<<<unsigned(batch), kThreads, 0, current_stream(values)>>>(args);
    require_launched();
  }
  return {candidates, needs, counts};
}

// ---- score_tokens ---------------------------------------------------------------------------------------------------

__global__ void score_kernel(const int64_t* tokens, int64_t count, int64_t window, const int64_t* keys, int64_t scheme,
    int64_t threshold, double* values, int64_t* seeds) {
  const int64_t i = int64_t(blockIdx.x) * blockDim.x + threadIdx.x;
  if (i >= count) return;
  int64_t context[64];
  for (int64_t j = 0; j < window; ++j) context[j] = i - window + j < 0 ? kMissing : tokens[i - window + j];
  const Score score = score_token(uint64_t(keys[i]), scheme, threshold, context, window, tokens[i]);
  values[i] = score.value;
  if (seeds) seeds[i] = score.seed;
}

std::tuple<Tensor, Tensor> score_tokens(
    const Tensor& tokens, int64_t window, const Tensor& key, int64_t scheme, int64_t threshold) {
  require(scheme >= 0 && scheme <= 3, "scheme must be 0, 1, 2 or 3, got " + std::to_string(scheme));
  require(tokens.dim() == 1, "tokens must have shape [n], got " + shape_of(tokens));
  require_dtype("tokens", tokens, ScalarType::Long);
  const bool selfhash = scheme == kSelfhashGreen;
  require(window >= selfhash && window <= 64, "window must be in [0, 64] (selfhash: from 1), got " + std::to_string(window));
  require_tensor("key", key, ScalarType::Long, {tokens.size(0)});
  const Tensor ids = dense(tokens), keys = dense(key);
  const int64_t n = ids.size(0);
  Tensor values = make({n}, ScalarType::Double, &tokens), seeds = make({selfhash ? n : 0}, ScalarType::Long, &tokens);
  if (n > 0) {
    score_kernel<<<unsigned((n + kThreads - 1) / kThreads), kThreads, 0, current_stream(tokens)>>>(
        ids.const_data_ptr<int64_t>(), n, window, keys.const_data_ptr<int64_t>(), scheme, threshold, values.mutable_data_ptr<double>(),
        selfhash ? seeds.mutable_data_ptr<int64_t>() : nullptr);
    require_launched();
  }
  return {values, seeds};
}

// ---- sampling_noise -------------------------------------------------------------------------------------------------

__global__ void noise_kernel(
    const int64_t* contexts, int64_t width, const int64_t* keys, int64_t vocab_size, float* out) {
  const int64_t counter = int64_t(blockIdx.x) * blockDim.x + threadIdx.x, row = blockIdx.y;
  if (counter * 4 >= vocab_size) return;
  const uint64_t key = uint64_t(keys[row]);
  const Words state = absorb_context(key, contexts + row * width, width);
  const Words words = philox4x32(Words{{uint32_t(counter), state.w[0], state.w[1], state.w[2]}},
      uint32_t(key) ^ state.w[3], uint32_t(key >> 32) ^ kTokenDomain);
  for (int64_t i = 0; i < 4 && counter * 4 + i < vocab_size; ++i) {
    const double u = (double(words.w[i]) + 0.5) / 4294967296.0;
    out[row * vocab_size + counter * 4 + i] = -float(log(-log(u)));
  }
}

Tensor sampling_noise(const Tensor& context, const Tensor& key, int64_t vocab_size) {
  require(context.dim() == 2, "context must have shape [B, W], got " + shape_of(context));
  require_dtype("context", context, ScalarType::Long);
  require_tensor("key", key, ScalarType::Long, {context.size(0)});
  require_vocabulary(vocab_size);
  const Tensor contexts = dense(context), keys = dense(key);
  const int64_t batch = contexts.size(0);
  require(batch < 65536, "at most 65535 rows fit one launch, got " + std::to_string(batch));
  Tensor noise = make({batch, vocab_size}, ScalarType::Float, &context);
  if (batch > 0) {
    const int64_t counters = (vocab_size + 3) / 4;
    const dim3 grid(unsigned((counters + kThreads - 1) / kThreads), unsigned(batch));
    noise_kernel<<<grid, kThreads, 0, current_stream(context)>>>(
        contexts.const_data_ptr<int64_t>(), contexts.size(1), keys.const_data_ptr<int64_t>(), vocab_size, noise.mutable_data_ptr<float>());
    require_launched();
  }
  return noise;
}

// ---- lists of torch's CPU generator ---------------------------------------------------------------------------------

constexpr int kListThreads = 256;  // at least 227: one phase of the twist

// Twist 624 words in three phases, each of which reads nothing that it writes except its own word.
__device__ void advance_in_parallel(uint32_t* state) {
  constexpr int kPhase = kStateSize - kStateMiddle;
  for (int begin = 0; begin < kStateSize; begin += kPhase) {
    const int j = begin + int(threadIdx.x);
    const bool mine = threadIdx.x < kPhase && j < kStateSize;
    uint32_t word = 0;
    if (mine)
      word = MersenneTwister::mixed(state[j], state[(j + 1) % kStateSize], state[(j + kStateMiddle) % kStateSize]);
    __syncthreads();
    if (mine) state[j] = word;
    __syncthreads();
  }
}

__device__ void start_in_block(uint32_t* state, uint32_t seed) {
  if (threadIdx.x == 0) {
    state[0] = seed;
    for (int j = 1; j < kStateSize; ++j) state[j] = 1812433253u * (state[j - 1] ^ (state[j - 1] >> 30)) + uint32_t(j);
  }
  __syncthreads();
}

// The positions that the draws [first, first + result) swap with. The caller synchronises before others read them.
__device__ int targets_in_parallel(
    const uint32_t* state, int64_t size, int64_t first, int64_t count, uint32_t* target) {
  const int draws = int(count - first < kStateSize ? count - first : kStateSize);
  for (int i = threadIdx.x; i < draws; i += kListThreads)
    target[i] = uint32_t(first + i) + MersenneTwister::tempered(state[i]) % uint32_t(size - first - i);
  return draws;
}

// One block a seed. Draws are made in parallel; the swaps follow one another, on lines that were brought to the cache.
__global__ void permutation_kernel(
    const int64_t* seeds, const bool* wanted, int64_t size, int64_t count, uint32_t* orders, int32_t* sets,
    int64_t words) {
  __shared__ uint32_t state[kStateSize];
  __shared__ uint32_t target[kStateSize];
  const int64_t row = blockIdx.x;
  uint32_t* order = orders + row * size;
  for (int64_t i = threadIdx.x; i < words; i += kListThreads) sets[row * words + i] = 0;
  if (wanted && !wanted[row]) return;  // the whole block
  for (int64_t i = threadIdx.x; i < size; i += kListThreads) order[i] = uint32_t(i);
  start_in_block(state, uint32_t(seeds[row]));
  for (int64_t first = 0; first < count; first += kStateSize) {
    advance_in_parallel(state);
    const int draws = targets_in_parallel(state, size, first, count, target);
    for (int i = threadIdx.x; i < draws; i += kListThreads)  // each thread its own targets
      asm volatile("prefetch.global.L1 [%0];" ::"l"(order + target[i]));
    __syncthreads();
    if (threadIdx.x == 0) {
      for (int i = 0; i < draws; ++i) {
        const uint32_t at = target[i], token = order[at];
        order[at] = order[first + i];
        order[first + i] = token;
      }
    }
    __syncthreads();
    for (int i = threadIdx.x; i < draws; i += kListThreads) {
      const uint32_t token = order[first + i];
      atomicOr(sets + row * words + (token >> 5), int32_t(1u << (token & 31)));
    }
  }
}

Tensor permutation_green(
    const Tensor& seeds, int64_t vocab_size, int64_t count, const std::optional<Tensor>& wanted) {
  require_list(seeds, vocab_size, count);
  if (wanted) require_wanted(*wanted, seeds);
  const Tensor numbers = dense(seeds);
  const int64_t rows = numbers.size(0), words = (vocab_size + 31) / 32;
  Tensor out = make({rows, words}, ScalarType::Int, &seeds);
  Tensor orders = make({rows, vocab_size}, ScalarType::Int, &seeds);
  const Tensor flags = wanted ? dense(*wanted) : numbers;
  const bool* asked = wanted ? static_cast<const bool*>(flags.const_data_ptr()) : nullptr;
  if (rows > 0) {
    permutation_kernel<<<unsigned(rows), kListThreads, 0, current_stream(seeds)>>>(
        numbers.const_data_ptr<int64_t>(), asked, vocab_size, count, static_cast<uint32_t*>(orders.mutable_data_ptr()),
        static_cast<int32_t*>(out.mutable_data_ptr()), words);
    require_launched();
  }
  return out;
}

// One block a pair: the token is followed from place to place (random_lists.h), each search in parallel.
__global__ void contains_kernel(const int64_t* seeds, const int64_t* tokens, int64_t size, int64_t count, bool* out) {
  __shared__ uint32_t state[kStateSize];
  __shared__ uint32_t target[kStateSize];
  __shared__ int hit;
  const int64_t row = blockIdx.x;
  int64_t place = tokens[row];  // the same in every thread, as is all that steers the loops
  bool found = false;
  start_in_block(state, uint32_t(seeds[row]));
  for (int64_t first = 0; place >= 0 && place < size && !found && first < count; first += kStateSize) {
    advance_in_parallel(state);
    const int draws = targets_in_parallel(state, size, first, count, target);
    __syncthreads();
    for (int j = 0; !found;) {
      const int64_t passed = place - first;
      const int stop = int(passed < draws ? passed : draws);
      if (threadIdx.x == 0) hit = stop;
      __syncthreads();
      for (int i = j + int(threadIdx.x); i < stop; i += kListThreads)
        if (int64_t(target[i]) == place) atomicMin(&hit, i);
      __syncthreads();
      found = hit < stop;
      __syncthreads();
      if (found || passed >= draws) break;
      found = int64_t(target[passed]) == place;
      place = target[passed];
      j = int(passed) + 1;
    }
  }
  if (threadIdx.x == 0) out[row] = found;
}

__global__ void words_kernel(const int64_t* seeds, const int64_t* indices, int64_t* out) {
  __shared__ uint32_t state[kStateSize];
  const int64_t row = blockIdx.x, index = indices[row];
  start_in_block(state, uint32_t(seeds[row]));
  for (int64_t block = 0; block <= index / kStateSize; ++block) advance_in_parallel(state);
  if (threadIdx.x == 0) out[row] = index < 0 ? 0 : MersenneTwister::tempered(state[index % kStateSize]);
}

Tensor permutation_contains(const Tensor& seeds, const Tensor& tokens, int64_t vocab_size, int64_t count) {
  require_list(seeds, vocab_size, count);
  require_tensor("tokens", tokens, ScalarType::Long, {seeds.size(0)});
  const Tensor numbers = dense(seeds), ids = dense(tokens);
  Tensor out = make({numbers.size(0)}, ScalarType::Bool, &seeds);
  if (numbers.size(0) > 0) {
    contains_kernel<<<unsigned(numbers.size(0)), kListThreads, 0, current_stream(seeds)>>>(
        numbers.const_data_ptr<int64_t>(), ids.const_data_ptr<int64_t>(), vocab_size, count,
        static_cast<bool*>(out.mutable_data_ptr()));
    require_launched();
  }
  return out;
}

// Indices are not checked here: that would wait for the device. Negative ones give 0.
Tensor generator_words(const Tensor& seeds, const Tensor& indices) {
  require(seeds.dim() == 1, "seeds must have shape [N], got " + shape_of(seeds));
  require_dtype("seeds", seeds, ScalarType::Long);
  require_tensor("indices", indices, ScalarType::Long, {seeds.size(0)});
  const Tensor numbers = dense(seeds), places = dense(indices);
  Tensor out = make({numbers.size(0)}, ScalarType::Long, &seeds);
  if (numbers.size(0) > 0) {
    words_kernel<<<unsigned(numbers.size(0)), kListThreads, 0, current_stream(seeds)>>>(
        numbers.const_data_ptr<int64_t>(), places.const_data_ptr<int64_t>(), out.mutable_data_ptr<int64_t>());
    require_launched();
  }
  return out;
}

}  // namespace
}  // namespace caw

STABLE_TORCH_LIBRARY_IMPL(caw, CUDA, m) {
  m.impl("enumerate_candidates", TORCH_BOX(&caw::enumerate_candidates));
  m.impl("score_tokens", TORCH_BOX(&caw::score_tokens));
  m.impl("sampling_noise", TORCH_BOX(&caw::sampling_noise));
  m.impl("permutation_green", TORCH_BOX(&caw::permutation_green));
  m.impl("permutation_contains", TORCH_BOX(&caw::permutation_contains));
  m.impl("generator_words", TORCH_BOX(&caw::generator_words));
}
