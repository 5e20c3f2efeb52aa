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
  const float* row_offsets = nullptr;
  const float* shared_offsets = nullptr;
};

// Cross-entropy of each row's softmax against the uniform distribution over its labels, and its
// gradient by the logits. A row without labels has loss 0 and gradient 0. Returns -1, or a row
// with a label that is not among its own neurons.
int64_t SoftmaxCrossentropy(const ActiveSets& active, const CsrView& labels, float* loss,
                            float* gradient, float* shared_gradient, const ParallelFor& parallel);

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
