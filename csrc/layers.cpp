// Pre-norm transformer layers (RMSNorm, rotary attention, gated MLP) one after another. Formula:
// triton_kernels/decoder_layer_ref.py.
//
// With a few rows a step, nearly all the time goes into reading the weights; everything between two products has to be
// short. So threads start once for all layers (Team), and memory is made once. Sums and activations are float32 whatever
// the weights are; queries, keys, values, what attention gives and each layer's result are rounded to the weights' type.
#include "layers.h"

#include <algorithm>
#include <cmath>
#include <initializer_list>

namespace caw {
namespace {

constexpr float kLargestExponent = 88.0f;  // of the vector exponential
constexpr int64_t kShortLayer = 20000;     // nanoseconds of a layer in which waiting for each other costs what threads save

int64_t tile_cost(const Matrix& m, int64_t rows) {  // nanoseconds: 10 bytes or 40 products in each
  if (m.packed.form) return kLinearTile / kTileOutputs * packed_tile_cost(m.packed, rows);
  return kLinearTile * m.size * std::max(element_size(m.type) * 4, rows) / 40;
}

// Rows as products with a matrix read them, once they are prepared.
class Input {
 public:
  // matrices: those that read it, in every layer.
  Input(const Rows& x, Dtype type, const std::vector<Layer>& layers, std::initializer_list<Matrix Layer::*> matrices)
      : x_(x) {
    const Matrix& m = layers[0].*(*matrices.begin());
    bool four_bits = false;  // of any: files mix types
    for (const Layer& layer : layers)
      for (const auto which : matrices) {
        const Form* form = (layer.*which).packed.form;
        four_bits |= form && form->bits == 4;
      }
    if (m.packed.form) {
      each_ = rows_at_once(x.size, m.packed.fast);
      for (int64_t r = 0; r < x.count; r += each_)
        digits_.emplace_back(std::min(each_, x.count - r), x.size, m.packed.fast, four_bits);
    } else {
      plain_.emplace(x, type);
    }
  }
  int64_t block() const { return plain_ ? plain_->block() : 1; }  // rows that are prepared together
  void prepare(int64_t first, int64_t count) {
    if (plain_) return plain_->prepare(first, count);
    for (int64_t r = first; r < first + count; ++r)
      quantized_kernel().digits(x_.row(r), r % each_, digits_[size_t(r / each_)]);
  }
  // As LinearInput's.
  template <class F>
  void for_each_block(const F& f) const {
    if (plain_) return plain_->for_each_block(f);
    for (size_t i = 0; i < digits_.size(); ++i) f(int64_t(i) * each_, digits_[i].rows);
  }
  // part[m * kLinearTile + o] = the outputs of one tile for rows first to first + rows; returns how many there are.
  int64_t multiply(int64_t first_row, int64_t rows, const Matrix& m, int64_t tile, Aligned<float>& room) const {
    const int64_t first = tile * kLinearTile, count = std::min(kLinearTile, m.outputs - first);
    room.resize(rows * (kLinearTile + kMostTiles * kTileOutputs));
    float* part = room.data();
    if (!plain_)
      multiply_outputs(
          digits_[size_t(first_row / each_)], m.packed, first, count, part + rows * kLinearTile, part, kLinearTile);
    else
      plain_->multiply(first_row, rows, offset_bytes(m.data, first * m.size, m.type), m.type, m.size, count, part);
    if (!m.bias.empty())
      for (int64_t r = 0; r < rows; ++r)
        for (int64_t o = 0; o < count; ++o) part[r * kLinearTile + o] += m.bias[size_t(first + o)];
    return count;
  }

 private:
  const Rows& x_;
  std::optional<LinearInput> plain_;
  int64_t each_ = 0;  // rows of each of digits_
  std::vector<Activations> digits_;
};

// x * rsqrt(mean(x^2) + eps) * weight
void normalise(const float* x, const std::vector<float>& weight, double eps, float* out) {
  const size_t size = weight.size();
  double sums[4] = {};  // four sums, because each addition waits for the one before
  for (size_t i = 0; i < size; ++i) sums[i % 4] += double(x[i]) * x[i];
  const double squares = (sums[0] + sums[1]) + (sums[2] + sums[3]);
  const float factor = float(1.0 / std::sqrt(squares / double(size) + eps));
  for (size_t i = 0; i < size; ++i) out[i] = x[i] * factor * weight[i];
}

// Rotates pairs (i, i + dim / 2) of the first `dim` values of a head in place; cos and sin hold as many.
void rotate(float* x, const float* cos, const float* sin, int64_t dim) {
  const int64_t half = dim / 2;
  for (int64_t i = 0; i < half; ++i) {
    const float a = x[i], b = x[i + half];
    x[i] = a * cos[i] - b * sin[i];
    x[i + half] = b * cos[i + half] + a * sin[i + half];
  }
}

// What a gate's exponential is taken of: x * sigmoid(x), or GELU as x * sigmoid(2 sqrt(2 / pi) (x + 0.044715 x^3)).
inline float inside(float x, bool gelu) {
  constexpr float kTwice = 1.5957691216057308f, kCubic = 0.044715f;
  return gelu ? kTwice * (x + kCubic * (x * x * x)) : x;
}

// Floats as the type would keep them.
void round_row(float* x, int64_t count, Dtype type) {
  if (type == kFloat32) return;
  for (int64_t i = 0; i < count; ++i) x[i] = float(c10::BFloat16(x[i]));
}

class Layers {
 public:
  Layers(const Pass& pass, const std::vector<Layer>& layers)
      : p_(pass), layers_(layers), waits_(pass.family.after_norms || pass.multiplier != 1), inner_(pass.heads * pass.dim),
        kv_(pass.kv_heads * pass.dim), residual_(pass.rows, pass.width), added_(waits_ ? pass.rows : 0, pass.width),
        normed_(pass.rows, pass.width), queries_(pass.rows, inner_),
        keys_(pass.rows, kv_), values_(pass.rows, kv_), active_(pass.rows, layers[0].gate.outputs),
        by_norm_(normed_, pass.type, layers, {&Layer::q, &Layer::k, &Layer::v, &Layer::gate, &Layer::up}),
        by_attention_(queries_, pass.type, layers, {&Layer::o}), by_gate_(active_, pass.type, layers, {&Layer::down}) {
    for (const Layer& layer : layers) layer.attention->prepare(room_);
  }

  int64_t work() const {  // nanoseconds of a layer for one thread
    const Layer& layer = layers_[0];
    int64_t sum = layer.attention->work();
    for (const Matrix* m : {&layer.q, &layer.k, &layer.v, &layer.o, &layer.gate, &layer.up, &layer.down})
      sum += m->tiles() * tile_cost(*m, p_.rows);
    return sum;
  }

  void run(Team& team, const void* hidden, void* out) {
    team.each(p_.rows, [&](int64_t begin, int64_t end) {
      for (int64_t r = begin; r < end; ++r) widen_row(hidden, r * p_.width, p_.width, p_.type, residual_.row(r));
    });
    for (const Layer& layer : layers_) {
      attend(team, layer);
      prepare(team, by_norm_, [&](int64_t r) {
        add(r, layer.after_attention);
        normalise(residual_.row(r), layer.norm2, p_.eps, normed_.row(r));
      });
      gated(team, layer);
      prepare(team, by_gate_, [](int64_t) {});
      give(team, by_gate_, layer.down);
    }
    team.each(p_.rows, [&](int64_t begin, int64_t end) {
      for (int64_t r = begin; r < end; ++r) {
        add(r, layers_.back().after_mlp);
        narrow_row(residual_.row(r), p_.width, p_.type, out, r * p_.width);
      }
    });
  }

 private:
  // make(r) for every row of what a product reads next, then what the product makes of them.
  template <class F>
  void prepare(Team& team, Input& input, const F& make) {
    const int64_t block = input.block();
    team.each((p_.rows + block - 1) / block, [&](int64_t begin, int64_t end) {
      const int64_t first = begin * block, last = std::min(end * block, p_.rows);
      for (int64_t r = first; r < last; ++r) make(r);
      input.prepare(first, last - first);
    });
  }

  // residual += x m^T; where that is normalised or multiplied first, it waits in added_ for `add`.
  void give(Team& team, const Input& x, const Matrix& m) {
    multiply(team, x, {&m}, {waits_ ? &added_ : &residual_}, !waits_);
  }

  // residual += multiplier * norm(added) of one row, without the norm if it is empty; nothing where `give` has added it.
  void add(int64_t r, const std::vector<float>& norm) {
    if (!waits_) return;
    float *to = residual_.row(r), *x = added_.row(r);
    if (!norm.empty()) normalise(x, norm, p_.eps, x);
    for (int64_t i = 0; i < p_.width; ++i) to[i] += p_.multiplier * x[i];
  }

  // residual += attention(norm(residual)) o
  void attend(Team& team, const Layer& layer) {
    const bool first = &layer == &layers_.front();
    prepare(team, by_norm_, [&](int64_t r) {
      if (!first) {
        add(r, (&layer)[-1].after_mlp);
        round_row(residual_.row(r), p_.width, p_.type);
      }
      normalise(residual_.row(r), layer.norm1, p_.eps, normed_.row(r));
    });
    multiply(team, by_norm_, {&layer.q, &layer.k, &layer.v}, {&queries_, &keys_, &values_}, false);
    team.each(p_.rows, [&](int64_t begin, int64_t end) {
      for (int64_t r = begin; r < end; ++r) {
        turn(queries_.row(r), r, p_.heads, layer.q_norm, layer.rotation);
        turn(keys_.row(r), r, p_.kv_heads, layer.k_norm, layer.rotation);
        round_row(values_.row(r), kv_, p_.type);
        keep(keys_.row(r), r, layer.k_own);
        keep(values_.row(r), r, layer.v_own);
      }
    });
    const auto heads = [&](const Rows& x) { return Heads(x.data.data(), kFloat32, x.stride, p_.dim); };
    const AttentionInputs in{
        heads(queries_), heads(keys_), heads(values_), heads(queries_), layer.k_cache, layer.v_cache, p_.scale, p_.softcap};
    layer.attention->run(team, in, room_);
    prepare(team, by_attention_, [&](int64_t r) { round_row(queries_.row(r), inner_, p_.type); });
    give(team, by_attention_, layer.o);
  }

  // Norms of each head (if any) and rotation, in place.
  void turn(float* x, int64_t row, int64_t heads, const std::vector<float>& norm, size_t rotation) {
    const float *cos = p_.cos[rotation].data() + row * p_.turned, *sin = p_.sin[rotation].data() + row * p_.turned;
    for (int64_t h = 0; h < heads; ++h) {
      float* head = x + h * p_.dim;
      if (!norm.empty()) normalise(head, norm, p_.eps, head);
      rotate(head, cos, sin, p_.turned);
    }
    round_row(x, heads * p_.dim, p_.type);
  }

  void keep(const float* x, int64_t row, const Kept& to) {
    const int64_t first = p_.sequence[size_t(row)] * to.row + p_.slot[size_t(row)] * to.token;
    for (int64_t h = 0; h < p_.kv_heads; ++h) narrow_row(x + h * p_.dim, p_.dim, p_.type, to.data, first + h * to.head);
  }

  // out[i] = (add ? out[i] : 0) + x matrices[i]^T + bias
  void multiply(Team& team, const Input& x, std::initializer_list<const Matrix*> matrices,
      std::initializer_list<Rows*> out, bool add) {
    int64_t tiles = 0;
    for (const Matrix* m : matrices) tiles += m->tiles();
    team.each(tiles, [&](int64_t begin, int64_t end) {
      thread_local Aligned<float> part;
      x.for_each_block([&](int64_t above, int64_t rows) {
        for (int64_t i = begin; i < end; ++i) {
          int64_t tile = i;
          auto which = matrices.begin();
          while (tile >= (*which)->tiles()) tile -= (*which++)->tiles();
          Rows& target = **(out.begin() + (which - matrices.begin()));
          const int64_t count = x.multiply(above, rows, **which, tile, part);
          for (int64_t r = 0; r < rows; ++r) {
            float* to = target.row(above + r) + tile * kLinearTile;
            const float* from = part.data() + r * kLinearTile;
            for (int64_t o = 0; o < count; ++o) to[o] = (add ? to[o] : 0.0f) + from[o];
          }
        }
      });
    });
  }

  // active = activation(norm gate^T) * (norm up^T)
  void gated(Team& team, const Layer& layer) {
    team.each(layer.gate.tiles(), [&](int64_t begin, int64_t end) {
      thread_local Aligned<float> g, u;
      float exponent[kLinearTile], power[kLinearTile];
      by_norm_.for_each_block([&](int64_t above, int64_t rows) {
        for (int64_t tile = begin; tile < end; ++tile) {
          const int64_t count = by_norm_.multiply(above, rows, layer.gate, tile, g);
          by_norm_.multiply(above, rows, layer.up, tile, u);
          for (int64_t r = 0; r < rows; ++r) {
            const float *a = g.data() + r * kLinearTile, *b = u.data() + r * kLinearTile;
            for (int64_t o = 0; o < count; ++o) {
              const float x = -inside(a[o], p_.family.gelu);
              exponent[o] = x > kLargestExponent ? kLargestExponent : x;
            }
            kernels().exp_shifted(exponent, 0.0f, count, power);
            float* target = active_.row(above + r) + tile * kLinearTile;
            for (int64_t o = 0; o < count; ++o) target[o] = a[o] / (1.0f + power[o]) * b[o];
          }
        }
      });
    });
  }

  const Pass& p_;
  const std::vector<Layer>& layers_;
  bool waits_;  // whether what is added to the residual is something else than a product
  int64_t inner_, kv_;
  Rows residual_, added_, normed_, queries_, keys_, values_, active_;
  Input by_norm_, by_attention_, by_gate_;
  Attention::Room room_;
};

}  // namespace

void run_layers(const Pass& pass, const std::vector<Layer>& layers, const void* hidden, void* out) {
  Layers run(pass, layers);
  const int64_t work = run.work(), members = work < kShortLayer ? 1 : Team::worth(work * int64_t(layers.size()));
  Team::run(members, [&](Team& team) { run.run(team, hidden, out); });
}

}  // namespace caw
