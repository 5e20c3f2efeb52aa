// A sparse linear classifier: each feature has weights for the neurons that it occurs together
// with, and for no others. A sample's active set are the neurons of the highest logits.

#ifndef TF_DSLIDE_CORE_SPARSE_LINEAR_H_
#define TF_DSLIDE_CORE_SPARSE_LINEAR_H_

#include <cstdint>
#include <vector>

#include "custom_ops/core/active_set.h"
#include "custom_ops/core/parallel.h"

namespace dslide {

// A batch of sparse samples: row r has the features of `ids`, each with its value.
struct SparseRows {
  CsrView ids;
  const float* values;
};

// Feature f has weights for the neurons of row f of `neurons`.
struct SparseKernel {
  CsrView neurons;
  int64_t count;
  const float* weights;
  const float* bias;  // null: 0 everywhere
  int64_t units;

  // Whether a feature's weights are some of those that there are.
  bool Within(int32_t feature) const {
    return neurons.splits[feature] >= 0 && neurons.splits[feature + 1] <= count;
  }
  float bias_of(int32_t neuron) const { return bias ? bias[neuron] : 0.0f; }
};

// Features and neurons with the number of samples in which both occur.
struct Cooccurrences {
  Csr neurons;
  std::vector<float> together;
};

// For each feature at most `max_per_feature` of the labels that it occurs together with: those that
// it says most about, by their number together times the logarithm of 1 + what the feature lifts
// their frequency by. `smoothing` is a number of samples that each label is taken to have besides.
Cooccurrences CountCooccurrences(const CsrView& features, int64_t feature_count,
                                 const CsrView& labels, int64_t units, int64_t max_per_feature,
                                 double smoothing, const ParallelFor& parallel);

// The active sets of a batch, their logits, and which weights matter for them: weight position[m]
// stands between entry entry[m] of the batch's features and place[m] among the active neurons, for
// the m of row r in [match_splits[r], match_splits[r + 1]), positions ascending where the row's
// features do.
struct SparseLinearActive {
  Csr active;
  std::vector<float> logits;
  std::vector<int64_t> match_splits;
  std::vector<int32_t> position;
  std::vector<int32_t> entry;
  std::vector<int32_t> place;
};

// The functions over a kernel return -1, or the first row with a feature whose weights are not
// within [0, count) or belong to neurons outside [0, units).

// Activates each row's labels and the `count` others of the highest logits among the neurons that
// its features have weights for (the lower id among equals, NaN last). Labels need none.
int64_t SparseLinearSelect(const SparseRows& x, const SparseKernel& kernel, const CsrView& labels,
                           int64_t count, SparseLinearActive* active, const ParallelFor& parallel);

// Ascending distinct ids with a value each.
struct SparseVector {
  std::vector<int32_t> ids;
  std::vector<float> values;
};

// Which weights belong to active neurons, as `SparseLinearSelect` tells.
struct Matches {
  CsrView position;
  const int32_t* entry;
  const int32_t* place;
};

// The gradient by the weights, given that by the active sets' logits (`upstream`).
SparseVector SparseKernelGradient(const Matches& matches, int64_t weight_count, const float* values,
                                  const float* upstream, const ParallelFor& parallel);

// The gradient by the bias, given that by the active sets' logits.
SparseVector BiasGradient(const CsrView& active, int64_t units, const float* upstream,
                          const ParallelFor& parallel);

// All logits, (rows, units).
int64_t SparseLinearLogits(const SparseRows& x, const SparseKernel& kernel, float* logits,
                           const ParallelFor& parallel);

// The k largest logits of each row, k <= units, falling, the lower id first among equals. Never
// holds the logits of neurons that no feature of the row has a weight for.
int64_t SparseLinearTopK(const SparseRows& x, const SparseKernel& kernel, int64_t k, int32_t* ids,
                         float* scores, const ParallelFor& parallel);

// The losses of each row over all units: of the softmax (0 without labels) and one-vs-rest.
int64_t SparseLinearLosses(const SparseRows& x, const SparseKernel& kernel, const CsrView& labels,
                           float* softmax_loss, float* binary_loss, const ParallelFor& parallel);

}  // namespace dslide

#endif  // TF_DSLIDE_CORE_SPARSE_LINEAR_H_
