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
};

// Cross-entropy of each row's softmax against the uniform distribution over its labels, and its
// gradient by the logits. A row without labels has loss 0 and gradient 0. Returns -1, or a row
// with a label that is not among its own neurons.
int64_t SoftmaxCrossentropy(const ActiveSets& active, const CsrView& labels, float* loss,
                            float* gradient, float* shared_gradient, const ParallelFor& parallel);

// out[e] = values[e] * scale[row of e].
void ScaleRows(const CsrView& active, const float* values, const float* scale, float* out,
               const ParallelFor& parallel);

// The k largest logits of each row, falling, the lower id first among equals. Where a row has
// fewer entries, id -1 and score -infinity.
void ActiveTopK(const ActiveSets& active, int64_t k, int32_t* ids, float* scores,
                const ParallelFor& parallel);

}  // namespace dslide

#endif  // TF_DSLIDE_CORE_SOFTMAX_H_
