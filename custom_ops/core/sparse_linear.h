// A sparse linear classifier: each feature is connected with the neurons that it occurs together
// with, and with no others. A sample's active set are the neurons that its features vote for most.

#ifndef TF_DSLIDE_CORE_CONNECTIONS_H_
#define TF_DSLIDE_CORE_CONNECTIONS_H_

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

// Feature f is connected with the neurons of row f of `neurons`, each by its weight.
struct SparseKernel {
  CsrView neurons;
  int64_t count;
  const float* weights;
  const float* bias;  // null: 0 everywhere
  int64_t units;

  // Whether a feature's connections are some of those that there are.
  bool Within(int32_t feature) const {
    return neurons.splits[feature] >= 0 && neurons.splits[feature + 1] <= count;
  }
  float bias_of(int32_t neuron) const { return bias ? bias[neuron] : 0.0f; }
};

// Connections with the number of samples in which feature and neuron occur together.
struct Cooccurrences {
  Csr neurons;
  std::vector<float> together;
};

// Connects each feature with at most `most` of the labels that it occurs together with: those that
// it says most about, by their number together times the logarithm of 1 + what the feature lifts
// their frequency by. `smoothing` is a number of samples that each label is taken to have besides.
Cooccurrences CountCooccurrences(const CsrView& features, int64_t feature_count,
                                 const CsrView& labels, int64_t units, int64_t most,
                                 double smoothing, const ParallelFor& parallel);

// The active sets of a batch, their logits, and which connections lead to them: connection
// position[m] leads from entry entry[m] of the batch's features to place[m] among the active
// neurons, for the m of row r in [match_splits[r], match_splits[r + 1]), positions ascending where
// the row's features do.
struct SparseLinearActive {
  Csr active;
  std::vector<float> logits;
  std::vector<int64_t> match_splits;
  std::vector<int32_t> position;
  std::vector<int32_t> entry;
  std::vector<int32_t> place;
};

// The functions over connections return -1, or the first row with a feature whose connections are
// not within [0, count) or lead to neurons outside [0, units).

// Activates each row's labels and the `count` others of the highest logits among the neurons that
// its features are connected with (the lower id among equals, NaN last). Labels need not be
// connected.
int64_t SparseLinearSelect(const SparseRows& x, const SparseKernel& connections,
                           const CsrView& labels, int64_t count, SparseLinearActive* active,
                           const ParallelFor& parallel);

// Ascending distinct ids with a value each.
struct SparseVector {
  std::vector<int32_t> ids;
  std::vector<float> values;
};

// Which connections lead to active neurons, as `SparseLinearSelect` tells.
struct Matches {
  CsrView position;
  const int32_t* entry;
  const int32_t* place;
};

// The gradient by the weights of connections, given that by the active sets' logits (`upstream`).
SparseVector SparseKernelGradient(const Matches& matches, int64_t connections, const float* values,
                                  const float* upstream, const ParallelFor& parallel);

// The gradient by the bias, given that by the active sets' logits.
SparseVector BiasGradient(const CsrView& active, int64_t units, const float* upstream,
                          const ParallelFor& parallel);

// All logits, (rows, units).
int64_t SparseLinearLogits(const SparseRows& x, const SparseKernel& connections, float* logits,
                           const ParallelFor& parallel);

// The k largest logits of each row, k <= units, falling, the lower id first among equals. Never
// holds the logits of neurons that no feature of the row is connected with.
int64_t SparseLinearTopK(const SparseRows& x, const SparseKernel& connections, int64_t k,
                         int32_t* ids, float* scores, const ParallelFor& parallel);

// The losses of each row over all units: of the softmax (0 without labels) and one-vs-rest.
int64_t SparseLinearLosses(const SparseRows& x, const SparseKernel& connections,
                           const CsrView& labels, float* softmax_loss, float* binary_loss,
                           const ParallelFor& parallel);

}  // namespace dslide

#endif  // TF_DSLIDE_CORE_CONNECTIONS_H_
