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

#include "attention.h"
#include "convert.h"

namespace caw {
namespace {

constexpr int64_t kSpan = 512;
constexpr int64_t kPositions = 64;  // sequences at a time where each row is one
constexpr int64_t kJoined = 8;      // of them, tokens of a prompt that read their keys together

}  // namespace

Attention::Attention(const Shape& shape, std::vector<int64_t> lengths, bool is_packed, std::vector<int64_t> cache)
    : shape_(shape), padded_((shape.dim + 15) / 16 * 16), is_packed_(is_packed), lengths_(std::move(lengths)),
      cache_(std::move(cache)) {
  require(shape.kv_heads > 0 && shape.heads % shape.kv_heads == 0, [&] {
    return "H must be a multiple of HK, got " + std::to_string(shape.heads) + " and " + std::to_string(shape.kv_heads);
  });
  require(shape.dim <= kMaxDim,
      [&] { return "the head dimension must be at most 512, got " + std::to_string(shape.dim); });
  for (const int64_t length : lengths_)
    require(length >= 0 && length <= shape.size,
        [&] { return "lengths must be in [0, S], got " + std::to_string(length); });
}

Attention Attention::rectangle(
    const Shape& shape, std::vector<int64_t> lengths, int64_t count, std::optional<int64_t> window) {
  Attention made(shape, std::move(lengths), false, {});
  for (size_t b = 0; b <= made.lengths_.size(); ++b) made.first_.push_back(int64_t(b) * count);
  made.cut(window);
  return made;
}

Attention Attention::packed(const Shape& shape, std::vector<int64_t> lengths, const std::vector<int64_t>& rows,
    std::optional<int64_t> window) {
  Attention made(shape, std::move(lengths), true, {});
  const int64_t batch = int64_t(made.lengths_.size());
  made.first_.assign(size_t(batch + 1), 0);
  int64_t before = 0;
  for (const int64_t b : rows) {
    require(b >= before && b < batch, [&] { return "rows must be ascending and in [0, B), got " + std::to_string(b); });
    ++made.first_[size_t(b + 1)];
    before = b;
  }
  for (int64_t b = 0; b < batch; ++b) made.first_[size_t(b + 1)] += made.first_[size_t(b)];
  made.cut(window);
  return made;
}

Attention Attention::each(const Shape& shape, std::vector<int64_t> lengths, const std::vector<int64_t>& rows,
    int64_t batch, std::optional<int64_t> window) {
  Attention made(shape, std::move(lengths), true, rows);
  for (const int64_t row : rows)
    require(row >= 0 && row < batch, [&] { return "rows must be in [0, B), got " + std::to_string(row); });
  for (size_t b = 0; b <= rows.size(); ++b) made.first_.push_back(int64_t(b));
  made.cut(window);
  return made;
}

void Attention::cut(std::optional<int64_t> window) {
  const int64_t batch = int64_t(lengths_.size()), step = cache_.empty() ? std::max<int64_t>(batch, 1) : kPositions;
  for (int64_t from = 0; from < batch; from += step)
    blocks_.push_back(block(from, std::min(from + step, batch), window));
  for (const Block& block : blocks_)
    for (const Part& part : block.parts) work_ += (part.end - part.begin) * rows(part.sequence) * shape_.dim / 18;
}

// The parts of sequences `from` to `to`. Heads come one after another where many positions read the same keys: those of
// one stay in the cache.
Attention::Block Attention::block(int64_t from, int64_t to, std::optional<int64_t> window) const {
  Block made{from, to, 0, {}, {}, {}, {}};
  const int64_t by_head = !cache_.empty(), count = to - from, kv_heads = shape_.kv_heads;
  made.groups.assign(size_t(count * kv_heads), {0, 0});
  for (int64_t i = 0; i < count * kv_heads; ++i) {
    const int64_t b = from + (by_head ? i % count : i / kv_heads), h = by_head ? i / count : i % kv_heads;
    const int64_t length = lengths_[size_t(b)], begin = window ? std::max<int64_t>(0, length - *window + 1) : 0;
    Group& group = made.groups[size_t((b - from) * kv_heads + h)];
    group.first = int64_t(made.parts.size());
    if (rows(b) == 0) continue;  // no query reads this sequence
    for (int64_t first = begin / kSpan * kSpan; first < length; first += kSpan) {
      made.parts.push_back({b, h, std::max(first, begin), std::min(first + kSpan, length), made.floats});
      made.floats += rows(b) * (padded_ + 2);  // not normalised rows, their greatest scores and sums
      ++group.count;
    }
  }
  join(made);
  return made;
}

// Tokens of a prompt that follow each other read the same keys, but for the last few.
void Attention::join(Block& block) const {
  std::vector<std::vector<int64_t>> jobs;
  std::vector<size_t> open;  // of the (head, cache row) in hand
  for (int64_t i = 0; i < int64_t(block.parts.size()); ++i) {
    const Part& part = block.parts[size_t(i)];
    const auto fits = [&](size_t job) {
      const Part& other = block.parts[size_t(jobs[job].front())];
      return other.begin == part.begin && other.head == part.head &&
          cache_row(other.sequence) == cache_row(part.sequence) && int64_t(jobs[job].size()) < kJoined;
    };
    const auto found = cache_.empty() ? open.end() : std::find_if(open.begin(), open.end(), fits);
    if (found != open.end()) {
      jobs[*found].push_back(i);
      continue;
    }
    if (!open.empty() && block.parts[size_t(jobs[open.front()].front())].head != part.head) open.clear();
    open.push_back(jobs.size());
    jobs.push_back({i});
  }
  for (const auto& job : jobs) {
    block.jobs.push_back(int64_t(block.order.size()));
    block.order.insert(block.order.end(), job.begin(), job.end());
  }
  block.jobs.push_back(int64_t(block.order.size()));
}

void Attention::prepare(Room& room) const {
  for (const Block& block : blocks_) {
    room.partial.resize(block.floats);
    room.queries.resize((first_[size_t(block.to)] - first_[size_t(block.from)]) * shape_.heads * padded_);
  }
}

void Attention::run(Team& team, const AttentionInputs& in, Room& room) const {
  for (const Block& block : blocks_) {
    const int64_t first_row = first_[size_t(block.from)] * shape_.heads;
    float *packed = room.queries.data(), *results = room.partial.data();
    const auto query = [&](int64_t b, int64_t h, int64_t c) { return packed + (row(b, h, c) - first_row) * padded_; };
    team.each(block.to - block.from,
        [&](int64_t first, int64_t last) { pack(in, block.from + first, block.from + last, query(block.from + first, 0, 0)); });
    team.each(int64_t(block.jobs.size()) - 1,
        [&](int64_t begin, int64_t end) { run_jobs(in, block, begin, end, packed, results); });
    team.each(block.to - block.from, [&](int64_t first, int64_t last) {
      for (int64_t b = block.from + first; b < block.from + last; ++b)
        for (int64_t h = 0; h < shape_.heads; ++h)
          for (int64_t c = 0; c < count(b); ++c) merge(in, block, b, h, c, results, query(b, h, c));
    });
  }
}

// Queries of sequences `from` to `to` as scaled rows of floats, `packed` being the place of the first one's.
void Attention::pack(const AttentionInputs& in, int64_t from, int64_t to, float* packed) const {
  for (int64_t b = from; b < to; ++b)
    for (int64_t h = 0; h < shape_.heads; ++h)
      for (int64_t c = 0; c < count(b); ++c, packed += padded_) {
        const int64_t first = place(in.q, b, h, c);
        for (int64_t d = 0; d < shape_.dim; ++d) packed[d] = read(in.q.data, first + d * in.q.step, in.q.type) * in.scale;
        std::fill(packed + shape_.dim, packed + padded_, 0.0f);
      }
}

// What the jobs `begin` to `end` give: rows not normalised, their greatest scores and sums.
void Attention::run_jobs(const AttentionInputs& in, const Block& block, int64_t begin, int64_t end, const float* packed,
    float* results) const {
  thread_local Aligned<float> scratch;
  thread_local std::vector<AttendRow> rows_of_job;
  std::vector<AttendRow>& rows = rows_of_job;
  const int64_t first_row = first_[size_t(block.from)] * shape_.heads;
  const auto part_of = [&](int64_t place) -> const Part& { return block.parts[size_t(block.order[size_t(place)])]; };
  for (int64_t job = begin; job < end; ++job) {
    const int64_t from = block.jobs[size_t(job)], to = block.jobs[size_t(job + 1)];
    rows.clear();
    int64_t most = 0;
    for (int64_t i = from; i < to; ++i) {
      const Part& part = part_of(i);
      const int64_t queries = this->rows(part.sequence), row = this->row(part.sequence, part.head * group(), 0) - first_row;
      float* out = results + part.at;
      most = std::max(most, part.end - part.begin);
      for (int64_t r = 0; r < queries; ++r)
        rows.push_back({packed + (row + r) * padded_, part.end - part.begin, out + r * padded_, out + queries * padded_ + r,
            out + queries * (padded_ + 1) + r});
    }
    scratch.resize(attend_scratch(int64_t(rows.size()), padded_));
    // where the keys or values of a job begin; null behind this thread's last
    const auto start = [&](int64_t j, const Kept& of) -> const void* {
      if (j >= end) return nullptr;
      const Part& at = part_of(block.jobs[size_t(j)]);
      return offset_bytes(of.data, cache_row(at.sequence) * of.row + at.head * of.head + at.begin * of.token, shape_.type);
    };
    const AttendTask task{rows.data(), int(rows.size()), start(job, in.k), start(job, in.v), in.k.token, in.v.token, most,
        shape_.type, shape_.dim, padded_, in.softcap, start(job + 1, in.k), start(job + 1, in.v)};
    kernels().attend(task, scratch.data());
  }
}

// Merges a query's parts, its own token and the sink.
void Attention::merge(const AttentionInputs& in, const Block& block, int64_t b, int64_t h, int64_t c, const float* results,
    const float* query) const {
  const int64_t kv = h / group(), row = h % group() * count(b) + c, peaks = rows(b) * padded_, dim = shape_.dim;
  const Group& own_parts = block.groups[size_t((b - block.from) * shape_.kv_heads + kv)];
  const Part* parts = block.parts.data() + own_parts.first;
  const int64_t k_at = place(in.k_own, b, kv, c), v_at = place(in.v_own, b, kv, c), to = place(in.out, b, h, c);
  float mixed[kMaxDim], own = 0;
  for (int64_t d = 0; d < dim; ++d) own += query[d] * read(in.k_own.data, k_at + d * in.k_own.step, in.k_own.type);
  if (in.softcap > 0) own = in.softcap * std::tanh(own / in.softcap);
  const Tensor* sinks = in.sinks && in.sinks->has_value() ? &**in.sinks : nullptr;
  const float sink = sinks ? read(sinks->const_data_ptr(), h * sinks->stride(0), dtype_of("sinks", *sinks)) : -INFINITY;
  float peak = std::max(own, sink);
  for (int64_t i = 0; i < own_parts.count; ++i) peak = std::max(peak, results[parts[i].at + peaks + row]);
  const float own_weight = std::exp(own - peak);
  float sum = own_weight + (sinks ? std::exp(sink - peak) : 0.0f);
  for (int64_t d = 0; d < dim; ++d)
    mixed[d] = own_weight * read(in.v_own.data, v_at + d * in.v_own.step, in.v_own.type);
  for (int64_t i = 0; i < own_parts.count; ++i) {
    const float* part = results + parts[i].at;
    const float weight = std::exp(part[peaks + row] - peak);
    sum += weight * part[peaks + rows(b) + row];
    for (int64_t d = 0; d < dim; ++d) mixed[d] += weight * part[row * padded_ + d];
  }
  void* target = const_cast<void*>(in.out.data);
  for (int64_t d = 0; d < dim; ++d) write(target, to + d * in.out.step, mixed[d] / sum, in.out.type);
}

namespace {

Kept kept(const Tensor& t) {
  return {static_cast<char*>(const_cast<void*>(t.const_data_ptr())), t.stride(0), t.stride(1), t.stride(2)};
}

// rows: the sequence of each packed candidate; null for a rectangle. each: every row has a length of its own.
Attention placed(const Tensor& q, const Tensor& k_cache, const Tensor& v_cache, const Tensor& k_own, const Tensor& v_own,
    const Tensor& lengths, const std::vector<int64_t>* rows, bool each, std::optional<int64_t> window,
    const std::optional<Tensor>& sinks) {
  require(q.dim() == 4, [&] { return "q must have shape [B, H, C, D], got " + shape_of(q); });
  require(k_cache.dim() == 4, [&] { return "k_cache must have shape [B, HK, S, D], got " + shape_of(k_cache); });
  const int64_t batch = rows && !each ? k_cache.size(0) : q.size(0), size = k_cache.size(2), dim = q.size(3);
  const int64_t kept_rows = each ? k_cache.size(0) : batch, kv_heads = k_cache.size(1);
  const Attention::Shape shape{q.size(1), kv_heads, dim, size, dtype_of("q", q)};
  require_shape("k_cache", k_cache, {kept_rows, kv_heads, size, dim});
  require_shape("v_cache", v_cache, {kept_rows, kv_heads, size, dim});
  require_shape("k_own", k_own, {q.size(0), kv_heads, q.size(2), dim});
  require_shape("v_own", v_own, {q.size(0), kv_heads, q.size(2), dim});
  require_shape("lengths", lengths, {batch});
  std::vector<int64_t> tokens = integers("lengths", lengths);
  for (const Tensor* t : {&k_cache, &v_cache, &k_own, &v_own})
    require(t->scalar_type() == q.scalar_type(), "q, k_cache, v_cache, k_own and v_own must have one dtype");
  for (const Tensor* t : {&k_cache, &v_cache})
    require(t->stride(3) == 1 || dim == 1, "k_cache and v_cache must be dense in their last dimension");
  if (sinks) require_shape("sinks", *sinks, {shape.heads}), dtype_of("sinks", *sinks);
  if (!rows) return Attention::rectangle(shape, std::move(tokens), q.size(2), window);
  require(q.size(2) == 1 && q.size(0) == int64_t(rows->size()), [&] {
    return "q must have shape [" + std::to_string(rows->size()) + ", H, 1, D], a row for each of rows, got " + shape_of(q);
  });
  if (each) return Attention::each(shape, std::move(tokens), *rows, kept_rows, window);
  return Attention::packed(shape, std::move(tokens), *rows, window);
}

Tensor attend(const Tensor& q, const Tensor& k_cache, const Tensor& v_cache, const Tensor& k_own, const Tensor& v_own,
    const Tensor& lengths, const std::vector<int64_t>* rows, bool each, double scale, std::optional<int64_t> window,
    std::optional<double> softcap, const std::optional<Tensor>& sinks) {
  const Attention attention = placed(q, k_cache, v_cache, k_own, v_own, lengths, rows, each, window, sinks);
  const Tensor output = make({q.size(0), q.size(1), q.size(2), q.size(3)}, q.scalar_type());
  const AttentionInputs in{Heads(q), Heads(k_own), Heads(v_own), Heads(output), kept(k_cache), kept(v_cache), float(scale),
      softcap ? float(*softcap) : 0.0f, &sinks};
  thread_local Attention::Room room;
  Attention::Room& own = room;
  attention.prepare(own);
  Team::run(Team::worth(attention.work()), [&](Team& team) { attention.run(team, in, own); });
  return output;
}

}  // namespace

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

STABLE_TORCH_LIBRARY_IMPL(caw, CPU, m) {
  m.impl("sibling_attention", TORCH_BOX(&caw::sibling_attention));
  m.impl("sibling_attention_packed", TORCH_BOX(&caw::sibling_attention_packed));
  m.impl("prefix_attention", TORCH_BOX(&caw::prefix_attention));
}
