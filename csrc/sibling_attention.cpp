// sibling_attention on the CPU: the cache is read once, in place, for all candidates of a sequence.
//
// Work is cut by (sequence, KV head, span of 512 committed tokens). The cut depends on lengths only, so results depend
// neither on the number of threads nor on the batch. Each part keeps its greatest score and sum; parts, the candidate's
// own token and the sink are merged at the end.
//
// Candidates come as a rectangle, C of every sequence; packed: as many of each sequence as it has, one after another; or
// each with a length of its own (prefix_attention), as the tokens of a prompt have. A row's arithmetic is the same in all
// of them: spans and tiles by position, lanes within them, its own key last.

#include <algorithm>
#include <cmath>

#include "convert.h"
#include "ops.h"

namespace caw {
namespace {

constexpr int64_t kSpan = 512;

struct Part {
  int64_t sequence, head, begin, end;
  size_t at;  // where its results begin
};

// The parts of one (sequence, head), which are neighbours in the list.
struct Group {
  size_t first, count;
};

struct Layout {
  int64_t batch, heads, kv_heads, dim, padded;
  Dtype dtype;
  bool packed;
  std::vector<int64_t> first;  // [B + 1], where each sequence's candidates begin among all of them
  std::vector<int64_t> cache;  // the row of the cache that each reads; empty = its own
  int64_t cache_row(int64_t b) const { return cache.empty() ? b : cache[size_t(b)]; }
  int64_t count(int64_t b) const { return first[size_t(b + 1)] - first[size_t(b)]; }
  int64_t group() const { return heads / kv_heads; }
  int64_t rows(int64_t b) const { return group() * count(b); }  // queries that share a KV head
  size_t per_part(int64_t b) const { return size_t(rows(b) * (padded + 2)); }
  // Among all queries: those of a sequence and KV head are neighbours.
  int64_t row(int64_t b, int64_t h, int64_t c) const { return first[size_t(b)] * heads + h * count(b) + c; }
};

// Where a tensor [B, H, C, D] or, packed, [N, H, 1, D] keeps head h of candidate c of sequence b.
struct Places {
  int64_t outer, head, inner;
  Places(const Tensor& t) : outer(t.stride(0)), head(t.stride(1)), inner(t.stride(2)) {}
  int64_t operator()(const Layout& at, int64_t b, int64_t h, int64_t c) const {
    return (at.packed ? (at.first[size_t(b)] + c) * outer : b * outer + c * inner) + h * head;
  }
};

// rows: the sequence of each packed candidate; null for a rectangle. each: every row has a length of its own, and so is
// what follows calls a sequence.
Layout check(const Tensor& q, const Tensor& k_cache, const Tensor& v_cache, const Tensor& k_own, const Tensor& v_own,
    const Tensor& lengths, const std::vector<int64_t>* rows, bool each, const std::optional<Tensor>& sinks) {
  require(q.dim() == 4, "q must have shape [B, H, C, D], got " + shape_of(q));
  require(k_cache.dim() == 4, "k_cache must have shape [B, HK, S, D], got " + shape_of(k_cache));
  Layout at{rows && !each ? k_cache.size(0) : q.size(0), q.size(1), k_cache.size(1), q.size(3),
      (q.size(3) + 15) / 16 * 16, dtype_of("q", q), rows != nullptr, {0}, {}};
  require(at.kv_heads > 0 && at.heads % at.kv_heads == 0, "H must be a multiple of HK, got " +
      std::to_string(at.heads) + " and " + std::to_string(at.kv_heads));
  require(at.dim <= kMaxDim, "the head dimension must be at most 512, got " + std::to_string(at.dim));
  const int64_t kept = each ? k_cache.size(0) : at.batch;
  require_shape("k_cache", k_cache, {kept, at.kv_heads, k_cache.size(2), at.dim});
  require_shape("v_cache", v_cache, {kept, at.kv_heads, k_cache.size(2), at.dim});
  require_shape("k_own", k_own, {q.size(0), at.kv_heads, q.size(2), at.dim});
  require_shape("v_own", v_own, {q.size(0), at.kv_heads, q.size(2), at.dim});
  require_shape("lengths", lengths, {at.batch});
  require_dtype("lengths", lengths, ScalarType::Long, "int64");
  for (const Tensor* t : {&k_cache, &v_cache, &k_own, &v_own})
    require(t->scalar_type() == q.scalar_type(), "q, k_cache, v_cache, k_own and v_own must have one dtype");
  for (const Tensor* t : {&k_cache, &v_cache})
    require(t->stride(3) == 1 || at.dim == 1, "k_cache and v_cache must be dense in their last dimension");
  if (sinks) require_shape("sinks", *sinks, {at.heads});
  if (!rows) {
    for (int64_t b = 0; b < at.batch; ++b) at.first.push_back((b + 1) * q.size(2));
    return at;
  }
  require(q.size(2) == 1 && q.size(0) == int64_t(rows->size()), "q must have shape [" + std::to_string(rows->size()) +
      ", H, 1, D], a row for each of rows, got " + shape_of(q));
  if (each) {
    for (int64_t b = 0; b < at.batch; ++b) at.first.push_back(b + 1);
    for (const int64_t row : *rows)
      require(row >= 0 && row < kept, "rows must be in [0, B), got " + std::to_string(row));
    at.cache = *rows;
    return at;
  }
  at.first.assign(size_t(at.batch + 1), 0);
  int64_t before = 0;
  for (const int64_t b : *rows) {
    require(b >= before && b < at.batch, "rows must be ascending and in [0, B), got " + std::to_string(b));
    ++at.first[size_t(b + 1)];
    before = b;
  }
  for (int64_t b = 0; b < at.batch; ++b) at.first[size_t(b + 1)] += at.first[size_t(b)];
  return at;
}

// The parts of sequences `from` to `to`, in `groups` those of each (sequence, KV head), and how many floats their results
// take. Heads come one after another where many positions read the same keys: those of one stay in the cache.
std::vector<Part> cut(const Layout& at, int64_t from, int64_t to, const Tensor& lengths, int64_t size,
    std::optional<int64_t> window, std::vector<Group>& groups, size_t& floats) {
  std::vector<Part> parts;
  const int64_t* length_of = lengths.const_data_ptr<int64_t>();
  const int64_t step = lengths.stride(0), by_head = !at.cache.empty(), count = to - from;
  floats = 0;
  groups.assign(size_t(count * at.kv_heads), {0, 0});
  for (int64_t i = 0; i < count * at.kv_heads; ++i) {
    const int64_t b = from + (by_head ? i % count : i / at.kv_heads), h = by_head ? i / count : i % at.kv_heads;
    const int64_t length = length_of[b * step];
    require(length >= 0 && length <= size, "lengths must be in [0, S], got " + std::to_string(length));
    const int64_t begin = window ? std::max<int64_t>(0, length - *window + 1) : 0;
    Group& group = groups[size_t((b - from) * at.kv_heads + h)];
    group.first = parts.size();
    if (at.count(b) == 0) continue;  // no query reads this sequence
    for (int64_t first = begin / kSpan * kSpan; first < length; first += kSpan) {
      parts.push_back({b, h, std::max(first, begin), std::min(first + kSpan, length), floats});
      floats += at.per_part(b);
      ++group.count;
    }
  }
  return parts;
}

struct Inputs {
  const Tensor &q, &k_cache, &v_cache, &k_own, &v_own, &lengths;
  float scale, softcap;  // 0 = none
  std::optional<int64_t> window;
  const std::optional<Tensor>& sinks;
};

constexpr int64_t kPositions = 64;  // sequences at a time where each row is one: bounds the memory of their parts

// What every part gives: rows not normalised, their greatest scores and sums.
void run_parts(const Layout& at, const Inputs& in, const std::vector<Part>& parts, const float* packed, int64_t first_row,
    float* results) {
  const int64_t strides[2][3] = {{in.k_cache.stride(0), in.k_cache.stride(1), in.k_cache.stride(2)},
      {in.v_cache.stride(0), in.v_cache.stride(1), in.v_cache.stride(2)}};
  const void* bases[2] = {in.k_cache.const_data_ptr(), in.v_cache.const_data_ptr()};
  int64_t work = 0;
  for (const Part& part : parts) work += (part.end - part.begin) * at.rows(part.sequence);
  const int64_t cost = parts.empty() ? 0 : work / int64_t(parts.size()) * at.dim / 18;
  for_each_part(int64_t(parts.size()), cost, [&](int64_t first, int64_t last) {
    thread_local std::vector<float> scratch;
    for (int64_t i = first; i < last; ++i) {
      const Part& part = parts[size_t(i)];
      const int64_t count = at.rows(part.sequence);
      scratch.resize(size_t(attend_scratch(count, at.padded)));
      // where the keys (s = 0) or values of a part begin; null behind this thread's last
      const auto start = [&](int64_t p, int s) -> const void* {
        if (p >= last) return nullptr;
        const Part& of = parts[size_t(p)];
        return offset_bytes(bases[s],
            at.cache_row(of.sequence) * strides[s][0] + of.head * strides[s][1] + of.begin * strides[s][2], at.dtype);
      };
      float* out = results + part.at;
      const int64_t row = at.row(part.sequence, part.head * at.group(), 0) - first_row;
      const AttendTask task{packed + row * at.padded, start(i, 0), start(i, 1), strides[0][2], strides[1][2],
          part.end - part.begin, at.dtype, int(count), at.dim, at.padded, in.softcap, start(i + 1, 0), start(i + 1, 1),
          out, out + count * at.padded, out + count * (at.padded + 1)};
      kernels().attend(task, scratch.data());
    }
  });
}

// Queries of sequences `from` to `to` as scaled rows of floats.
void pack_queries(const Layout& at, const Inputs& in, int64_t from, int64_t to, float* packed) {
  const Places q_at(in.q);
  const void* base = in.q.const_data_ptr();
  const int64_t step = in.q.stride(3), first_row = at.first[size_t(from)] * at.heads;
  for (int64_t b = from; b < to; ++b)
    for (int64_t h = 0; h < at.heads; ++h)
      for (int64_t c = 0; c < at.count(b); ++c) {
        const int64_t place = q_at(at, b, h, c);
        float* row = packed + (at.row(b, h, c) - first_row) * at.padded;
        for (int64_t d = 0; d < at.dim; ++d) row[d] = read(base, place + d * step, at.dtype) * in.scale;
      }
}

// Merges a query's parts, its own token and the sink.
void merge(const Layout& at, const Inputs& in, int64_t b, int64_t h, int64_t c, const Part* parts, size_t count,
    const float* results, const float* query, float* mixed, void* to_base, int64_t to) {
  const int64_t kv = h / at.group(), row = h % at.group() * at.count(b) + c, peaks = at.rows(b) * at.padded;
  const int64_t k_at = Places(in.k_own)(at, b, kv, c), v_at = Places(in.v_own)(at, b, kv, c);
  const int64_t k_step = in.k_own.stride(3), v_step = in.v_own.stride(3);
  const void *own_k = in.k_own.const_data_ptr(), *own_v = in.v_own.const_data_ptr();
  float own = 0;
  for (int64_t d = 0; d < at.dim; ++d) own += query[d] * read(own_k, k_at + d * k_step, at.dtype);
  if (in.softcap > 0) own = in.softcap * std::tanh(own / in.softcap);
  const float sink = in.sinks
      ? read(in.sinks->const_data_ptr(), h * in.sinks->stride(0), dtype_of("sinks", *in.sinks)) : -INFINITY;
  float peak = std::max(own, sink);
  for (size_t i = 0; i < count; ++i) peak = std::max(peak, results[parts[i].at + size_t(peaks + row)]);
  const float own_weight = std::exp(own - peak);
  float sum = own_weight + (in.sinks ? std::exp(sink - peak) : 0.0f);
  for (int64_t d = 0; d < at.dim; ++d) mixed[d] = own_weight * read(own_v, v_at + d * v_step, at.dtype);
  for (size_t i = 0; i < count; ++i) {
    const float* part = results + parts[i].at;
    const float weight = std::exp(part[peaks + row] - peak);
    sum += weight * part[peaks + at.rows(b) + row];
    for (int64_t d = 0; d < at.dim; ++d) mixed[d] += weight * part[row * at.padded + d];
  }
  for (int64_t d = 0; d < at.dim; ++d) write(to_base, to + d, mixed[d] / sum, at.dtype);
}

}  // namespace

Tensor attend(const Tensor& q, const Tensor& k_cache, const Tensor& v_cache, const Tensor& k_own, const Tensor& v_own,
    const Tensor& lengths, const std::vector<int64_t>* rows, bool each, double scale, std::optional<int64_t> window,
    std::optional<double> softcap, const std::optional<Tensor>& sinks) {
  const Layout at = check(q, k_cache, v_cache, k_own, v_own, lengths, rows, each, sinks);
  if (sinks) dtype_of("sinks", *sinks);
  const Inputs in{q, k_cache, v_cache, k_own, v_own, lengths, float(scale), softcap ? float(*softcap) : 0.0f, window, sinks};
  Tensor output = make({q.size(0), at.heads, q.size(2), at.dim}, q.scalar_type());
  const Places out_at(output);
  void* out_base = output.mutable_data_ptr();
  thread_local std::vector<float> queries, partial;
  std::vector<Group> groups;
  const int64_t step = each ? kPositions : std::max<int64_t>(at.batch, 1);
  for (int64_t from = 0; from < at.batch; from += step) {
    const int64_t to = std::min(from + step, at.batch), first_row = at.first[size_t(from)] * at.heads;
    size_t floats = 0;
    const std::vector<Part> parts = cut(at, from, to, lengths, k_cache.size(2), window, groups, floats);
    queries.assign(size_t((at.first[size_t(to)] * at.heads - first_row) * at.padded), 0.0f);
    if (partial.size() < floats) partial.resize(floats);
    float *packed = queries.data(), *results = partial.data();
    pack_queries(at, in, from, to, packed);
    run_parts(at, in, parts, packed, first_row, results);
    for_each_part(to - from, at.heads * at.dim * 3, [&](int64_t first, int64_t last) {
      std::vector<float> mixed(static_cast<size_t>(at.dim));
      for (int64_t b = from + first; b < from + last; ++b)
        for (int64_t h = 0; h < at.heads; ++h)
          for (int64_t c = 0; c < at.count(b); ++c) {
            const Group& group = groups[size_t((b - from) * at.kv_heads + h / at.group())];
            merge(at, in, b, h, c, parts.data() + group.first, group.count, results,
                packed + (at.row(b, h, c) - first_row) * at.padded, mixed.data(), out_base, out_at(at, b, h, c));
          }
    });
  }
  return output;
}

Tensor sibling_attention(const Tensor& q, const Tensor& k_cache, const Tensor& v_cache, const Tensor& k_own,
    const Tensor& v_own, const Tensor& lengths, double scale, std::optional<int64_t> window,
    std::optional<double> softcap, const std::optional<Tensor>& sinks) {
  return attend(q, k_cache, v_cache, k_own, v_own, lengths, nullptr, false, scale, window, softcap, sinks);
}

Tensor sibling_attention_packed(const Tensor& q, const Tensor& k_cache, const Tensor& v_cache, const Tensor& k_own,
    const Tensor& v_own, const Tensor& lengths, const Tensor& rows, double scale, std::optional<int64_t> window,
    std::optional<double> softcap, const std::optional<Tensor>& sinks) {
  const std::vector<int64_t> sequences = integers("rows", rows);
  return attend(q, k_cache, v_cache, k_own, v_own, lengths, &sequences, false, scale, window, softcap, sinks);
}

Tensor prefix_attention(const Tensor& q, const Tensor& k_cache, const Tensor& v_cache, const Tensor& k_own,
    const Tensor& v_own, const Tensor& lengths, const Tensor& rows, double scale, std::optional<int64_t> window,
    std::optional<double> softcap, const std::optional<Tensor>& sinks) {
  const std::vector<int64_t> cache_rows = integers("rows", rows);
  return attend(q, k_cache, v_cache, k_own, v_own, lengths, &cache_rows, true, scale, window, softcap, sinks);
}

}  // namespace caw
