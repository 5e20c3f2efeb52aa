// A layer with active sets, and plain loops over them in double precision.

#ifndef TF_DSLIDE_TESTS_CORE_CHECK_LAYER_H_
#define TF_DSLIDE_TESTS_CORE_CHECK_LAYER_H_

#include <algorithm>
#include <cmath>
#include <set>
#include <vector>

#include "custom_ops/core/active_set.h"
#include "custom_ops/core/softmax.h"
#include "custom_ops/core/sparse_products.h"
#include "tests/native/core_check/check.h"

namespace dslide {

struct Layer {
  Floats x, w, bias;
  Csr own;
  Ints shared;
  Floats coef, shared_coef;

  Layer(const Shape& shape, int64_t shared_count, Source* source)
      : x(source->Array(shape.rows * shape.d)),
        w(source->Array(shape.units * shape.d)),
        bias(source->Array(shape.units)),
        own(source->Sets(shape.rows, shape.units, 40)),
        shared(source->Set(shape.units, shared_count)),
        coef(source->Array(own.ids.size())),
        shared_coef(source->Array(shape.rows * shared.size())) {}

  GradientFactors factors(const Shape& shape) const {
    return {x.data(), shape.rows, shape.d, coef.data(), shared_coef.data()};
  }
};

// The view by neuron with arrays of its own.
struct View {
  Ints neurons, entry_row, entry_index, shared_places;
  Longs splits;

  View(const Layer& layer, int64_t units, const ParallelFor& pool)
      : entry_row(layer.own.ids.size()),
        entry_index(layer.own.ids.size()),
        shared_places(layer.shared.size()) {
    const Transpose transpose(layer.own.view(), List(layer.shared), units, pool);
    neurons.resize(transpose.count());
    splits.resize(transpose.count() + 1);
    transpose.Write(neurons.data(), splits.data(), entry_row.data(), entry_index.data(),
                    shared_places.data(), pool);
  }
  CscView view() const {
    return {static_cast<int64_t>(neurons.size()),
            neurons.data(),
            splits.data(),
            entry_row.data(),
            entry_index.data(),
            List(shared_places)};
  }
};

// Sums of products with their error bounds.
struct Sums {
  Doubles exact, size;
  Longs terms;

  explicit Sums(int64_t n) : exact(n), size(n), terms(n) {}
  void Add(int64_t i, double product) {
    exact[i] += product;
    size[i] += std::abs(product);
    ++terms[i];
  }
  // 16 more additions: sums may go by slabs.
  Doubles Bound() const {
    Doubles bound(exact.size());
    for (size_t i = 0; i < bound.size(); ++i) bound[i] = size[i] * (terms[i] + 18) * kRounding;
    return bound;
  }
};

// Labels from the rows' own neurons; every third row has none.
inline Csr SomeOf(const Csr& own) {
  Csr labels;
  labels.splits = {0};
  const CsrView view = own.view();
  for (int64_t row = 0; row < view.rows; ++row) {
    for (int64_t j = 0; row % 3 != 2 && j < view.length(row) && j < 5; j += 2) {
      labels.ids.push_back(view.begin(row)[j]);
    }
    labels.splits.push_back(labels.ids.size());
  }
  labels.ids.shrink_to_fit();
  return labels;
}

// Loss of one row and the gradient by its logits, in double precision.
inline double RowLoss(const double* logits, const int32_t* ids, int64_t n, const int32_t* labels,
                      int64_t label_count, double* gradient) {
  std::fill_n(gradient, n, 0.0);
  if (label_count == 0) return 0;
  const double top = *std::max_element(logits, logits + n);
  double total = 0, mean = 0;
  for (int64_t j = 0; j < n; ++j) total += std::exp(logits[j] - top);
  for (int64_t j = 0; j < n; ++j) {
    const bool is_label = std::binary_search(labels, labels + label_count, ids[j]);
    gradient[j] = std::exp(logits[j] - top) / total - (is_label ? 1.0 / label_count : 0);
    if (is_label) mean += logits[j] / label_count;
  }
  return top + std::log(total) - mean;
}

// Numbers of an active set: of the rows' own neurons and of the shared ones.
struct Values {
  Floats own, shared;

  explicit Values(const Layer& layer)
      : own(layer.own.ids.size()), shared(layer.shared_coef.size()) {}
  Values(const Layer& layer, Source* source, float scale)
      : own(source->Array(layer.own.ids.size())), shared(source->Array(layer.shared_coef.size())) {
    for (Floats* values : {&own, &shared}) {
      for (float& value : *values) value *= scale;
    }
  }
  ActiveSets Of(const Layer& layer) const {
    return {layer.own.view(), List(layer.shared), own.data(), shared.data()};
  }
};

// What a loss adds to the logits of shared neurons; nothing if empty.
struct Adjustment {
  Floats rows, shared;

  void Set(ActiveSets* active) const {
    if (rows.empty()) return;
    active->row_adjustment = rows.data();
    active->shared_adjustment = shared.data();
  }
  double Of(int64_t row, int64_t s) const {
    return rows.empty() ? 0 : double{rows[row]} * shared[s];
  }
};

// A row's neurons, each once: its own, and those shared ones that are not.
struct RowNeurons {
  Ints ids;
  std::vector<const float*> values;
  Doubles adjustments;

  RowNeurons(const Layer& layer, const Values& all, int64_t row,
             const Adjustment& adjustment = {}) {
    const CsrView own = layer.own.view();
    for (int64_t e = own.splits[row]; e < own.splits[row + 1]; ++e) {
      ids.push_back(own.ids[e]);
      values.push_back(&all.own[e]);
      adjustments.push_back(0);
    }
    for (size_t s = 0; s < layer.shared.size(); ++s) {
      if (std::binary_search(own.begin(row), own.end(row), layer.shared[s])) continue;
      ids.push_back(layer.shared[s]);
      values.push_back(&all.shared[row * layer.shared.size() + s]);
      adjustments.push_back(adjustment.Of(row, s));
    }
  }
  // The values with what is added to them.
  Doubles Adjusted() const {
    Doubles result = adjustments;
    for (size_t j = 0; j < values.size(); ++j) result[j] += *values[j];
    return result;
  }
};

// A shared neuron that is the row's own has no gradient as a shared one.
inline void CheckHidden(const Layer& layer, const Values& gradient, int64_t row) {
  const CsrView own = layer.own.view();
  for (size_t s = 0; s < layer.shared.size(); ++s) {
    if (!std::binary_search(own.begin(row), own.end(row), layer.shared[s])) continue;
    Check(gradient.shared[row * layer.shared.size() + s] == 0, "gradient of a hidden neuron");
  }
}

// A row's label is exchanged for no neuron at all, or for one that is only among the shared:
// `rows_of(labels, pool)` must return that row, each time.
template <typename RowsOf>
void CheckLostLabels(const Shape& shape, const Layer& layer, const Csr& labels,
                     const RowsOf& rows_of) {
  if (labels.ids.empty()) return;
  int64_t row = 0;
  while (labels.view().length(row) == 0) ++row;
  if (labels.view().length(row) != 1) return;
  Ints lost = {static_cast<int32_t>(shape.units)};
  for (int32_t id : layer.shared) {
    const CsrView own = layer.own.view();
    if (!std::binary_search(own.begin(row), own.end(row), id)) lost.push_back(id);
  }
  for (size_t j = 0; j < lost.size(); j += std::max<size_t>(1, lost.size() - 1)) {
    Csr wrong = labels;
    wrong.ids[0] = lost[j];
    if (labels.ids.size() > 1) wrong.ids.back() = static_cast<int32_t>(shape.units);
    for (const ParallelFor& pool : kPools) {
      for (int32_t got : rows_of(wrong.view(), pool)) {
        Check(got == row, "the first row with a lost label");
      }
    }
  }
}

// Calls `check(shape, layer, source)` for layers of all shapes, with no, one, some and all neurons
// shared.
template <typename Use>
void ForLayers(uint64_t seed, const Use& check) {
  Source source(seed);
  for (const Shape& shape : kShapes) {
    const std::set<int64_t> shared_counts = {0, 1, std::min<int64_t>(shape.units, 70), shape.units};
    for (int64_t shared : shared_counts) {
      const Layer layer(shape, shared, &source);
      check(shape, layer, &source);
    }
  }
}

}  // namespace dslide

#endif  // TF_DSLIDE_TESTS_CORE_CHECK_LAYER_H_
