#include <algorithm>
#include <cmath>
#include <map>
#include <numeric>
#include <thread>

#include "custom_ops/core/sparse_linear.h"
#include "tests/native/core_check/check.h"
#include "tests/native/core_check/linear.h"

namespace dslide {
namespace {

double Softplus(double z) { return std::max(z, 0.0) + std::log1p(std::exp(-std::abs(z))); }

constexpr int64_t kCount = 7, kBest = 9;

// All that the functions say of a layer and its batch.
struct Results {
  std::vector<Floats> floats;
  std::vector<Ints> ints;
  std::vector<Longs> longs;

  explicit Results(const Linear& linear, const ParallelFor& pool) {
    const SparseRows x = linear.Samples();
    const SparseKernel kernel = linear.Kernel();
    const CsrView labels = linear.labels.view();
    const int64_t k = std::min(kBest, linear.units);
    Check(SparseLinearSelect(x, kernel, labels, kCount, &active, pool) == -1, "SparseLinearSelect");
    upstream.resize(active.logits.size());
    for (size_t i = 0; i < upstream.size(); ++i) upstream[i] = static_cast<float>(i % 9) / 8 - 0.5f;
    const Matches matches = {{linear.rows, active.match_splits.data(), active.position.data()},
                             active.entry.data(),
                             active.place.data()};
    by_weight = SparseKernelGradient(matches, kernel.count, x.values, upstream.data(), pool);
    by_bias = BiasGradient(active.active.view(), linear.units, upstream.data(), pool);
    logits.resize(linear.rows * linear.units);
    Check(SparseLinearLogits(x, kernel, logits.data(), pool) == -1, "SparseLinearLogits");
    top_ids.resize(linear.rows * k);
    scores.resize(linear.rows * k);
    Check(SparseLinearTopK(x, kernel, k, top_ids.data(), scores.data(), pool) == -1,
          "SparseLinearTopK");
    softmax.resize(linear.rows);
    binary.resize(linear.rows);
    Check(SparseLinearLosses(x, kernel, labels, softmax.data(), binary.data(), pool) == -1,
          "SparseLinearLosses");
    floats = {active.logits, by_weight.values, by_bias.values, logits, scores, softmax, binary};
    ints = {active.active.ids, active.position, active.entry, active.place,
            by_weight.ids,     by_bias.ids,     top_ids};
    longs = {active.active.splits, active.match_splits};
  }

  void CheckSameAs(const Results& other, const std::string& what) const {
    for (size_t i = 0; i < floats.size(); ++i) CheckSame(floats[i], other.floats[i], what);
    for (size_t i = 0; i < ints.size(); ++i) CheckSame(ints[i], other.ints[i], what);
    for (size_t i = 0; i < longs.size(); ++i) CheckSame(longs[i], other.longs[i], what);
  }

  SparseLinearActive active;
  SparseVector by_weight, by_bias;
  Floats upstream, logits, scores, softmax, binary;
  Ints top_ids;
};

void CheckActive(const Linear& linear, const Results& got) {
  const CsrView sets = got.active.active.view();
  for (int64_t row = 0; row < linear.rows; ++row) {
    const CsrView labels = linear.labels.view();
    const Floats logits = linear.Logits(row);
    Ints others;
    const Ints touched = linear.Touched(row);
    std::set_difference(touched.begin(), touched.end(), labels.begin(row), labels.end(row),
                        std::back_inserter(others));
    Ints expected = BestOf(others, logits, kCount);
    expected.insert(expected.end(), labels.begin(row), labels.end(row));
    std::sort(expected.begin(), expected.end());
    CheckSame(Ints(sets.begin(row), sets.end(row)), expected, "active neurons of a row");
    int64_t m = got.active.match_splits[row];
    for (size_t j = 0; j < expected.size(); ++j) {
      Check(got.active.logits[sets.splits[row] + j] == logits[expected[j]], "an active logit");
    }
    for (int64_t e = linear.x.splits[row]; e < linear.x.splits[row + 1]; ++e) {
      const int32_t f = linear.x.ids[e];
      for (int64_t q = linear.neurons.splits[f]; q < linear.neurons.splits[f + 1]; ++q) {
        const auto at = std::lower_bound(expected.begin(), expected.end(), linear.neurons.ids[q]);
        if (at == expected.end() || *at != linear.neurons.ids[q]) continue;
        Check(m < got.active.match_splits[row + 1] && got.active.position[m] == q &&
                  got.active.entry[m] == e &&
                  got.active.place[m] == sets.splits[row] + (at - expected.begin()),
              "a weight of an active neuron");
        ++m;
      }
    }
    Check(m == got.active.match_splits[row + 1], "number of matches");
  }
}

void CheckVector(const SparseVector& got, const std::map<int32_t, float>& expected,
                 const std::string& what) {
  Ints ids;
  Floats values;
  for (const auto& [id, value] : expected) {
    ids.push_back(id);
    values.push_back(value);
  }
  CheckSame(got.ids, ids, what + ": ids");
  CheckSame(got.values, values, what);
}

void CheckGradients(const Linear& linear, const Results& got) {
  std::map<int32_t, float> by_weight, by_bias;
  for (size_t m = 0; m < got.active.place.size(); ++m) {
    by_weight[got.active.position[m]] +=
        linear.values[got.active.entry[m]] * got.upstream[got.active.place[m]];
  }
  for (size_t e = 0; e < got.upstream.size(); ++e) {
    by_bias[got.active.active.ids[e]] += got.upstream[e];
  }
  CheckVector(got.by_weight, by_weight, "SparseKernelGradient");
  CheckVector(got.by_bias, by_bias, "BiasGradient");
}

void CheckAllUnits(const Linear& linear, const Results& got) {
  const int64_t units = linear.units, k = std::min(kBest, units);
  Ints everything(units);
  std::iota(everything.begin(), everything.end(), 0);
  for (int64_t row = 0; row < linear.rows; ++row) {
    const Floats logits = linear.Logits(row);
    CheckSame(Floats(&got.logits[row * units], &got.logits[row * units] + units), logits,
              "SparseLinearLogits");
    const Ints best = BestOf(everything, logits, k);
    for (int64_t j = 0; j < k; ++j) {
      Check(got.top_ids[row * k + j] == best[j] && got.scores[row * k + j] == logits[best[j]],
            "SparseLinearTopK");
    }
    double sum = 0, softplus = 0, labels = 0;
    for (float logit : logits) {
      sum += std::exp(double{logit});
      softplus += Softplus(logit);
    }
    const CsrView all = linear.labels.view();
    for (const int32_t* id = all.begin(row); id != all.end(row); ++id) labels += logits[*id];
    const int64_t count = all.length(row);
    const double loss = count == 0 ? 0 : std::log(sum) - labels / count;
    CheckClose({got.softmax[row]}, {loss}, {1e-9 + kRounding * std::abs(loss)}, "softmax loss");
    CheckClose({got.binary[row]}, {softplus - labels},
               {1e-9 + kRounding * std::abs(softplus - labels)}, "one-vs-rest loss");
  }
}

const std::vector<Linear>& Layers() {
  static const std::vector<Linear> layers = {
      {0, 5, 5, 1},     {1, 1, 1, 2},
      {1, 9, 17, 3},    {7, 30, 31, 4, false},
      {65, 40, 300, 5}, {33, 100, 5000, 6},
      {70, 25, 64, 7},  {20, 50, 70001, 8},
      {3, 9, 40, 9},    {12, 900, 65, 10, false},
      {300, 9, 12, 11},
  };
  return layers;
}

void CheckSparseLinear() {
  for (const Linear& linear : Layers()) {
    const Results alone(linear, Alone);
    CheckActive(linear, alone);
    CheckGradients(linear, alone);
    CheckAllUnits(linear, alone);
    Results(linear, FourThreads).CheckSameAs(alone, "sparse linear by threads");
  }
}

// Several threads at once, each on layers of other sizes in an order of its own: what a thread
// keeps from one layer must not show in the next, nor in another thread.
void CheckScratchOfThreads() {
  std::vector<Results> expected;
  for (const Linear& linear : Layers()) expected.emplace_back(linear, Alone);
  const size_t count = Layers().size();
  std::vector<std::thread> threads;
  for (size_t t = 0; t < 4; ++t) {
    threads.emplace_back([&, t] {
      for (size_t i = 0; i < 2 * count; ++i) {
        const size_t which = (i * (2 * t + 1) + 3 * t) % count;
        Results(Layers()[which], Alone).CheckSameAs(expected[which], "layers side by side");
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
}

int64_t FirstRowWith(const Csr& x, int32_t feature) {
  for (int64_t row = 0;; ++row) {
    if (std::binary_search(x.view().begin(row), x.view().end(row), feature)) return row;
  }
}

void CheckUnsound(const Linear& linear, int32_t feature) {
  const int64_t row = FirstRowWith(linear.x, feature), k = 2;
  for (const ParallelFor& pool : kPools) {
    SparseLinearActive active;
    Floats logits(linear.rows * linear.units), scores(linear.rows * k), one(linear.rows),
        other(linear.rows);
    Ints ids(linear.rows * k);
    const SparseRows x = linear.Samples();
    const SparseKernel kernel = linear.Kernel();
    const CsrView labels = linear.labels.view();
    Check(SparseLinearSelect(x, kernel, labels, 3, &active, pool) == row, "unsound: select");
    Check(SparseLinearLogits(x, kernel, logits.data(), pool) == row, "unsound: logits");
    Check(SparseLinearTopK(x, kernel, k, ids.data(), scores.data(), pool) == row, "unsound: top k");
    Check(SparseLinearLosses(x, kernel, labels, one.data(), other.data(), pool) == row,
          "unsound: losses");
  }
}

void CheckUnsoundKernels() {
  const Linear sound(65, 40, 300, 5);
  int32_t feature = sound.x.ids.back();
  while (sound.neurons.view().length(feature) == 0) --feature;
  for (int32_t neuron : {-1, 300}) {
    Linear wrong = sound;
    wrong.neurons.ids[wrong.neurons.splits[feature + 1] - 1] = neuron;
    CheckUnsound(wrong, feature);
  }
  Linear wrong = sound;
  wrong.neurons.splits[feature + 1] = wrong.neurons.ids.size() + 1;
  CheckUnsound(wrong, feature);
}

// Counts by a map, and the labels of most information by a full sort.
void CheckCooccurrences() {
  for (const Linear& linear : Layers()) {
    std::vector<std::map<int32_t, int64_t>> together(linear.features);
    std::map<int32_t, int64_t> of_label;
    for (int32_t label : linear.labels.ids) ++of_label[label];
    for (int64_t row = 0; row < linear.rows; ++row) {
      const CsrView x = linear.x.view(), labels = linear.labels.view();
      for (const int32_t* f = x.begin(row); f != x.end(row); ++f) {
        for (const int32_t* id = labels.begin(row); id != labels.end(row); ++id) {
          ++together[*f][*id];
        }
      }
    }
    for (int64_t at_most : {1, 3, 1000}) {
      const double smoothing = 0.5;
      Csr expected = {{0}, {}};
      Floats counts;
      for (const auto& of_feature : together) {
        std::vector<std::pair<float, int32_t>> by_information;
        for (const auto& [label, count] : of_feature) {
          const double lift = count * double(linear.rows) / (of_label[label] + smoothing);
          by_information.emplace_back(-static_cast<float>(count * std::log1p(lift)), label);
        }
        std::sort(by_information.begin(), by_information.end());
        if (static_cast<int64_t>(by_information.size()) > at_most) by_information.resize(at_most);
        Ints kept;
        for (const auto& entry : by_information) kept.push_back(entry.second);
        std::sort(kept.begin(), kept.end());
        for (int32_t label : kept) {
          expected.ids.push_back(label);
          counts.push_back(static_cast<float>(of_feature.at(label)));
        }
        expected.splits.push_back(expected.ids.size());
      }
      for (const ParallelFor& pool : kPools) {
        const Cooccurrences got =
            CountCooccurrences(linear.x.view(), linear.features, linear.labels.view(), linear.units,
                               at_most, smoothing, pool);
        CheckSame(got.neurons.splits, expected.splits, "CountCooccurrences: splits");
        CheckSame(got.neurons.ids, expected.ids, "CountCooccurrences: neurons");
        CheckSame(got.together, counts, "CountCooccurrences");
      }
    }
  }
}

const Checks kChecks = {CheckSparseLinear, CheckScratchOfThreads, CheckUnsoundKernels,
                        CheckCooccurrences};

}  // namespace
}  // namespace dslide
