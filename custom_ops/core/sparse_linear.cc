#include "custom_ops/core/sparse_linear.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>

#include "custom_ops/core/score_accumulator.h"
#include "custom_ops/core/scored.h"

namespace dslide {
namespace {

double Softplus(double z) { return std::max(z, 0.0) + std::log1p(std::exp(-std::abs(z))); }

// How many weights the features of a row have.
int64_t WeightsOfRow(const SparseRows& x, int64_t row, const CsrView& neurons) {
  int64_t weights = 0;
  for (const int32_t* f = x.ids.begin(row); f != x.ids.end(row); ++f) {
    weights += std::max<int64_t>(0, neurons.length(*f));
  }
  return weights;
}

// Nanoseconds that the scores of a mean row take, roughly.
int64_t ScoreCost(const SparseRows& x, const SparseKernel& kernel) {
  int64_t weights = 0;
  for (int64_t row = 0; row < x.ids.rows; ++row) weights += WeightsOfRow(x, row, kernel.neurons);
  return 200 + 2 * weights / std::max<int64_t>(1, x.ids.rows);
}

// Calls `use(entry, weight, neuron)` for the weights of a row's features; whether they are what
// they claim to be. They are too many to be checked as a whole in every step.
template <typename Use>
bool ForWeights(const SparseRows& x, int64_t row, const SparseKernel& kernel, const Use& use) {
  const CsrView& neurons = kernel.neurons;
  for (int64_t e = x.ids.splits[row]; e < x.ids.splits[row + 1]; ++e) {
    const int32_t feature = x.ids.ids[e];
    if (!kernel.Within(feature)) return false;
    for (int64_t q = neurons.splits[feature]; q < neurons.splits[feature + 1]; ++q) {
      if (neurons.ids[q] < 0 || neurons.ids[q] >= kernel.units) return false;
      use(e, q, neurons.ids[q]);
    }
  }
  return true;
}

// Slabs of rows, each of one thread, whose results are joined in order.
Slabs RowSlabs(int64_t rows) { return Slabs(rows, 32); }

template <typename T>
void Append(const std::vector<T>& from, std::vector<T>* to) {
  to->insert(to->end(), from.begin(), from.end());
}

void AppendLengths(const std::vector<int64_t>& lengths, std::vector<int64_t>* splits) {
  for (int64_t length : lengths) splits->push_back(splits->back() + length);
}

// The rows of a batch that mention each feature, ascending.
Csr RowsOfFeatures(const CsrView& features, int64_t feature_count) {
  Csr rows;
  rows.splits.assign(feature_count + 1, 0);
  for (int64_t e = 0; e < features.size(); ++e) ++rows.splits[features.ids[e] + 1];
  std::partial_sum(rows.splits.begin(), rows.splits.end(), rows.splits.begin());
  rows.ids.resize(features.size());
  std::vector<int64_t> next(rows.splits.begin(), rows.splits.end() - 1);
  for (int64_t r = 0; r < features.rows; ++r) {
    for (const int32_t* f = features.begin(r); f != features.end(r); ++f) {
      rows.ids[next[*f]++] = static_cast<int32_t>(r);
    }
  }
  return rows;
}

// What `CountCooccurrences` knows of all features.
struct Frequencies {
  std::vector<int64_t> of_labels;
  double samples;
  double smoothing;

  // How much a feature says about a label that it occurs together with so often.
  float Information(int64_t together, int32_t label) const {
    const double lift = together * samples / (of_labels[label] + smoothing);
    return static_cast<float>(together * std::log1p(lift));
  }
};

// The labels of features one after the other.
class LabelCounter {
 public:
  LabelCounter(const CsrView& labels, const Frequencies& frequencies, int64_t max_per_feature)
      : labels_(labels),
        frequencies_(frequencies),
        max_per_feature_(max_per_feature),
        together_(frequencies.of_labels.size()) {}

  // Appends the labels of a feature that occurs in these rows; how many there are.
  int64_t Append(const int32_t* begin, const int32_t* end, Cooccurrences* out) {
    std::vector<Scored> found;
    for (const int32_t* row = begin; row != end; ++row) {
      for (const int32_t* label = labels_.begin(*row); label != labels_.end(*row); ++label) {
        if (together_[*label]++ == 0) found.push_back({0, *label});
      }
    }
    for (Scored& s : found) s.score = frequencies_.Information(together_[s.id], s.id);
    const std::vector<Scored> all = found;
    KeepBest(max_per_feature_, &found);
    std::sort(found.begin(), found.end(),
              [](const Scored& a, const Scored& b) { return a.id < b.id; });
    for (const Scored& s : found) {
      out->neurons.ids.push_back(s.id);
      out->together.push_back(static_cast<float>(together_[s.id]));
    }
    for (const Scored& s : all) together_[s.id] = 0;
    return static_cast<int64_t>(found.size());
  }

 private:
  CsrView labels_;
  const Frequencies& frequencies_;
  int64_t max_per_feature_;
  std::vector<int32_t> together_;
};

// Writes a row's active set and its matches, and how many there are of each, to the end of `out`.
class RowActivator {
 public:
  RowActivator(const SparseRows& x, const SparseKernel& kernel, const CsrView& labels,
               int64_t count)
      : x_(x), kernel_(kernel), labels_(labels), count_(count), scores_(kernel.units) {}

  bool Row(int64_t row, SparseLinearActive* out) {
    if (!scores_.AddRow(x_, row, kernel_)) return false;
    Choose(row);
    const int64_t first = static_cast<int64_t>(out->logits.size());
    for (int32_t neuron : chosen_) {
      scores_.Activate(neuron, static_cast<int32_t>(out->logits.size()));
      out->active.ids.push_back(neuron);
      out->logits.push_back(scores_.score(neuron) + kernel_.bias_of(neuron));
    }
    out->active.splits.push_back(static_cast<int64_t>(out->logits.size()) - first);
    out->match_splits.push_back(Match(row, out));
    return true;
  }

 private:
  // The row's labels and the best others, ascending.
  void Choose(int64_t row) {
    chosen_.assign(labels_.begin(row), labels_.end(row));
    for (int32_t label : chosen_) scores_.Activate(label, 0);
    scores_.Best(kernel_, count_, &best_);
    for (const Scored& s : best_) chosen_.push_back(s.id);
    std::sort(chosen_.begin(), chosen_.end());
  }

  int64_t Match(int64_t row, SparseLinearActive* out) {
    const size_t before = out->place.size();
    const int64_t* splits = kernel_.neurons.splits;
    for (int64_t e = x_.ids.splits[row]; e < x_.ids.splits[row + 1]; ++e) {
      const int32_t feature = x_.ids.ids[e];
      const int64_t count = scores_.Match(kernel_, splits[feature], splits[feature + 1], &matches_);
      for (int64_t i = 0; i < count; ++i) {
        out->position.push_back(matches_[i]);
        out->entry.push_back(static_cast<int32_t>(e));
        out->place.push_back(scores_.PlaceOf(kernel_.neurons.ids[matches_[i]]));
      }
    }
    return static_cast<int64_t>(out->place.size() - before);
  }

  SparseRows x_;
  SparseKernel kernel_;
  CsrView labels_;
  int64_t count_;
  ScoreAccumulator scores_;
  std::vector<Scored> best_;
  std::vector<int32_t> chosen_;
  std::vector<int32_t> matches_;
};

// Joins the results of slabs, in which splits are lengths and places count from the slab's first.
SparseLinearActive Join(const std::vector<SparseLinearActive>& slabs) {
  SparseLinearActive all;
  all.active.splits = {0};
  all.match_splits = {0};
  for (const SparseLinearActive& slab : slabs) {
    const int32_t base = static_cast<int32_t>(all.logits.size());
    AppendLengths(slab.active.splits, &all.active.splits);
    AppendLengths(slab.match_splits, &all.match_splits);
    Append(slab.active.ids, &all.active.ids);
    Append(slab.logits, &all.logits);
    Append(slab.position, &all.position);
    Append(slab.entry, &all.entry);
    for (int32_t place : slab.place) all.place.push_back(base + place);
  }
  return all;
}

// Sums values by id: slab by slab of ids, so that the sums stay in the cache, and within a slab in
// the order of the rows, so that the result does not depend on the number of threads.
template <typename Value>
class SumsById {
 public:
  SumsById(const CsrView& ids, int64_t count, const Value& value)
      : ids_(ids),
        count_(count),
        width_(std::max<int64_t>(int64_t{1} << 16, (count / 256 + 64) / 64 * 64)),
        value_(value) {}

  SparseVector Sum(const ParallelFor& parallel) const {
    const int64_t slabs = (count_ + width_ - 1) / width_;
    std::vector<SparseVector> chunks(slabs);
    const int64_t cost = 10 * ids_.rows + 6 * ids_.size() / std::max<int64_t>(1, slabs);
    parallel(slabs, cost, [&](int64_t begin, int64_t end) {
      for (int64_t slab = begin; slab < end; ++slab) chunks[slab] = SumSlab(slab * width_);
    });
    SparseVector all;
    for (const SparseVector& chunk : chunks) {
      Append(chunk.ids, &all.ids);
      Append(chunk.values, &all.values);
    }
    return all;
  }

 private:
  SparseVector SumSlab(int64_t begin) const {
    const int64_t end = std::min(begin + width_, count_);
    // Kept from one slab to the next, all zeros: new memory costs more than the sums.
    static thread_local std::vector<float> sums;
    static thread_local std::vector<uint64_t> seen;
    if (static_cast<int64_t>(sums.size()) < width_) {
      sums.resize(width_);
      seen.resize(width_ / 64);
    }
    const int64_t words = (end - begin + 63) / 64;
    for (int64_t row = 0; row < ids_.rows; ++row) {
      const int32_t* last = ids_.end(row);
      const int32_t* id = std::lower_bound(ids_.begin(row), last, begin);
      for (; id != last && *id < end; ++id) {
        const int64_t place = *id - begin;
        sums[place] += value_(id - ids_.ids);
        seen[place >> 6] |= uint64_t{1} << (place & 63);
      }
    }
    SparseVector chunk;
    for (int64_t word = 0; word < words; ++word) {
      for (uint64_t bits = seen[word]; bits != 0; bits &= bits - 1) {
        const int64_t place = word * 64 + __builtin_ctzll(bits);
        chunk.ids.push_back(static_cast<int32_t>(begin + place));
        chunk.values.push_back(sums[place]);
        sums[place] = 0;
      }
      seen[word] = 0;
    }
    return chunk;
  }

  CsrView ids_;
  int64_t count_, width_;
  const Value& value_;
};

// What neurons add that no feature of a row has a weight for: their biases alone count.
class Resting {
 public:
  explicit Resting(const SparseKernel& kernel) : kernel_(kernel) {
    for (int64_t n = 0; n < kernel.units; ++n) top_ = std::max(top_, Bias(n));
    for (int64_t n = 0; n < kernel.units; ++n) {
      exp_sum_ += Exp(n);
      softplus_sum_ += Softplus(Bias(n));
    }
  }

  double LogSumExp(const ScoreAccumulator& accumulator) const {
    double top = top_, without = exp_sum_;
    accumulator.ForTouched([&](int32_t n) {
      top = std::max<double>(top, Logit(accumulator, n));
      without -= Exp(n);
    });
    double sum = std::max(0.0, without) * std::exp(top_ - top);
    accumulator.ForTouched([&](int32_t n) { sum += std::exp(Logit(accumulator, n) - top); });
    return top + std::log(sum);
  }

  double SoftplusSum(const ScoreAccumulator& accumulator) const {
    double sum = softplus_sum_;
    accumulator.ForTouched(
        [&](int32_t n) { sum += Softplus(Logit(accumulator, n)) - Softplus(Bias(n)); });
    return sum;
  }

  double Logit(const ScoreAccumulator& accumulator, int32_t n) const {
    return double{accumulator.score(n)} + Bias(n);
  }

 private:
  double Bias(int64_t n) const { return kernel_.bias_of(static_cast<int32_t>(n)); }
  double Exp(int64_t n) const { return std::exp(Bias(n) - top_); }

  const SparseKernel& kernel_;
  double top_ = -std::numeric_limits<double>::infinity();
  double exp_sum_ = 0;
  double softplus_sum_ = 0;
};

// The neurons of the largest biases, as many as a row needs that touches at most `touched`.
std::vector<Scored> LargestBiases(const SparseKernel& kernel, int64_t count) {
  std::vector<Scored> all(kernel.units);
  for (int64_t n = 0; n < kernel.units; ++n) {
    const int32_t neuron = static_cast<int32_t>(n);
    all[n] = Ranked(kernel.bias_of(neuron), neuron);
  }
  KeepBest(count, &all);
  std::sort(all.begin(), all.end(), Before);
  return all;
}

int64_t MostWeights(const SparseRows& x, const CsrView& neurons) {
  int64_t most = 0;
  for (int64_t row = 0; row < x.ids.rows; ++row) {
    most = std::max(most, WeightsOfRow(x, row, neurons));
  }
  return most;
}

void BestOfRow(ScoreAccumulator& accumulator, const SparseKernel& kernel,
               const std::vector<Scored>& resting, int64_t k, int32_t* ids, float* scores) {
  std::vector<Scored> best;
  accumulator.Best(kernel, k, &best);
  int64_t taken = 0;
  for (auto r = resting.begin(); r != resting.end() && taken < k; ++r) {
    if (accumulator.Has(r->id)) continue;
    best.push_back(*r);
    ++taken;
  }
  std::partial_sort(best.begin(), best.begin() + k, best.end(), Before);
  for (int64_t i = 0; i < k; ++i) {
    ids[i] = best[i].id;
    scores[i] = best[i].score;
  }
}

}  // namespace

Cooccurrences CountCooccurrences(const CsrView& features, int64_t feature_count,
                                 const CsrView& labels, int64_t units, int64_t max_per_feature,
                                 double smoothing, const ParallelFor& parallel) {
  const Csr rows = RowsOfFeatures(features, feature_count);
  Frequencies frequencies = {std::vector<int64_t>(units), static_cast<double>(features.rows),
                             smoothing};
  for (int64_t e = 0; e < labels.size(); ++e) ++frequencies.of_labels[labels.ids[e]];
  const Slabs slabs(feature_count, 64);
  std::vector<Cooccurrences> chunks(slabs.count());
  parallel(slabs.count(), 1000000, [&](int64_t begin, int64_t end) {
    for (int64_t slab = begin; slab < end; ++slab) {
      LabelCounter counter(labels, frequencies, max_per_feature);
      for (int64_t f = slabs.begin(slab); f < slabs.end(slab); ++f) {
        chunks[slab].neurons.splits.push_back(
            counter.Append(rows.view().begin(f), rows.view().end(f), &chunks[slab]));
      }
    }
  });
  Cooccurrences all;
  all.neurons.splits = {0};
  for (const Cooccurrences& chunk : chunks) {
    AppendLengths(chunk.neurons.splits, &all.neurons.splits);
    Append(chunk.neurons.ids, &all.neurons.ids);
    Append(chunk.together, &all.together);
  }
  return all;
}

int64_t SparseLinearSelect(const SparseRows& x, const SparseKernel& kernel, const CsrView& labels,
                           int64_t count, SparseLinearActive* active, const ParallelFor& parallel) {
  FirstBad bad;
  const Slabs slabs = RowSlabs(x.ids.rows);
  std::vector<SparseLinearActive> chunks(slabs.count());
  const int64_t rows = x.ids.rows / slabs.count() + 1;
  parallel(slabs.count(), rows * ScoreCost(x, kernel), [&](int64_t begin, int64_t end) {
    for (int64_t slab = begin; slab < end; ++slab) {
      RowActivator activator(x, kernel, labels, count);
      for (int64_t row = slabs.begin(slab); row < slabs.end(slab); ++row) {
        if (!activator.Row(row, &chunks[slab])) bad.Note(row);
      }
    }
  });
  if (bad.first() < 0) *active = Join(chunks);
  return bad.first();
}

SparseVector SparseKernelGradient(const Matches& matches, int64_t weight_count, const float* values,
                                  const float* upstream, const ParallelFor& parallel) {
  const auto value = [&](int64_t m) {
    return values[matches.entry[m]] * upstream[matches.place[m]];
  };
  return SumsById<decltype(value)>(matches.position, weight_count, value).Sum(parallel);
}

SparseVector BiasGradient(const CsrView& active, int64_t units, const float* upstream,
                          const ParallelFor& parallel) {
  const auto value = [&](int64_t e) { return upstream[e]; };
  return SumsById<decltype(value)>(active, units, value).Sum(parallel);
}

int64_t SparseLinearLogits(const SparseRows& x, const SparseKernel& kernel, float* logits,
                           const ParallelFor& parallel) {
  FirstBad bad;
  const int64_t cost = ScoreCost(x, kernel) + kernel.units;
  parallel(x.ids.rows, cost, [&](int64_t begin, int64_t end) {
    for (int64_t row = begin; row < end; ++row) {
      float* out = logits + row * kernel.units;
      for (int64_t n = 0; n < kernel.units; ++n) {
        out[n] = kernel.bias_of(static_cast<int32_t>(n));
      }
      const bool sound = ForWeights(x, row, kernel, [&](int64_t e, int64_t q, int32_t neuron) {
        out[neuron] += x.values[e] * kernel.weights[q];
      });
      if (!sound) bad.Note(row);
    }
  });
  return bad.first();
}

int64_t SparseLinearTopK(const SparseRows& x, const SparseKernel& kernel, int64_t k, int32_t* ids,
                         float* scores, const ParallelFor& parallel) {
  FirstBad bad;
  const std::vector<Scored> resting = LargestBiases(kernel, k + MostWeights(x, kernel.neurons));
  parallel(x.ids.rows, 2 * ScoreCost(x, kernel), [&](int64_t begin, int64_t end) {
    ScoreAccumulator accumulator(kernel.units);
    for (int64_t row = begin; row < end; ++row) {
      if (accumulator.AddRow(x, row, kernel)) {
        BestOfRow(accumulator, kernel, resting, k, ids + row * k, scores + row * k);
      } else {
        bad.Note(row);
      }
    }
  });
  return bad.first();
}

int64_t SparseLinearLosses(const SparseRows& x, const SparseKernel& kernel, const CsrView& labels,
                           float* softmax_loss, float* binary_loss, const ParallelFor& parallel) {
  FirstBad bad;
  const Resting resting(kernel);
  parallel(x.ids.rows, 20 * ScoreCost(x, kernel), [&](int64_t begin, int64_t end) {
    ScoreAccumulator accumulator(kernel.units);
    for (int64_t row = begin; row < end; ++row) {
      if (!accumulator.AddRow(x, row, kernel)) bad.Note(row);
      double label_logits = 0;
      for (const int32_t* label = labels.begin(row); label != labels.end(row); ++label) {
        label_logits += resting.Logit(accumulator, *label);
      }
      const int64_t count = labels.length(row);
      softmax_loss[row] =
          count == 0 ? 0
                     : static_cast<float>(resting.LogSumExp(accumulator) - label_logits / count);
      binary_loss[row] = static_cast<float>(resting.SoftplusSum(accumulator) - label_logits);
    }
  });
  return bad.first();
}

}  // namespace dslide
