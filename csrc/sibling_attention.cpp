// sibling_attention on the CPU: the cache is read once, in place, for all candidates of a sequence.
//
// Work is cut by (sequence, KV head, span of 512 committed tokens). The cut depends on lengths only, so results depend
// neither on the number of threads nor on the batch. Each part keeps its greatest score and sum; parts, the candidate's
// own token and the sink are merged at the end.

#include <algorithm>
#include <cmath>

#include "convert.h"
#include "ops.h"

namespace caw {
namespace {

constexpr int64_t kSpan = 512;

struct Part {
  int64_t sequence, head, begin, end;
};

// The parts of one (sequence, head), which are neighbours in the list.
struct Group {
  size_t first, count;
};

struct Layout {
  int64_t batch, heads, kv_heads, candidates, dim, padded, rows;
  Dtype dtype;
};

Layout check(const Tensor& q, const Tensor& k_cache, const Tensor& v_cache, const Tensor& k_own, const Tensor& v_own,
    const Tensor& lengths, const std::optional<Tensor>& sinks) {
  require(q.dim() == 4, "q must have shape [B, H, C, D], got " + shape_of(q));
  require(k_cache.dim() == 4, "k_cache must have shape [B, HK, S, D], got " + shape_of(k_cache));
  Layout at{q.size(0), q.size(1), k_cache.size(1), q.size(2), q.size(3), (q.size(3) + 15) / 16 * 16, 0,
      dtype_of("q", q)};
  require(at.kv_heads > 0 && at.heads % at.kv_heads == 0, "H must be a multiple of HK, got " +
      std::to_string(at.heads) + " and " + std::to_string(at.kv_heads));
  require(at.dim <= kMaxDim, "the head dimension must be at most 512, got " + std::to_string(at.dim));
  at.rows = at.heads / at.kv_heads * at.candidates;
  require_shape("k_cache", k_cache, {at.batch, at.kv_heads, k_cache.size(2), at.dim});
  require_shape("v_cache", v_cache, {at.batch, at.kv_heads, k_cache.size(2), at.dim});
  require_shape("k_own", k_own, {at.batch, at.kv_heads, at.candidates, at.dim});
  require_shape("v_own", v_own, {at.batch, at.kv_heads, at.candidates, at.dim});
  require_shape("lengths", lengths, {at.batch});
  require_dtype("lengths", lengths, ScalarType::Long, "int64");
  for (const Tensor* t : {&k_cache, &v_cache, &k_own, &v_own})
    require(t->scalar_type() == q.scalar_type(), "q, k_cache, v_cache, k_own and v_own must have one dtype");
  for (const Tensor* t : {&k_cache, &v_cache})
    require(t->stride(3) == 1 || at.dim == 1, "k_cache and v_cache must be dense in their last dimension");
  if (sinks) require_shape("sinks", *sinks, {at.heads});
  return at;
}

std::vector<Part> cut(const Layout& at, const int64_t* lengths, int64_t step, int64_t size,
    std::optional<int64_t> window, std::vector<Group>& groups) {
  std::vector<Part> parts;
  for (int64_t b = 0; b < at.batch; ++b) {
    const int64_t length = lengths[b * step];
    require(length >= 0 && length <= size, "lengths must be in [0, S], got " + std::to_string(length));
    const int64_t begin = window ? std::max<int64_t>(0, length - *window + 1) : 0;
    for (int64_t h = 0; h < at.kv_heads; ++h) {
      groups.push_back({parts.size(), 0});
      for (int64_t first = begin / kSpan * kSpan; first < length; first += kSpan) {
        parts.push_back({b, h, std::max(first, begin), std::min(first + kSpan, length)});
        ++groups.back().count;
      }
    }
  }
  return parts;
}

}  // namespace

Tensor sibling_attention(const Tensor& q, const Tensor& k_cache, const Tensor& v_cache, const Tensor& k_own,
    const Tensor& v_own, const Tensor& lengths, double scale, std::optional<int64_t> window,
    std::optional<double> softcap, const std::optional<Tensor>& sinks) {
  const Layout at = check(q, k_cache, v_cache, k_own, v_own, lengths, sinks);
  const Dtype sink_dtype = sinks ? dtype_of("sinks", *sinks) : kFloat32;
  std::vector<Group> groups;
  const std::vector<Part> parts = cut(
      at, lengths.const_data_ptr<int64_t>(), lengths.stride(0), k_cache.size(2), window, groups);
  const int64_t group_size = at.heads / at.kv_heads, rows = at.rows;
  const int64_t per_query = rows * at.padded, per_part = rows * (at.padded + 2);
  thread_local std::vector<float> queries, partial;
  queries.assign(size_t(at.batch * at.kv_heads * per_query), 0.0f);
  if (partial.size() < parts.size() * size_t(per_part)) partial.resize(parts.size() * size_t(per_part));
  float *packed = queries.data(), *results = partial.data();
  const void* q_base = q.const_data_ptr();
  const float factor = float(scale), cap = softcap ? float(*softcap) : 0.0f;
  for (int64_t b = 0; b < at.batch; ++b)
    for (int64_t h = 0; h < at.heads; ++h)
      for (int64_t c = 0; c < at.candidates; ++c) {
        const int64_t from = b * q.stride(0) + h * q.stride(1) + c * q.stride(2);
        float* to = packed + ((b * at.heads + h) * at.candidates + c) * at.padded;
        for (int64_t d = 0; d < at.dim; ++d) to[d] = read(q_base, from + d * q.stride(3), at.dtype) * factor;
      }

  const Tensor *caches[2] = {&k_cache, &v_cache};
  const int64_t strides[2][3] = {{k_cache.stride(0), k_cache.stride(1), k_cache.stride(2)},
      {v_cache.stride(0), v_cache.stride(1), v_cache.stride(2)}};
  const void* bases[2] = {caches[0]->const_data_ptr(), caches[1]->const_data_ptr()};
  int64_t keys = 0;
  for (const Part& part : parts) keys += part.end - part.begin;
  const int64_t cost = parts.empty() ? 0 : keys / int64_t(parts.size()) * rows * at.dim / 18;
  for_each_part(int64_t(parts.size()), cost, [&](int64_t first, int64_t last) {
    thread_local std::vector<float> scratch;
    scratch.resize(size_t(attend_scratch(rows, at.padded)));
    for (int64_t i = first; i < last; ++i) {
      const Part& part = parts[size_t(i)];
      const void* start[2];
      for (int s = 0; s < 2; ++s)
        start[s] = offset_bytes(bases[s], part.sequence * strides[s][0] + part.head * strides[s][1] + part.begin * strides[s][2], at.dtype);
      float* out = results + i * per_part;
      const AttendTask task{packed + (part.sequence * at.kv_heads + part.head) * per_query, start[0], start[1],
          strides[0][2], strides[1][2], part.end - part.begin, at.dtype, int(rows), at.dim, at.padded, cap, out,
          out + per_query, out + per_query + rows};
      kernels().attend(task, scratch.data());
    }
  });

  Tensor output = make({at.batch, at.heads, at.candidates, at.dim}, q.scalar_type());
  void* out_base = output.mutable_data_ptr();
  const void *own_k = k_own.const_data_ptr(), *own_v = v_own.const_data_ptr();
  std::vector<float> mixed(static_cast<size_t>(at.dim));
  for (int64_t b = 0; b < at.batch; ++b)
    for (int64_t h = 0; h < at.heads; ++h)
      for (int64_t c = 0; c < at.candidates; ++c) {
        const int64_t kv = h / group_size, row = h % group_size * at.candidates + c;
        const Group& group = groups[size_t(b * at.kv_heads + kv)];
        const float* query = packed + (b * at.kv_heads + kv) * per_query + row * at.padded;
        const int64_t k_at = b * k_own.stride(0) + kv * k_own.stride(1) + c * k_own.stride(2);
        const int64_t v_at = b * v_own.stride(0) + kv * v_own.stride(1) + c * v_own.stride(2);
        float own = 0;
        for (int64_t d = 0; d < at.dim; ++d) own += query[d] * read(own_k, k_at + d * k_own.stride(3), at.dtype);
        if (cap > 0) own = cap * std::tanh(own / cap);
        const float sink = sinks ? read(sinks->const_data_ptr(), h * sinks->stride(0), sink_dtype) : -INFINITY;
        float peak = std::max(own, sink);
        for (size_t i = 0; i < group.count; ++i)
          peak = std::max(peak, results[(group.first + i) * size_t(per_part) + size_t(per_query + row)]);
        const float own_weight = std::exp(own - peak);
        float total = own_weight + (sinks ? std::exp(sink - peak) : 0.0f);
        for (int64_t d = 0; d < at.dim; ++d)
          mixed[size_t(d)] = own_weight * read(own_v, v_at + d * v_own.stride(3), at.dtype);
        for (size_t i = 0; i < group.count; ++i) {
          const float* part = results + (group.first + i) * size_t(per_part);
          const float weight = std::exp(part[per_query + row] - peak);
          total += weight * part[per_query + rows + row];
          for (int64_t d = 0; d < at.dim; ++d) mixed[size_t(d)] += weight * part[row * at.padded + d];
        }
        const int64_t to = ((b * at.heads + h) * at.candidates + c) * at.dim;
        for (int64_t d = 0; d < at.dim; ++d) write(out_base, to + d, mixed[size_t(d)] / total, at.dtype);
      }
  return output;
}

}  // namespace caw
