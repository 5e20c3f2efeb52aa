// Softmax over active sets: what is not active has probability 0.

#ifndef TF_DSLIDE_CORE_SOFTMAX_H_
#define TF_DSLIDE_CORE_SOFTMAX_H_

#include <cstdint>

#include "custom_ops/core/active_set.h"
#include "custom_ops/core/parallel.h"

namespace dslide {

// Logits of a batch's active sets: of each row's own neurons, and of those that all rows share. A
// shared neuron that is among a row's own counts there as its own.
struct ActiveSets {
  CsrView own;
  IdList shared;
  const float* logits;         // of each entry of `own`
  const float* shared_logits;  // (rows, shared)
  // What the softmax adds to a shared neuron's logit: its row's value times its own. Null: nothing.
  const float* row_adjustment = nullptr;
  const float* shared_adjustment = nullptr;
};

// What some of a row's units add to its softmax: the largest of their logits, the logarithm of the
// sum of exp(logit - largest), and the sum of (logit - largest) of its labels among them. Kept
// apart, since sums as one float would lose the loss among large logits.
struct SoftmaxParts {
  float* top;
  float* log_sum;
  float* label_sum;
};

// The same for all units of each row, wherever they are, with the row's number of labels in all and
// the gradient by its loss.
struct SoftmaxTotals {
  const float* top;
  const float* log_sum;
  const float* label_count;
  const float* upstream;

  // What turns exp(logit - top) into the gradient by a logit, before the label's share.
  float Scale(int64_t row) const;
  // What a label's logit has less; 0 if the row has no labels.
  float Target(int64_t row) const {
    return label_count[row] > 0 ? upstream[row] / label_count[row] : 0.0f;
  }
};

// Cross-entropy of each row's softmax against the uniform distribution over its labels, and its
// gradient by the logits. A row without labels has loss 0 and gradient 0. Returns -1, or a row
// with a label that is not among its own neurons.
int64_t SoftmaxCrossentropy(const ActiveSets& active, const CsrView& labels, float* loss,
                            float* gradient, float* shared_gradient, const ParallelFor& parallel);

// What the active sets add to softmaxes over more units than these. A row of which nothing is
// active adds the lowest float, -infinity and 0. Returns -1, or a row with a label that is not
// among its own neurons.
int64_t PartsOfSoftmax(const ActiveSets& active, const CsrView& labels, const SoftmaxParts& parts,
                       const ParallelFor& parallel);

// The gradient by the active sets' logits of sum over rows of upstream[row] * loss[row]. Returns as
// PartsOfSoftmax does.
int64_t GradientOfSoftmax(const ActiveSets& active, const CsrView& labels,
                          const SoftmaxTotals& totals, float* gradient, float* shared_gradient,
                          const ParallelFor& parallel);

// Multiplies values of a batch's active sets by their row's scale. Results may stand where the
// values do.
void ScaleRows(const CsrView& own, int64_t shared, const float* values, const float* shared_values,
               const float* scale, float* out, float* shared_out, const ParallelFor& parallel);

// The k largest logits of each row, falling, the lower id first among equals. Where a row has
// fewer entries, id -1 and score -infinity.
void ActiveTopK(const ActiveSets& active, int64_t k, int32_t* ids, float* scores,
                const ParallelFor& parallel);

}  // namespace dslide

#endif  // TF_DSLIDE_CORE_SOFTMAX_H_
