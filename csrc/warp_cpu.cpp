// What the sampler keeps of rows of logits on the CPU: temperature, top-k, top-p, min-p, in transformers' order.
//
// A row keeps what is greater than a number, and of the tokens equal to it all but a few: `Cut`. It is found among the
// greatest elements, sorted, where they hold enough of the mass, which one reading of the row says; else by histograms of
// the mass, each of the bucket in which the one before found the border. Nothing sorts a vocabulary.

#include <algorithm>
#include <cmath>
#include <functional>
#include <vector>

#include "tensors.h"
#include "topk_softmax.h"

namespace caw {
namespace {

constexpr int64_t kListed = 128;     // elements that are tried before histograms
constexpr int64_t kMost = 2048;       // elements that are sorted
constexpr int64_t kFewEnough = 1024;  // elements of a bucket that need no finer one
constexpr int64_t kBuckets = 2048;
constexpr float kRange = 40.0f;  // nats below the greatest that the first histogram tells apart
constexpr double kMargin = 4e-6;  // of a sum that was found by subtraction

// Kept: x > value, and of those equal to it all but the first `fewer` ids.
struct Cut {
  float value = -INFINITY;
  int64_t fewer = 0;
};

struct Ranked {
  float value;
  int64_t id;
};

struct Scratch {
  std::vector<float> maxima, sorted_maxima, values, powers, probs;
  std::vector<uint64_t> keys;
  std::vector<double> mass;
  std::vector<Ranked> list, bucket, rest;
};

Scratch& scratch() {
  thread_local Scratch mine;
  return mine;
}

// Removed: the running sum of probabilities, from the least likely on, is at most 1 - top_p.
bool is_cut(double sum, float one_minus_top_p) { return float(sum) <= one_minus_top_p; }

bool near(double sum, float one_minus_top_p) { return std::abs(sum - double(one_minus_top_p)) < kMargin; }

class Row {
 public:
  Row(float* x, int64_t size, Scratch& own) : x_(x), size_(size), own_(own) {}

  void cut(int64_t top_k, float one_minus_top_p, float min_p) {
    const bool limited = top_k >= 1 && top_k < size_;
    if (!limited && !(one_minus_top_p >= 0) && !(min_p > 0)) return;
    if (!read(limited ? top_k : kListed)) return;
    if (limited && found_ >= top_k) {
      const float least = kth(top_k);
      if (found_ > kMost) {  // many equal ones perhaps: a row of its own
        kernels().keep_at_least(x_, least, size_);
        if (!read(kListed)) return;
      } else {
        list(found_);
        while (own_.list.back().value < least) own_.list.pop_back();
        whole_ = true;
        if (!(one_minus_top_p >= 0) && !(min_p > 0)) return apply(Cut{least, 0});
        kernels().keep_at_least(x_, least, size_);
      }
    }
    if (own_.list.empty()) list(std::min(found_, kMost));
    exponentiate();
    Cut cut;
    if (one_minus_top_p >= 0 &&
        !(whole_ ? nucleus_of_list(one_minus_top_p, &cut) : nucleus_of_greatest(one_minus_top_p, &cut)))
      cut = nucleus_of_row(one_minus_top_p);
    if (min_p > 0) likely_enough(min_p, &cut);
    apply(cut);
  }

 private:
  // Keys of the greatest elements, at least `count` of them where there are so many, and the sum of all powers. False:
  // the row holds NaN or +inf, or nothing finite.
  bool read(int64_t count) {
    const Kernels& simd = kernels();
    const int64_t block = topk_block_size(size_, std::max<int64_t>(count, 100));
    own_.maxima.resize(size_t((size_ + block - 1) / block));
    top_ = simd.maxima_and_sum(x_, kFloat32, size_, block, own_.maxima.data(), &total_);
    if (!std::isfinite(top_) || total_ != total_) return false;
    const float threshold = topk_threshold(own_.maxima, own_.sorted_maxima, std::min(count, size_));
    own_.keys.resize(size_t(size_));
    found_ = simd.filter(x_, kFloat32, size_, block, own_.maxima.data(), threshold, own_.keys.data());
    whole_ = threshold == -INFINITY && found_ <= kMost;  // every finite element passed
    own_.list.clear();
    return true;
  }

  float kth(int64_t k) {
    const auto begin = own_.keys.begin();
    std::nth_element(begin, begin + (k - 1), begin + found_, std::greater<uint64_t>());
    return x_[key_id(own_.keys[size_t(k - 1)])];
  }

  // The `count` greatest of what was found, in order.
  void list(int64_t count) {
    const auto begin = own_.keys.begin();
    if (count < found_) std::nth_element(begin, begin + count, begin + found_, std::greater<uint64_t>());
    std::sort(begin, begin + count, std::greater<uint64_t>());
    own_.list.clear();
    for (int64_t i = 0; i < count; ++i) {
      const int64_t id = key_id(own_.keys[size_t(i)]);
      own_.list.push_back(Ranked{x_[id], id});
    }
  }

  // exp(x - top) of the list.
  void exponentiate() {
    own_.values.resize(own_.list.size());
    own_.powers.resize(own_.list.size());
    for (size_t i = 0; i < own_.list.size(); ++i) own_.values[i] = own_.list[i].value;
    kernels().exponentials(own_.values.data(), top_, int64_t(own_.values.size()), own_.powers.data());
    if (!whole_) return;
    total_ = 0;
    for (const float e : own_.powers) total_ += double(e);
  }

  float prob(size_t i) const { return own_.powers[i] / float(total_); }

  // First of the elements of the list that are equal to its last one before `end`.
  size_t begin_of_group(size_t end) const {
    size_t begin = end - 1;
    while (begin > 0 && own_.list[begin - 1].value == own_.list[begin].value) --begin;
    return begin;
  }

  // The list holds all that is left: sums as transformers makes them.
  bool nucleus_of_list(float one_minus_top_p, Cut* cut) {
    double sum = 0;
    for (size_t end = own_.list.size(); end > 0;) {
      const size_t begin = begin_of_group(end), count = end - begin;
      const double each = double(prob(begin));
      size_t removed = 0;
      while (removed < count && is_cut(sum + double(removed + 1) * each, one_minus_top_p)) ++removed;
      if (begin == 0) removed = std::min(removed, count - 1);
      if (removed < count) {
        *cut = Cut{own_.list[begin].value, int64_t(removed)};
        return true;
      }
      sum += double(count) * each;
      end = begin;
    }
    return true;
  }

  // The list holds the greatest: what lies below them has the rest of the mass. False: it does not hold enough, or a sum
  // is so near that subtraction cannot tell.
  bool nucleus_of_greatest(float one_minus_top_p, Cut* cut) {
    double above = 0;
    Cut before;
    for (size_t begin = 0, end = 0; end < own_.list.size(); begin = end) {
      while (end < own_.list.size() && own_.list[end].value == own_.list[begin].value) ++end;
      if (end == own_.list.size()) return false;  // there may be more of the last group
      const size_t count = end - begin;
      const double each = double(own_.powers[begin]) / total_;
      above += double(count) * double(own_.powers[begin]);
      const double below = (total_ - above) / total_;
      size_t removed = 0;
      while (removed < count && is_cut(below + double(removed + 1) * each, one_minus_top_p)) ++removed;
      const double next = below + double(removed + 1) * each;
      if (near(below + double(removed) * each, one_minus_top_p) || near(next, one_minus_top_p)) return false;
      if (begin == 0) removed = std::min(removed, count - 1);
      if (removed == count) {
        *cut = before;
        return true;
      }
      if (removed > 0) {
        *cut = Cut{own_.list[begin].value, int64_t(removed)};
        return true;
      }
      before = Cut{own_.list[begin].value, 0};
    }
    return false;
  }

  // Probabilities of the whole row.
  void probabilities() {
    own_.probs.resize(size_t(size_));
    float* p = own_.probs.data();
    kernels().exponentials(x_, top_, size_, p);
    double part[8] = {0, 0, 0, 0, 0, 0, 0, 0};
    for (int64_t i = 0; i + 8 <= size_; i += 8)
      for (int64_t j = 0; j < 8; ++j) part[j] += double(p[i + j]);
    for (int64_t i = size_ & ~int64_t(7); i < size_; ++i) part[i & 7] += double(p[i]);
    total_ = ((part[0] + part[4]) + (part[1] + part[5])) + ((part[2] + part[6]) + (part[3] + part[7]));
    kernels().divide(p, float(total_), size_, p);
  }

  // The bucket of x, greatest first; the order of buckets is that of the floats, equal floats share one.
  static size_t bucket_of(float x, float top, float scale) {
    const float at = (top - x) * scale;
    return at < float(kBuckets - 1) ? size_t(at) : size_t(kBuckets - 1);
  }

  // The bucket that the border lies in, all below it removed; `sum` grows by what they hold. The first one at least.
  size_t border(float one_minus_top_p, double* sum) const {
    size_t b = own_.mass.size();
    while (b-- > 1) {
      if (!is_cut(*sum + own_.mass[b], one_minus_top_p)) return b;
      *sum += own_.mass[b];
    }
    return 0;
  }

  Cut nucleus_of_row(float one_minus_top_p) {
    probabilities();
    const float* p = own_.probs.data();
    const float scale = float(kBuckets) / kRange;
    own_.mass.assign(size_t(kBuckets), 0.0);
    double* mass = own_.mass.data();
    for (int64_t i = 0; i < size_; ++i) mass[bucket_of(x_[i], top_, scale)] += double(p[i]);
    double sum = 0;
    size_t b = border(one_minus_top_p, &sum);
    own_.bucket.clear();
    for (int64_t i = 0; i < size_; ++i)
      if (x_[i] > -INFINITY && bucket_of(x_[i], top_, scale) == b) own_.bucket.push_back(Ranked{x_[i], i});
    narrow(one_minus_top_p, &sum);
    // in the order of transformers' sum: less likely first, of equal ones the smaller id
    const auto before = [](const Ranked& a, const Ranked& c) {
      return a.value < c.value || (a.value == c.value && a.id < c.id);
    };
    if (!std::is_sorted(own_.bucket.begin(), own_.bucket.end(), before))
      std::sort(own_.bucket.begin(), own_.bucket.end(), before);
    const size_t count = own_.bucket.size();
    size_t at = 0, first = 0;
    for (; at < count; ++at) {
      if (own_.bucket[at].value != own_.bucket[first].value) first = at;
      sum += double(p[own_.bucket[at].id]);
      if (!is_cut(sum, one_minus_top_p)) break;
    }
    if (at < count) return Cut{own_.bucket[at].value, int64_t(at - first)};
    // rounding: the sum of this bucket was above 1 - top_p, element by element it is not, or the row's whole sum is not
    const float last = own_.bucket[count - 1].value;
    if (last == top_) return Cut{last, int64_t(count - 1 - first)};
    float next = top_;
    for (int64_t i = 0; i < size_; ++i)
      if (x_[i] > last && x_[i] < next) next = x_[i];
    return Cut{next, 0};
  }

  // Leaves in the bucket what a finer histogram cannot decide; `sum` grows by what lies below.
  void narrow(float one_minus_top_p, double* sum) {
    while (int64_t(own_.bucket.size()) > kFewEnough) {
      float low = own_.bucket[0].value, high = low;
      for (const Ranked& one : own_.bucket) {
        low = std::min(low, one.value);
        high = std::max(high, one.value);
      }
      const float scale = float(kBuckets) / (high - low);
      if (!(high > low) || !std::isfinite(scale)) return;
      own_.mass.assign(size_t(kBuckets), 0.0);
      for (const Ranked& one : own_.bucket)
        own_.mass[bucket_of(one.value, high, scale)] += double(own_.probs[size_t(one.id)]);
      const size_t b = border(one_minus_top_p, sum);
      own_.rest.clear();
      for (const Ranked& one : own_.bucket)
        if (bucket_of(one.value, high, scale) == b) own_.rest.push_back(one);
      const bool smaller = own_.rest.size() < own_.bucket.size();
      own_.bucket.swap(own_.rest);
      if (!smaller) return;
    }
  }

  // Raises the cut to the tokens at least min_p times as likely as the likeliest.
  void likely_enough(float min_p, Cut* cut) {
    const bool inside = whole_ || own_.list.back().value < cut->value;  // the list holds all that is left
    if (!inside && (cut->value > -INFINITY || double(own_.powers.back()) > 0.99 * double(min_p)))
      return likely_in_row(min_p, cut);
    double sum = total_;
    if (cut->value > -INFINITY) {
      sum = 0;
      int64_t equal = 0;
      float border = 0;
      for (size_t i = 0; i < own_.list.size() && own_.list[i].value >= cut->value; ++i) {
        sum += double(own_.powers[i]);
        equal += own_.list[i].value == cut->value;
        border = own_.powers[i];
      }
      sum -= double(cut->fewer) * double(border);
    }
    const float total = float(sum), limit = min_p * (1.0f / total);
    for (size_t i = own_.list.size(); i-- > 0;) {
      if (own_.list[i].value < cut->value) continue;
      if (i == 0 || !(own_.powers[i] / total < limit)) {
        if (own_.list[i].value > cut->value) *cut = Cut{own_.list[i].value, 0};
        return;
      }
    }
  }

  void likely_in_row(float min_p, Cut* cut) {
    own_.probs.resize(size_t(size_));
    float* e = own_.probs.data();
    kernels().exponentials(x_, top_, size_, e);
    double sum = 0;
    float border = 0;
    for (int64_t i = 0; i < size_; ++i) {
      if (!(x_[i] >= cut->value)) continue;
      sum += double(e[i]);
      if (x_[i] == cut->value) border = e[i];
    }
    sum -= double(cut->fewer) * double(border);
    const float total = float(sum), limit = min_p * (1.0f / total);
    float least = top_;
    for (int64_t i = 0; i < size_; ++i)
      if (x_[i] >= cut->value && x_[i] < least && !(e[i] / total < limit)) least = x_[i];
    if (least > cut->value) *cut = Cut{least, 0};
  }

  void apply(const Cut& cut) {
    if (cut.value == -INFINITY) return;
    kernels().keep_at_least(x_, cut.value, size_);
    int64_t left = cut.fewer;
    for (int64_t i = 0; left > 0 && i < size_; ++i) {
      if (x_[i] != cut.value) continue;
      x_[i] = -INFINITY;
      --left;
    }
  }

  float* x_;
  int64_t size_;
  Scratch& own_;
  float top_ = 0;
  double total_ = 0;  // of the powers exp(x - top)
  int64_t found_ = 0;  // keys
  bool whole_ = false;  // the list holds every element that is left
};

}  // namespace

Tensor warp_logits(const Tensor& logits, const Tensor& wanted, const Tensor& temperatures, const Tensor& top_ks,
    const Tensor& one_minus_top_ps, const Tensor& min_ps) {
  require(logits.dim() == 2 && logits.size(1) >= 1, "logits must have shape [B, V] with V >= 1, got " + shape_of(logits));
  require_dtype("logits", logits, ScalarType::Float);
  const int64_t batch = logits.size(0), size = logits.size(1);
  require(size < (int64_t(1) << 31), "V must be below 2**31, got " + std::to_string(size));
  require_tensor("wanted", wanted, ScalarType::Bool, {batch});
  require_tensor("top_ks", top_ks, ScalarType::Long, {batch});
  const std::pair<const char*, const Tensor&> numbers[] = {
      {"temperatures", temperatures}, {"one_minus_top_ps", one_minus_top_ps}, {"min_ps", min_ps}};
  for (const auto& [name, tensor] : numbers) {
    require_shape(name, tensor, {batch});
    require_dtype(name, tensor, ScalarType::Float);
  }
  const Tensor rows = dense(logits), flags = dense(wanted), divisors = dense(temperatures), ks = dense(top_ks);
  const Tensor rests = dense(one_minus_top_ps), lows = dense(min_ps);
  Tensor out = make({batch, size}, ScalarType::Float);
  const float *l = rows.const_data_ptr<float>(), *t = divisors.const_data_ptr<float>();
  const float *one_minus_top_p = rests.const_data_ptr<float>(), *min_p = lows.const_data_ptr<float>();
  const int64_t* k = ks.const_data_ptr<int64_t>();
  const bool* flag = static_cast<const bool*>(flags.const_data_ptr());
  float* to = out.mutable_data_ptr<float>();
  for_each_part(batch, size, [&](int64_t begin, int64_t end) {
    for (int64_t b = begin; b < end; ++b) {
      float* x = to + b * size;
      if (flag[b] && t[b] != 1.0f) {
        kernels().divide(l + b * size, t[b], size, x);
      } else {
        std::copy(l + b * size, l + (b + 1) * size, x);
      }
      if (flag[b]) Row(x, size, scratch()).cut(k[b], one_minus_top_p[b], min_p[b]);
    }
  });
  return out;
}

}  // namespace caw

STABLE_TORCH_LIBRARY_IMPL(caw, CPU, m) {
  m.impl("warp_logits", TORCH_BOX(&caw::warp_logits));
}
