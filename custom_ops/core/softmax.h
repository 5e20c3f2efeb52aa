// Softmax over active sets: what is not active has probability 0.

#ifndef TF_DSLIDE_CORE_SOFTMAX_H_
#define TF_DSLIDE_CORE_SOFTMAX_H_

#include <cstdint>

#include "custom_ops/core/active_set.h"
#include "custom_ops/core/parallel.h"

namespace dslide {

// Cross-entropy of each row's softmax against the uniform distribution over its labels, and its
// gradient by the logits. A row without labels has loss 0 and gradient 0. Returns -1, or a row
// with a label that is not in its active set.
int64_t SoftmaxCrossentropy(const CsrView& active, const float* logits, const CsrView& labels,
                            float* loss, float* gradient, const ParallelFor& parallel);

// out[e] = values[e] * scale[row of e].
void ScaleRows(const CsrView& active, const float* values, const float* scale, float* out,
               const ParallelFor& parallel);

// The k largest logits of each row, falling, the lower id first among equals. Where a row has
// fewer entries, id -1 and score -infinity.
void CsrTopK(const CsrView& active, const float* logits, int64_t k, int32_t* ids, float* scores,
             const ParallelFor& parallel);

}  // namespace dslide

#endif  // TF_DSLIDE_CORE_SOFTMAX_H_
