// Attention of rows over a cache, for the ops of this library. See sibling_attention.cpp.
#pragma once

#include "cpu/linear.h"
#include "team.h"

namespace caw {

// A tensor [B, H, C, D] or, packed, [N, H, 1, D] where it lies; steps in elements.
struct Heads {
  const void* data;
  Dtype type;
  int64_t outer, head, inner, step;
  explicit Heads(const Tensor& t)
      : data(t.const_data_ptr()), type(dtype_of("heads", t)), outer(t.stride(0)), head(t.stride(1)), inner(t.stride(2)),
        step(t.stride(3)) {}
  Heads(const void* data, Dtype type, int64_t outer, int64_t head)
      : data(data), type(type), outer(outer), head(head), inner(0), step(1) {}
};

// Keys or values of committed tokens [B, HK, S, D] where they lie, dense in D.
struct Kept {
  char* data = nullptr;
  int64_t row = 0, head = 0, token = 0;
};

struct AttentionInputs {
  Heads q, k_own, v_own, out;
  Kept k, v;
  float scale, softcap = 0;  // 0 = none
  const std::optional<Tensor>* sinks = nullptr;
};

// Where the rows of a call stand: the same for every layer with one window.
class Attention {
 public:
  struct Shape {
    int64_t heads, kv_heads, dim, size;  // size: places of the cache
    Dtype type;  // of the cache
  };

  // A rectangle of `count` candidates of each of lengths.size() sequences.
  static Attention rectangle(const Shape& shape, std::vector<int64_t> lengths, int64_t count, std::optional<int64_t> window);
  // As many of each sequence as `rows` (ascending) says.
  static Attention packed(const Shape& shape, std::vector<int64_t> lengths, const std::vector<int64_t>& rows,
      std::optional<int64_t> window);
  // Every row has a length of its own, in row rows[n] of a cache of `batch` rows.
  static Attention each(const Shape& shape, std::vector<int64_t> lengths, const std::vector<int64_t>& rows, int64_t batch,
      std::optional<int64_t> window);

  // Nanoseconds for one thread.
  int64_t work() const { return work_; }

  // Memory that `run` works in; may serve one call after another.
  struct Room {
    Aligned<float> queries, partial;
  };
  void prepare(Room& room) const;

  // Fills in.out; every member of the team calls it.
  void run(Team& team, const AttentionInputs& in, Room& room) const;

 private:
  struct Part {
    int64_t sequence, head, begin, end;
    int64_t at;  // where its results begin
  };
  // The parts of one (sequence, head), which are neighbours in the list.
  struct Group {
    int64_t first, count;
  };
  // Sequences that are attended to at a time, which bounds the memory of their parts.
  struct Block {
    int64_t from, to, floats;
    std::vector<Part> parts;
    std::vector<Group> groups;
    // Parts that read the same keys, worked on together: those of job j are jobs[j] to jobs[j + 1] of `order`.
    std::vector<int64_t> order, jobs;
  };

  Attention(const Shape& shape, std::vector<int64_t> lengths, bool is_packed, std::vector<int64_t> cache);
  void cut(std::optional<int64_t> window);
  Block block(int64_t from, int64_t to, std::optional<int64_t> window) const;
  void join(Block& block) const;
  void pack(const AttentionInputs& in, int64_t from, int64_t to, float* packed) const;
  void run_jobs(const AttentionInputs& in, const Block& block, int64_t begin, int64_t end, const float* packed,
      float* results) const;
  void merge(const AttentionInputs& in, const Block& block, int64_t b, int64_t h, int64_t c, const float* results,
      const float* query) const;

  int64_t cache_row(int64_t b) const { return cache_.empty() ? b : cache_[size_t(b)]; }
  int64_t count(int64_t b) const { return first_[size_t(b + 1)] - first_[size_t(b)]; }
  int64_t group() const { return shape_.heads / shape_.kv_heads; }
  int64_t rows(int64_t b) const { return group() * count(b); }  // queries that share a KV head
  // Among all queries: those of a sequence and KV head are neighbours.
  int64_t row(int64_t b, int64_t h, int64_t c) const { return first_[size_t(b)] * shape_.heads + h * count(b) + c; }
  int64_t place(const Heads& t, int64_t b, int64_t h, int64_t c) const {
    return (is_packed_ ? (first_[size_t(b)] + c) * t.outer : b * t.outer + c * t.inner) + h * t.head;
  }

  Shape shape_;
  int64_t padded_, work_ = 0;
  bool is_packed_;
  std::vector<int64_t> lengths_, first_;  // first: [B + 1], where each sequence's candidates begin among all of them
  std::vector<int64_t> cache_;            // the row of the cache that each reads; empty = its own
  std::vector<Block> blocks_;
};

}  // namespace caw
