// decoder_layer and prefill_layer on the CPU: one pre-norm transformer layer (RMSNorm, rotary attention, gated SiLU MLP) of
// a decoding step, or of prompts, in one call. Formula and arguments: caw/ops_ref/decoder_layer_ref.py.
//
// With a few rows a step, nearly all the time goes into reading the weights; launching 60 small operators a layer from
// Python costs as much again (8 ms a step on a 30-layer model). Sums and activations are float32 whatever the
// weights are; keys, values, queries and the result are rounded to the weights' type.

#include <algorithm>
#include <cmath>
#include <cstring>
#include <optional>

#include "convert.h"
#include "cpu/linear.h"
#include "ops.h"
#include "quantised_linear.h"

namespace caw {
namespace {

constexpr int64_t kNorm1 = 0, kQ = 1, kK = 2, kV = 3, kO = 4, kNorm2 = 5, kGate = 6, kUp = 7, kDown = 8;
constexpr int64_t kQNorm = 9, kKNorm = 10;  // Qwen3's; absent in the others
constexpr int64_t kMostSlots = int64_t(1) << 31;
constexpr float kLargestExponent = 88.0f;   // of the vector exponential

struct Matrix {
  const char* data;
  Dtype type;
  int64_t outputs, size;
  std::vector<float> bias;
  Packed packed;  // its form is null where the weights are plain
  int64_t tiles() const { return (outputs + kLinearTile - 1) / kLinearTile; }
};

int64_t outputs_of(const char* name, const Tensor& weight) {
  if (is_packed(weight)) return packed(name, weight).outputs;
  require(weight.dim() == 2, std::string(name) + " must have two dimensions, got " + shape_of(weight));
  return weight.size(0);
}

Matrix matrix(const char* name, const Tensor& weight, const std::optional<Tensor>& bias, Dtype type, int64_t outputs,
    int64_t size) {
  Packed blocks;
  if (is_packed(weight)) {
    blocks = packed(name, weight);
    require(type == kFloat32, std::string(name) + " is packed, so hidden must be float32; convert it before the call");
    require(blocks.outputs == outputs && blocks.size == size, std::string(name) + " must be packed weights [" +
        std::to_string(outputs) + ", " + std::to_string(size) + "], got [" + std::to_string(blocks.outputs) + ", " +
        std::to_string(blocks.size) + "]");
  } else {
    require_shape(name, weight, {outputs, size});
  }
  require(blocks.form || (weight.is_contiguous() && dtype_of(name, weight) == type),
      std::string(name) + " must be contiguous and of hidden's dtype; convert it before the call");
  Matrix m{static_cast<const char*>(weight.const_data_ptr()), type, outputs, size, {}, blocks};
  if (bias.has_value()) {
    require_shape("biases", *bias, {outputs});
    require(dtype_of("biases", *bias) == type, "biases must have hidden's dtype; convert them before the call");
    m.bias = widen(*bias, type);
  }
  return m;
}

int64_t tile_cost(const Matrix& m, int64_t rows) {  // nanoseconds: 10 bytes or 40 products in each
  if (m.packed.form) return kLinearTile / kTileOutputs * packed_tile_cost(m.packed, rows);
  return kLinearTile * m.size * std::max(element_size(m.type) * 4, rows) / 40;
}

// Rows as products with a matrix read them.
class Input {
 public:
  Input(const Rows& x, const Matrix& m) : rows_(x.count) {
    if (!m.packed.form) {
      plain_.emplace(x, m.type);
      return;
    }
    digits_.emplace(x.count, x.size, m.packed.fast);
    fill(x.data.data(), x.stride, *digits_);
  }
  // As LinearInput's; packed weights are unpacked once for all rows.
  template <class F>
  void for_each_block(const F& f) const {
    if (digits_)
      f(int64_t(0), rows_);
    else
      plain_->for_each_block(f);
  }
  // Floats of a tile's results, with room for `multiply` to work in.
  static size_t room(int64_t rows) { return size_t(rows * (kLinearTile + kTileOutputs)); }
  void multiply(int64_t first_row, int64_t rows, const Matrix& m, int64_t first, int64_t count, float* part) const {
    if (digits_)
      multiply_outputs(*digits_, m.packed, first, count, part + rows * kLinearTile, part, kLinearTile);
    else
      plain_->multiply(first_row, rows, offset_bytes(m.data, first * m.size, m.type), m.size, count, part);
  }

 private:
  int64_t rows_;
  std::optional<LinearInput> plain_;
  std::optional<Activations> digits_;
};

// part[m * kLinearTile + o] = the outputs of one tile for rows first to first + rows; returns how many there are.
int64_t multiply_tile(
    const Input& x, int64_t first_row, int64_t rows, const Matrix& m, int64_t tile, std::vector<float>& part) {
  const int64_t first = tile * kLinearTile, count = std::min(kLinearTile, m.outputs - first);
  part.resize(Input::room(rows));
  x.multiply(first_row, rows, m, first, count, part.data());
  if (!m.bias.empty())
    for (int64_t r = 0; r < rows; ++r)
      for (int64_t o = 0; o < count; ++o) part[size_t(r * kLinearTile + o)] += m.bias[size_t(first + o)];
  return count;
}

// out[i] = (add_to_out ? out[i] : 0) + x matrices[i]^T + bias, all matrices in one parallel section.
void multiply(const Rows& x, const std::vector<const Matrix*>& matrices, const std::vector<Rows*>& out, bool add_to_out) {
  const Input input(x, *matrices[0]);
  int64_t tiles = 0;
  for (const Matrix* m : matrices) tiles += m->tiles();
  for_each_part(tiles, tile_cost(*matrices[0], x.count), [&](int64_t begin, int64_t end) {
    std::vector<float> part;
    input.for_each_block([&](int64_t above, int64_t rows) {
      for (int64_t i = begin; i < end; ++i) {
        size_t which = 0;
        int64_t tile = i;
        while (tile >= matrices[which]->tiles()) tile -= matrices[which++]->tiles();
        const int64_t count = multiply_tile(input, above, rows, *matrices[which], tile, part);
        for (int64_t r = 0; r < rows; ++r) {
          float* target = out[which]->row(above + r) + tile * kLinearTile;
          for (int64_t o = 0; o < count; ++o)
            target[o] = (add_to_out ? target[o] : 0.0f) + part[size_t(r * kLinearTile + o)];
        }
      }
    });
  });
}

// out = silu(x gate^T) * (x up^T)
void gated(const Rows& x, const Matrix& gate, const Matrix& up, Rows& out) {
  const Input input(x, gate);
  for_each_part(gate.tiles(), 2 * tile_cost(gate, x.count), [&](int64_t begin, int64_t end) {
    std::vector<float> g, u;
    float exponent[kLinearTile], power[kLinearTile];
    input.for_each_block([&](int64_t above, int64_t rows) {
      for (int64_t tile = begin; tile < end; ++tile) {
        const int64_t count = multiply_tile(input, above, rows, gate, tile, g);
        multiply_tile(input, above, rows, up, tile, u);
        for (int64_t r = 0; r < rows; ++r) {
          const float *a = g.data() + r * kLinearTile, *b = u.data() + r * kLinearTile;
          for (int64_t o = 0; o < count; ++o) exponent[o] = -a[o] > kLargestExponent ? kLargestExponent : -a[o];
          kernels().exp_shifted(exponent, 0.0f, count, power);
          float* target = out.row(above + r) + tile * kLinearTile;
          for (int64_t o = 0; o < count; ++o) target[o] = a[o] / (1.0f + power[o]) * b[o];
        }
      }
    });
  });
}

constexpr int64_t kRowCost = 2;  // nanoseconds for a number of a row that is normalised, rotated or converted

// x * rsqrt(mean(x^2) + eps) * weight
void normalise(const float* x, const std::vector<float>& weight, double eps, float* out) {
  const size_t size = weight.size();
  double sums[4] = {};  // four sums, because each addition waits for the one before
  for (size_t i = 0; i < size; ++i) sums[i % 4] += double(x[i]) * x[i];
  const double squares = (sums[0] + sums[1]) + (sums[2] + sums[3]);
  const float factor = float(1.0 / std::sqrt(squares / double(size) + eps));
  for (size_t i = 0; i < size; ++i) out[i] = x[i] * factor * weight[i];
}

// Rotates pairs (i, i + D/2) of one head in place; cos and sin hold D values.
void rotate(float* x, const float* cos, const float* sin, int64_t dim) {
  const int64_t half = dim / 2;
  for (int64_t i = 0; i < half; ++i) {
    const float a = x[i], b = x[i + half];
    x[i] = a * cos[i] - b * sin[i];
    x[i + half] = b * cos[i + half] + a * sin[i + half];
  }
}

struct Shape {
  int64_t batch, rows, width, heads, kv_heads, dim;
  Dtype type;
  ScalarType scalar;
  std::vector<int64_t> sequence, slot;  // [rows]: whose candidate or token it is; its place in scratch or its position
};

// f(r) for every row, of `size` numbers each.
template <class F>
void for_each_row(int64_t rows, int64_t size, const F& f) {
  for_each_part(rows, kRowCost * size, [&](int64_t begin, int64_t end) {
    for (int64_t r = begin; r < end; ++r) f(r);
  });
}

// [rows, heads * D] -> tensor [rows, heads, 1, D] of the weights' type
Tensor by_head(const Rows& x, const Shape& at, int64_t heads) {
  Tensor out = make({at.rows, heads, 1, at.dim}, at.scalar);
  void* base = out.mutable_data_ptr();
  for_each_row(at.rows, heads * at.dim,
      [&](int64_t r) { narrow_row(x.row(r), heads * at.dim, at.type, base, r * heads * at.dim); });
  return out;
}

// Keys or values [rows, HK, 1, D] to places in a cache or scratch, `place(r)` elements from its beginning, heads `head`
// elements apart.
template <class F>
void keep(const Tensor& own, const Tensor& kept, int64_t head, const Shape& at, const F& place) {
  const size_t bytes = size_t(element_size(at.type));
  char* to = static_cast<char*>(kept.mutable_data_ptr());
  const char* from = static_cast<const char*>(own.const_data_ptr());
  for (int64_t r = 0; r < at.rows; ++r)
    for (int64_t h = 0; h < at.kv_heads; ++h)
      std::memcpy(to + size_t(place(r) + h * head) * bytes, from + size_t((r * at.kv_heads + h) * at.dim) * bytes,
          size_t(at.dim) * bytes);
}

// Candidates' keys or values into scratch[sequence, slot], scratch [B', slots, HK, D].
void keep_candidates(const Tensor& own, const Tensor& scratch, const Shape& at) {
  keep(own, scratch, scratch.stride(2), at, [&](int64_t r) {
    return at.sequence[size_t(r)] * scratch.stride(0) + at.slot[size_t(r)] * scratch.stride(1);
  });
}

// Prompts' keys or values into cache[sequence, :, slot], cache [B, HK, S, D].
void keep_tokens(const Tensor& own, const Tensor& cache, const Shape& at) {
  keep(own, cache, cache.stride(1), at, [&](int64_t r) {
    return at.sequence[size_t(r)] * cache.stride(0) + at.slot[size_t(r)] * cache.stride(2);
  });
}

void check_scratch(const char* name, const Tensor& t, const Shape& at) {
  require(t.dim() == 4 && t.size(0) >= at.batch && t.size(2) == at.kv_heads && t.size(3) == at.dim,
      std::string(name) + " must have shape [B, slots, HK, D], got " + shape_of(t));
  for (const int64_t slot : at.slot)
    require(slot >= 0 && slot < t.size(1), "slot must leave room for the candidates in " + std::string(name) + ", got " +
        std::to_string(slot));
  require(t.scalar_type() == at.scalar && (t.stride(3) == 1 || at.dim == 1),
      std::string(name) + " must have hidden's dtype and be dense in its last dimension");
}

// Whose candidates the rows are: C of every sequence, or, packed, those that `rows` says, one after another.
void place(Shape& at, const Tensor& hidden, int64_t slot, const std::optional<Tensor>& rows) {
  // only so that the sums below do not overflow; that scratch is large enough is checked where its size is known
  require(slot >= 0 && slot <= kMostSlots, "slot must be in [0, 2^31], got " + std::to_string(slot));
  if (rows.has_value()) {
    at.sequence = integers("rows", *rows);
    require(hidden.size(1) == 1 && at.rows == int64_t(at.sequence.size()), "hidden must have shape [" +
        std::to_string(at.sequence.size()) + ", 1, E], a row for each of rows, got " + shape_of(hidden));
  } else {
    require(hidden.size(0) == at.batch, "hidden must have a row for each of k_cache, got " + shape_of(hidden));
    for (int64_t r = 0; r < at.rows; ++r) at.sequence.push_back(r / hidden.size(1));
  }
  for (size_t r = 0; r < at.sequence.size(); ++r) {
    const int64_t b = at.sequence[r];
    require(b >= 0 && b < at.batch, "rows must be in [0, B), got " + std::to_string(b));
    at.slot.push_back(r && at.sequence[r - 1] == b ? at.slot[r - 1] + 1 : slot);
  }
}

Shape check(const Tensor& hidden, const Tensor& cos, const Tensor& sin, const Tensor& k_cache,
    const std::vector<Tensor>& weights) {
  require(hidden.dim() == 3, "hidden must have shape [B, C, E], got " + shape_of(hidden));
  require(k_cache.dim() == 4 && k_cache.size(1) > 0, "k_cache must have shape [B, HK, S, D], got " + shape_of(k_cache));
  require(weights.size() == 9 || weights.size() == 11, "weights must be 9 tensors, or 11 with norms of queries and "
      "keys, got " + std::to_string(weights.size()));
  const int64_t dim = k_cache.size(3);
  require(dim > 0 && dim % 2 == 0, "the head dimension must be even, got " + std::to_string(dim));
  const Dtype type = dtype_of("hidden", hidden);
  require(type != kFloat16, "hidden must be float32 or bfloat16; run float16 models with backend='reference'");
  Shape at{k_cache.size(0), hidden.size(0) * hidden.size(1), hidden.size(2), 0, k_cache.size(1), dim, type,
      hidden.scalar_type(), {}, {}};
  const int64_t inner = outputs_of("weights[1]", weights[kQ]);
  require(inner % dim == 0, "weights[1] must have shape [H * D, E], got " + shape_of(weights[kQ]));
  at.heads = inner / dim;
  for (const int64_t i : {kK, kV, kO, kGate, kUp, kDown})
    require(is_packed(weights[size_t(i)]) == is_packed(weights[kQ]), "either all matrices of weights must be packed or none");
  require_shape("cos", cos, {hidden.size(0), hidden.size(1), dim});
  require_shape("sin", sin, {hidden.size(0), hidden.size(1), dim});
  require(dtype_of("cos", cos) == type && dtype_of("sin", sin) == type, "cos and sin must have hidden's dtype");
  for (const int64_t i : {kNorm1, kNorm2}) {
    require_shape("the norms of weights", weights[size_t(i)], {at.width});
    require(dtype_of("the norms of weights", weights[size_t(i)]) == type, "the norms of weights must have hidden's dtype");
  }
  if (weights.size() == 11)
    for (const int64_t i : {kQNorm, kKNorm}) {
      require_shape("weights[9] and weights[10]", weights[size_t(i)], {dim});
      require(dtype_of("weights[9]", weights[size_t(i)]) == type, "weights[9] and weights[10] must have hidden's dtype");
    }
  return at;
}

// Norms of each head (if any) and rotation of [rows, heads * D] in place.
void turn(Rows& x, int64_t heads, const Shape& at, const std::vector<float>& norm, double eps, const Tensor& cos,
    const Tensor& sin) {
  const int64_t candidates = cos.size(1);
  const void *cos_base = cos.const_data_ptr(), *sin_base = sin.const_data_ptr();
  for_each_row(at.rows, heads * at.dim, [&](int64_t r) {
    std::vector<float> c(static_cast<size_t>(at.dim)), s(c);
    const int64_t b = r / candidates, q = r % candidates;
    for (int64_t d = 0; d < at.dim; ++d) {
      c[size_t(d)] = read(cos_base, b * cos.stride(0) + q * cos.stride(1) + d * cos.stride(2), at.type);
      s[size_t(d)] = read(sin_base, b * sin.stride(0) + q * sin.stride(1) + d * sin.stride(2), at.type);
    }
    for (int64_t h = 0; h < heads; ++h) {
      float* head = x.row(r) + h * at.dim;
      if (!norm.empty()) normalise(head, norm, eps, head);
      rotate(head, c.data(), s.data(), at.dim);
    }
  });
}

// The layer around its attention: mix(queries [rows, H, 1, D], keys, values [rows, HK, 1, D]) -> shaped as the queries.
template <class F>
Tensor run(const Shape& at, const Tensor& hidden, const Tensor& cos, const Tensor& sin, const std::vector<Tensor>& weights,
    const std::vector<std::optional<Tensor>>& biases, double eps, const F& mix) {
  require(biases.size() == 7, "biases must be 7, of q, k, v, o, gate, up and down, got " + std::to_string(biases.size()));
  const int64_t inner = at.heads * at.dim, kv = at.kv_heads * at.dim, wide = outputs_of("weights[6]", weights[kGate]);
  const auto get = [&](const char* name, int64_t i, size_t bias, int64_t outputs, int64_t size) {
    return matrix(name, weights[size_t(i)], biases[bias], at.type, outputs, size);
  };
  const Matrix q = get("weights[1]", kQ, 0, inner, at.width), k = get("weights[2]", kK, 1, kv, at.width);
  const Matrix v = get("weights[3]", kV, 2, kv, at.width), o = get("weights[4]", kO, 3, at.width, inner);
  const Matrix gate = get("weights[6]", kGate, 4, wide, at.width), up = get("weights[7]", kUp, 5, wide, at.width);
  const Matrix down = get("weights[8]", kDown, 6, at.width, wide);
  const std::vector<float> norm1 = widen(weights[kNorm1], at.type), norm2 = widen(weights[kNorm2], at.type);
  std::vector<float> q_norm, k_norm;
  if (weights.size() == 11) q_norm = widen(weights[kQNorm], at.type), k_norm = widen(weights[kKNorm], at.type);

  const Tensor input = dense(hidden);
  const void* input_base = input.const_data_ptr();
  Rows residual(at.rows, at.width), normed(at.rows, at.width), queries(at.rows, inner);
  for_each_row(at.rows, at.width, [&](int64_t r) {
    widen_row(input_base, r * at.width, at.width, at.type, residual.row(r));
    normalise(residual.row(r), norm1, eps, normed.row(r));
  });
  {
    Rows keys(at.rows, kv), values(at.rows, kv);
    multiply(normed, {&q, &k, &v}, {&queries, &keys, &values}, false);
    turn(queries, at.heads, at, q_norm, eps, cos, sin);
    turn(keys, at.kv_heads, at, k_norm, eps, cos, sin);
    const Tensor mixed =
        mix(by_head(queries, at, at.heads), by_head(keys, at, at.kv_heads), by_head(values, at, at.kv_heads));
    const void* mixed_base = mixed.const_data_ptr();
    for_each_row(at.rows, inner, [&](int64_t r) { widen_row(mixed_base, r * inner, inner, at.type, queries.row(r)); });
  }
  multiply(queries, {&o}, {&residual}, true);

  for_each_row(at.rows, at.width, [&](int64_t r) { normalise(residual.row(r), norm2, eps, normed.row(r)); });
  Rows active(at.rows, wide);
  gated(normed, gate, up, active);
  multiply(active, {&down}, {&residual}, true);
  Tensor out = make({hidden.size(0), hidden.size(1), at.width}, at.scalar);
  void* out_base = out.mutable_data_ptr();
  for_each_row(at.rows, at.width,
      [&](int64_t r) { narrow_row(residual.row(r), at.width, at.type, out_base, r * at.width); });
  return out;
}

}  // namespace

Tensor decoder_layer(const Tensor& hidden, const Tensor& cos, const Tensor& sin, const Tensor& k_cache,
    const Tensor& v_cache, const Tensor& k_scratch, const Tensor& v_scratch, int64_t slot, const Tensor& lengths,
    const std::vector<Tensor>& weights, const std::vector<std::optional<Tensor>>& biases, double eps, double scale,
    std::optional<int64_t> window, const std::optional<Tensor>& rows) {
  Shape at = check(hidden, cos, sin, k_cache, weights);
  place(at, hidden, slot, rows);
  check_scratch("k_scratch", k_scratch, at);
  check_scratch("v_scratch", v_scratch, at);
  return run(at, hidden, cos, sin, weights, biases, eps, [&](const Tensor& q, const Tensor& k, const Tensor& v) {
    keep_candidates(k, k_scratch, at);
    keep_candidates(v, v_scratch, at);
    return attend(
        q, k_cache, v_cache, k, v, lengths, &at.sequence, false, scale, window, std::nullopt, std::nullopt);
  });
}

// Row n is the token at positions[n] of the text in row rows[n] of the cache, which holds all tokens before it or gets
// them in this call. Its own key and value are kept at places[n]: a candidate beside the one that a draft follows stays out
// of the way of both.
Tensor prefill_layer(const Tensor& hidden, const Tensor& cos, const Tensor& sin, const Tensor& k_cache,
    const Tensor& v_cache, const Tensor& rows, const Tensor& positions, const std::vector<Tensor>& weights,
    const std::vector<std::optional<Tensor>>& biases, double eps, double scale, std::optional<int64_t> window,
    const std::optional<Tensor>& places) {
  Shape at = check(hidden, cos, sin, k_cache, weights);
  at.sequence = integers("rows", rows);
  at.slot = places ? integers("places", *places) : integers("positions", positions);
  const char* slot_name = places ? "places" : "positions";
  require_shape("positions", positions, {at.rows});
  require(at.rows == int64_t(at.sequence.size()) && at.rows == int64_t(at.slot.size()),
      "rows and " + std::string(slot_name) + " must have an entry for each of hidden's " + std::to_string(at.rows) +
          " rows, got " + shape_of(rows) + " and " + shape_of(places ? *places : positions));
  for (const Tensor* t : {&k_cache, &v_cache})
    require(t->dim() == 4 && t->size(0) == at.batch && t->size(1) == at.kv_heads && t->size(2) == k_cache.size(2) &&
            t->size(3) == at.dim && t->scalar_type() == at.scalar && t->stride(3) == 1,
        "k_cache and v_cache must have one shape [B, HK, S, D] and hidden's dtype and be dense in their last dimension");
  for (size_t r = 0; r < at.sequence.size(); ++r) {
    require(at.sequence[r] >= 0 && at.sequence[r] < at.batch, "rows must be in [0, B), got " +
        std::to_string(at.sequence[r]));
    require(at.slot[r] >= 0 && at.slot[r] < k_cache.size(2), std::string(slot_name) + " must be in [0, S), got " +
        std::to_string(at.slot[r]));
  }
  return run(at, hidden, cos, sin, weights, biases, eps, [&](const Tensor& q, const Tensor& k, const Tensor& v) {
    keep_tokens(k, k_cache, at);
    keep_tokens(v, v_cache, at);
    return attend(
        q, k_cache, v_cache, k, v, positions, &at.sequence, true, scale, window, std::nullopt, std::nullopt);
  });
}

}  // namespace caw
