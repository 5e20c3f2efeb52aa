// One-vs-rest: binary cross-entropy over active sets.

#ifndef TF_DSLIDE_CORE_BINARY_CROSSENTROPY_H_
#define TF_DSLIDE_CORE_BINARY_CROSSENTROPY_H_

#include <cstdint>

#include "custom_ops/core/active_set.h"
#include "custom_ops/core/parallel.h"
#include "custom_ops/core/softmax.h"

namespace dslide {

// The sum over each row's active neurons of the logistic loss of being one of its labels, and its
// gradient by the logits. A neuron that is no label counts exp(adjustment) times: `own_adjustment`
// holds those of the rows' own (null: 0), `active` those of the shared ones. Returns -1, or a row
// with a label that is not among its own neurons.
int64_t BinaryCrossentropy(const ActiveSets& active, const float* own_adjustment,
                           const CsrView& labels, float* loss, float* gradient,
                           float* shared_gradient, const ParallelFor& parallel);

}  // namespace dslide

#endif  // TF_DSLIDE_CORE_BINARY_CROSSENTROPY_H_
