// decoder_stack on the CPU: one layer or all layers of a decoding step, or of prompts and drafts, in one call. Formula and
// arguments: triton_kernels/decoder_layer_ref.py and caw/ops_ref; arithmetic: layers.cpp.
//
// Launching 60 small operators a layer from Python costs a 30-layer model 8 ms a step, and one operator a layer still 3.
// What is checked here is checked once a call, so layers.cpp reads without further checks.

#include <map>

#include "layers.h"

namespace caw {
namespace {

constexpr int64_t kMostSlots = int64_t(1) << 31;

// Where the weights of a layer stand among its tensors, and its biases. Matrices with one place are rows of one tensor,
// one below the other, and so are their biases.
struct Order {
  int64_t norm1, q, k, v, o, norm2, gate, up, down, head_norms;  // head_norms: of queries, then of keys; may be absent
  int64_t biases[7];                                             // of q, k, v, o, gate, up, down
  size_t count() const { return size_t(head_norms); }            // of tensors, without norms of heads and norms after
  size_t bias_count() const { return size_t(biases[6]) + 1; }
};
constexpr Order kApart{0, 1, 2, 3, 4, 5, 6, 7, 8, 9, {0, 1, 2, 3, 4, 5, 6}};
constexpr Order kMerged{0, 1, 1, 1, 2, 3, 4, 4, 5, 6, {0, 0, 0, 1, 2, 2, 3}};

const Order& order_of(size_t tensors, const Family& family) {
  const size_t after = family.after_norms ? 2 : 0, own = tensors - after;
  for (const Order* order : {&kApart, &kMerged})
    if (tensors > after && (own == order->count() || own == order->count() + 2)) return *order;
  const auto said = [&](const Order& order) {
    return std::to_string(order.count() + after) + " or, with norms of queries and keys, " +
        std::to_string(order.count() + after + 2);
  };
  throw std::runtime_error("weights must be " + said(kApart) + " tensors a layer, with merged matrices " + said(kMerged) +
      ", got " + std::to_string(tensors));
}

// Weights of one layer among those of a call, and what to call them.
struct Given {
  const Tensor* weights;
  const std::optional<Tensor>* biases;  // null = none
  size_t count, layer;                  // count: of tensors of a layer
  const Order& order;
  std::string name(int64_t i) const { return "weights[" + std::to_string(int64_t(layer * count) + i) + "]"; }
};

int64_t outputs_of(const Given& given, int64_t i) {
  const Tensor& weight = given.weights[i];
  if (is_packed(weight)) return packed(given.name(i).c_str(), weight).outputs;
  require(weight.dim() == 2, [&] { return given.name(i) + " must have two dimensions, got " + shape_of(weight); });
  return weight.size(0);
}

// Rows [first, first + outputs) of weights[i], which has `whole`, and of its bias.
Matrix matrix(const Given& given, int64_t i, const std::optional<Tensor>* bias, Dtype type, int64_t first,
    int64_t outputs, int64_t whole, int64_t size) {
  const Tensor& weight = given.weights[i];
  Matrix m{static_cast<const char*>(weight.const_data_ptr()), type, outputs, size, {}, {}};
  if (is_packed(weight)) {
    m.packed = packed(given.name(i).c_str(), weight);
    require(type == kFloat32,
        [&] { return given.name(i) + " is packed, so hidden must be float32; convert it before the call"; });
    require(m.packed.outputs == whole && m.packed.size == size, [&] {
      return given.name(i) + " must be packed weights [" + std::to_string(whole) + ", " + std::to_string(size) +
          "], got [" + std::to_string(m.packed.outputs) + ", " + std::to_string(m.packed.size) + "]";
    });
    require(first % kTileOutputs == 0, [&] {
      return given.name(i) + " must have matrices of multiples of " + std::to_string(kTileOutputs) +
          " packed rows to be merged, got one that begins at row " + std::to_string(first);
    });
    m.packed.tiles = m.packed.quants(first / kTileOutputs);
    m.packed.outputs = outputs;
  } else {
    require(weight.dim() == 2 && weight.size(0) == whole && weight.size(1) == size, [&] {
      return given.name(i) + " must have shape [" + std::to_string(whole) + ", " + std::to_string(size) + "], got " +
          shape_of(weight);
    });
    require(weight.is_contiguous() && is_float_type(weight.scalar_type()) && fits_beside(type, dtype_of("weights", weight)),
        [&] {
          return given.name(i) +
              " must be contiguous and of hidden's dtype, or of any beside float32; convert it before the call";
        });
    m.type = dtype_of("weights", weight);
    m.data = offset_bytes(m.data, first * size, m.type);
  }
  if (bias && bias->has_value()) {
    require_shape("biases", **bias, {whole});
    require(dtype_of("biases", **bias) == type, "biases must have hidden's dtype; convert them before the call");
    const std::vector<float> all = widen(**bias, type);
    m.bias.assign(all.begin() + first, all.begin() + first + outputs);
  }
  return m;
}

std::vector<float> norm(const char* name, const Tensor& weight, int64_t size, const Pass& pass) {
  require_shape(name, weight, {size});
  require(dtype_of(name, weight) == pass.type, [&] { return std::string(name) + " must have hidden's dtype"; });
  std::vector<float> wide = widen(weight, pass.type);
  for (float& w : wide) w += pass.family.norm_offset;
  return wide;
}

// The weights of one layer of a call.
Layer layer_of(const Given& given, const Pass& pass) {
  const Order& order = given.order;
  const int64_t inner = pass.heads * pass.dim, kv = pass.kv_heads * pass.dim;
  const int64_t wide = outputs_of(given, order.gate) / (order.gate == order.up ? 2 : 1);
  const int64_t places[7] = {order.q, order.k, order.v, order.o, order.gate, order.up, order.down};
  const int64_t outputs[7] = {inner, kv, kv, pass.width, wide, wide, pass.width};
  const auto get = [&](int64_t which, int64_t size) {
    int64_t first = 0, whole = 0;
    for (int64_t other = 0; other < 7; ++other) {
      if (places[other] != places[which]) continue;
      whole += outputs[other];
      if (other < which) first += outputs[other];
    }
    const std::optional<Tensor>* bias = given.biases ? given.biases + order.biases[which] : nullptr;
    return matrix(given, places[which], bias, pass.type, first, outputs[which], whole, size);
  };
  const auto normed = [&](const char* name, int64_t i, int64_t size) { return norm(name, given.weights[i], size, pass); };
  Layer made{get(0, pass.width), get(1, pass.width), get(2, pass.width), get(3, inner), get(4, pass.width),
      get(5, pass.width), get(6, wide), normed("the norms of weights", order.norm1, pass.width),
      normed("the norms of weights", order.norm2, pass.width), {}, {}, {}, {}, 0, {}, {}, {}, {}, nullptr};
  const int64_t after = pass.family.after_norms ? 2 : 0, count = int64_t(given.count);
  if (count - after > order.head_norms) {
    made.q_norm = normed("the norms of heads among weights", order.head_norms, pass.dim);
    made.k_norm = normed("the norms of heads among weights", order.head_norms + 1, pass.dim);
  }
  if (after) {
    made.after_attention = normed("the last two of weights", count - 2, pass.width);
    made.after_mlp = normed("the last two of weights", count - 1, pass.width);
  }
  const Packed& first = made.q.packed;
  for (const Matrix* m : {&made.k, &made.v, &made.o, &made.gate, &made.up, &made.down})
    require(!m->packed.form == !first.form && m->packed.fast == first.fast,
        "either all matrices of weights must be packed, in one way, or none");
  return made;
}

std::vector<Layer> layers_of(const std::vector<Tensor>& weights, const std::vector<std::optional<Tensor>>& biases,
    size_t layers, const Pass& pass) {
  const size_t count = weights.size() / layers;
  const Order& order = order_of(count, pass.family);
  std::vector<Layer> made;
  made.reserve(layers);
  for (size_t i = 0; i < layers; ++i) {
    const std::optional<Tensor>* own = biases.empty() ? nullptr : biases.data() + i * order.bias_count();
    made.push_back(layer_of({weights.data() + i * count, own, count, i, order}, pass));
    const Layer &last = made.back(), &first = made.front();
    require(last.gate.outputs == first.gate.outputs && !last.q.packed.form == !first.q.packed.form &&
            last.q.packed.fast == first.q.packed.fast,
        [&] { return "weights must be alike in all layers, and those of layer " + std::to_string(i) + " differ"; });
  }
  return made;
}

// cos or sin [B, C, R], or of several kinds of layers [Z, B, C, R], as floats [rows, R] of each kind; all rows may share
// theirs in memory.
std::vector<std::vector<float>> angles(
    const char* name, const Tensor& t, const Tensor& hidden, int64_t turned, bool several, Dtype type) {
  const int64_t batch = hidden.size(0), columns = hidden.size(1), kinds = several && t.dim() == 4 ? t.size(0) : 1;
  if (several)
    require_shape(name, t, {kinds, batch, columns, turned});
  else
    require_shape(name, t, {batch, columns, turned});
  require(dtype_of(name, t) == type, "cos and sin must have hidden's dtype");
  const int64_t first = t.dim() - 3, steps[3] = {t.stride(first), t.stride(first + 1), t.stride(first + 2)};
  const void* base = t.const_data_ptr();
  std::vector<std::vector<float>> wide(static_cast<size_t>(kinds));
  for (int64_t z = 0; z < kinds; ++z) {
    wide[size_t(z)].resize(static_cast<size_t>(batch * columns * turned));
    float* to = wide[size_t(z)].data();
    const int64_t from = several ? z * t.stride(0) : 0;
    for (int64_t b = 0; b < batch; ++b)
      for (int64_t c = 0; c < columns; ++c)
        for (int64_t d = 0; d < turned; ++d) *to++ = read(base, from + b * steps[0] + c * steps[1] + d * steps[2], type);
  }
  return wide;
}

// By its name in FAMILIES of triton_kernels/decoder_layer_ref.py.
Family family_of(const std::string& name) {
  if (name == "llama") return {};
  if (name == "gemma") return {1.0f, true, false};
  require(name == "gemma2", [&] { return "family must be llama, gemma or gemma2, got " + name; });
  return {1.0f, true, true};
}

// What the layers share, but for where the rows are. several: whether there are rotations of several kinds of layers.
Pass pass_of(const Tensor& hidden, const Tensor& cos, const Tensor& sin, int64_t kv_heads, int64_t dim,
    const std::vector<Tensor>& weights, const std::vector<std::optional<Tensor>>& biases, size_t layers, double eps,
    double scale, const Family& family, double softcap, double multiplier, bool several) {
  require(hidden.dim() == 3, [&] { return "hidden must have shape [B, C, E], got " + shape_of(hidden); });
  require(layers > 0 && weights.size() % layers == 0, [&] {
    return "weights must be as many tensors for each of " + std::to_string(layers) + " layers, got " +
        std::to_string(weights.size());
  });
  const Order& order = order_of(weights.size() / layers, family);
  require(biases.size() == order.bias_count() * layers || biases.empty(), [&] {
    return "biases must be " + std::to_string(order.bias_count()) + " a layer, one of each matrix, or none, got " +
        std::to_string(biases.size());
  });
  require(dim > 0 && dim % 2 == 0, [&] { return "the head dimension must be even, got " + std::to_string(dim); });
  const int64_t turned = cos.dim() > 0 ? cos.size(cos.dim() - 1) : 0;
  require(turned > 0 && turned % 2 == 0 && turned <= dim, [&] {
    return "cos must have an even last dimension of at most D = " + std::to_string(dim) + ", got " + shape_of(cos);
  });
  const Dtype type = dtype_of("hidden", hidden);
  require(type != kFloat16, "hidden must be float32 or bfloat16; run float16 models with backend='reference'");
  const Given first{weights.data(), nullptr, 0, 0, order};
  const int64_t inner = outputs_of(first, order.q) - (order.q == order.k ? 2 * kv_heads * dim : 0);
  require(inner >= 0 && inner % dim == 0, [&] {
    return "weights[1] must have shape [H * D, E], or [(H + 2 HK) * D, E], got " + shape_of(weights[size_t(order.q)]);
  });
  return {hidden.size(0) * hidden.size(1), hidden.size(2), inner / dim, kv_heads, dim, turned, type, eps, float(scale),
      float(softcap), float(multiplier), family, angles("cos", cos, hidden, turned, several, type),
      angles("sin", sin, hidden, turned, several, type), {}, {}};
}

// Whose candidates the rows are: C of every sequence, or, packed, those that `rows` says, one after another.
void place_candidates(Pass& pass, const Tensor& hidden, int64_t batch, int64_t slot, const std::optional<Tensor>& rows) {
  // only so that the sums below do not overflow; that scratch is large enough is checked where its size is known
  require(slot >= 0 && slot <= kMostSlots, [&] { return "slot must be in [0, 2^31], got " + std::to_string(slot); });
  if (rows.has_value()) {
    pass.sequence = integers("rows", *rows);
    require(hidden.size(1) == 1 && pass.rows == int64_t(pass.sequence.size()), [&] {
      return "hidden must have shape [" + std::to_string(pass.sequence.size()) + ", 1, E], a row for each of rows, got " +
          shape_of(hidden);
    });
  } else {
    require(hidden.size(0) == batch, [&] { return "hidden must have a row for each sequence, got " + shape_of(hidden); });
    for (int64_t r = 0; r < pass.rows; ++r) pass.sequence.push_back(r / hidden.size(1));
  }
  for (size_t r = 0; r < pass.sequence.size(); ++r) {
    const int64_t b = pass.sequence[r];
    require(b >= 0 && b < batch, [&] { return "rows must be in [0, B), got " + std::to_string(b); });
    pass.slot.push_back(r && pass.sequence[r - 1] == b ? pass.slot[r - 1] + 1 : slot);
  }
}

// Whose tokens the rows are: row n is the token at lengths[n] of the text in row rows[n] of the store, which holds all
// tokens before it or gets them in this call. Its own key and value are kept at places[n]: a candidate beside the one that
// a draft follows stays out of the way of both.
void place_tokens(
    Pass& pass, const Tensor& rows, const Tensor& lengths, const Tensor& places, int64_t batch, int64_t size) {
  pass.sequence = integers("rows", rows);
  pass.slot = integers("places", places);
  require_shape("lengths", lengths, {pass.rows});
  require(pass.rows == int64_t(pass.sequence.size()) && pass.rows == int64_t(pass.slot.size()), [&] {
    return "rows and places must have an entry for each of hidden's " + std::to_string(pass.rows) + " rows, got " +
        shape_of(rows) + " and " + shape_of(places);
  });
  for (size_t r = 0; r < pass.sequence.size(); ++r) {
    const int64_t b = pass.sequence[r], slot = pass.slot[r];
    require(b >= 0 && b < batch, [&] { return "rows must be in [0, B), got " + std::to_string(b); });
    require(slot >= 0 && slot < size, [&] { return "places must be in [0, S), got " + std::to_string(slot); });
  }
}

char* address(const Tensor& t) { return static_cast<char*>(const_cast<void*>(t.const_data_ptr())); }

Tensor run(const Pass& pass, const std::vector<Layer>& layers, const Tensor& hidden) {
  const Tensor input = dense(hidden);
  Tensor out = make({hidden.size(0), hidden.size(1), pass.width}, hidden.scalar_type());
  if (pass.rows > 0) run_layers(pass, layers, input.const_data_ptr(), out.mutable_data_ptr());
  return out;
}

}  // namespace

// All layers of a model: of candidates, whose keys and values go to scratch, or, with `places`, of tokens of prompts or
// drafts, each of which has a length of its own and joins the store.
Tensor decoder_stack(const Tensor& hidden, const Tensor& cos, const Tensor& sin, const Tensor& store,
    const Tensor& scratch, int64_t slot, const Tensor& lengths, const std::vector<Tensor>& weights,
    const std::vector<std::optional<Tensor>>& biases, double eps, double scale, const std::vector<int64_t>& windows,
    const std::optional<Tensor>& rows, const std::optional<Tensor>& places, const std::string& family,
    std::optional<double> softcap, const std::vector<int64_t>& rotations, double multiplier) {
  require(store.dim() == 6 && store.size(1) == 2 && store.size(3) > 0,
      [&] { return "store must have shape [L, 2, B, HK, S, D], got " + shape_of(store); });
  const int64_t layer_count = store.size(0), kv_heads = store.size(3), size = store.size(4), dim = store.size(5);
  require(store.scalar_type() == hidden.scalar_type() && scratch.scalar_type() == hidden.scalar_type() &&
          store.stride(5) == 1,
      "store and scratch must have hidden's dtype and be dense in their last dimension");
  require(int64_t(windows.size()) == layer_count,
      [&] { return "windows must have an entry for each layer, got " + std::to_string(windows.size()); });
  require(rotations.empty() || rotations.size() == windows.size(),
      [&] { return "rotations must have an entry for each layer, or none, got " + std::to_string(rotations.size()); });
  Pass pass = pass_of(hidden, cos, sin, kv_heads, dim, weights, biases, size_t(layer_count), eps, scale,
      family_of(family), softcap.value_or(0), multiplier, !rotations.empty());
  require(lengths.dim() == 1, [&] { return "lengths must have one dimension, got " + shape_of(lengths); });
  const int64_t batch = places ? store.size(2) : lengths.size(0);
  if (places) {
    require(rows.has_value(), "rows must say whose tokens the rows are where places are given; pass both or neither");
    place_tokens(pass, *rows, lengths, *places, batch, size);
  } else {
    require(batch <= store.size(2), [&] { return "lengths must have at most B entries, got " + std::to_string(batch); });
    place_candidates(pass, hidden, batch, slot, rows);
    require(scratch.dim() == 6 && scratch.size(0) == layer_count && scratch.size(1) == 2 && scratch.size(2) >= batch &&
            scratch.size(4) == kv_heads && scratch.size(5) == dim && scratch.stride(5) == 1,
        [&] { return "scratch must have shape [L, 2, B, slots, HK, D], got " + shape_of(scratch); });
    for (const int64_t own : pass.slot)
      require(own < scratch.size(3),
          [&] { return "slot must leave room for the candidates in scratch, got " + std::to_string(own); });
  }
  std::vector<Layer> layers = layers_of(weights, biases, size_t(layer_count), pass);
  std::map<int64_t, Attention> attention;
  for (size_t i = 0; i < layers.size(); ++i) {
    const int64_t window = windows[i];
    require(window >= 0, [&] { return "windows must be at least 0, which is none, got " + std::to_string(window); });
    if (!attention.contains(window)) {
      const Attention::Shape shape{pass.heads, kv_heads, dim, size, pass.type};
      const std::optional<int64_t> seen = window ? std::optional<int64_t>(window) : std::nullopt;
      std::vector<int64_t> tokens = integers("lengths", lengths);
      attention.emplace(window, places ? Attention::each(shape, std::move(tokens), pass.sequence, batch, seen)
                                       : Attention::packed(shape, std::move(tokens), pass.sequence, seen));
    }
    layers[i].attention = &attention.at(window);
    const int64_t kinds = int64_t(pass.cos.size()), kind = rotations.empty() ? 0 : rotations[i];
    require(kind >= 0 && kind < kinds && kinds == int64_t(pass.sin.size()),
        [&] { return "rotations must name one of cos and of sin, got " + std::to_string(kind); });
    layers[i].rotation = size_t(kind);
    // an empty tensor has no address to count from
    const auto half = [&](const Tensor& t, int64_t which, int64_t head, int64_t token) -> Kept {
      const int64_t at = int64_t(i) * t.stride(0) + which * t.stride(1), rows_at = t.stride(2);
      char* base = address(t);
      return {base ? base + at * element_size(pass.type) : base, rows_at, t.stride(head), t.stride(token)};
    };
    layers[i].k_cache = half(store, 0, 3, 4), layers[i].v_cache = half(store, 1, 3, 4);
    layers[i].k_own = places ? layers[i].k_cache : half(scratch, 0, 4, 3);
    layers[i].v_own = places ? layers[i].v_cache : half(scratch, 1, 4, 3);
  }
  return run(pass, layers, hidden);
}

}  // namespace caw

STABLE_TORCH_LIBRARY_IMPL(caw, CPU, m) {
  m.impl("decoder_stack", TORCH_BOX(&caw::decoder_stack));
}
