// A sparse linear classifier with a batch. All numbers are multiples of 1/8, so that logits are
// exact and in any order the same.

#ifndef TF_DSLIDE_TESTS_CORE_CHECK_LINEAR_H_
#define TF_DSLIDE_TESTS_CORE_CHECK_LINEAR_H_

#include <algorithm>
#include <set>
#include <vector>

#include "custom_ops/core/scored.h"
#include "custom_ops/core/sparse_linear.h"
#include "tests/native/core_check/check.h"

namespace dslide {

struct Linear {
  int64_t rows, features, units;
  Csr neurons;  // of each feature
  Floats weights, bias;
  Csr x;
  Floats values;
  Csr labels;

  Linear(int64_t rows, int64_t features, int64_t units, uint64_t seed, bool use_bias = true)
      : rows(rows), features(features), units(units) {
    Source source(seed);
    neurons = source.Sets(features, units, 40);
    weights = source.Eighths(neurons.ids.size());
    if (use_bias) bias = source.Eighths(units);
    x = source.Sets(rows, features, 12);
    values = source.Eighths(x.ids.size());
    labels = source.Sets(rows, units, 3);
  }

  SparseRows Samples() const { return {x.view(), values.data()}; }
  SparseKernel Kernel() const {
    return {neurons.view(), static_cast<int64_t>(neurons.ids.size()), weights.data(),
            bias.empty() ? nullptr : bias.data(), units};
  }
  float BiasOf(int32_t unit) const { return bias.empty() ? 0.0f : bias[unit]; }

  // The logits of a row.
  Floats Logits(int64_t row) const {
    Floats logits(units);
    for (int64_t u = 0; u < units; ++u) logits[u] = BiasOf(u);
    for (int64_t e = x.splits[row]; e < x.splits[row + 1]; ++e) {
      const int32_t f = x.ids[e];
      for (int64_t q = neurons.splits[f]; q < neurons.splits[f + 1]; ++q) {
        logits[neurons.ids[q]] += values[e] * weights[q];
      }
    }
    return logits;
  }

  // The neurons with a weight from one of a row's features, ascending.
  Ints Touched(int64_t row) const {
    std::set<int32_t> touched;
    for (const int32_t* f = x.view().begin(row); f != x.view().end(row); ++f) {
      touched.insert(neurons.view().begin(*f), neurons.view().end(*f));
    }
    return Ints(touched.begin(), touched.end());
  }
};

// The `count` best of some neurons by their logits, in order; fewer if there are no more.
inline Ints BestOf(Ints ids, const Floats& logits, int64_t count) {
  std::stable_sort(ids.begin(), ids.end(),
                   [&](int32_t a, int32_t b) { return logits[a] > logits[b]; });
  if (static_cast<int64_t>(ids.size()) > count) ids.resize(count);
  return ids;
}

}  // namespace dslide

#endif  // TF_DSLIDE_TESTS_CORE_CHECK_LINEAR_H_
