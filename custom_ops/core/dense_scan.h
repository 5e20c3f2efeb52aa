// Passes over all neurons, block by block: exact results with no (rows, units) array.

#ifndef TF_DSLIDE_CORE_DENSE_SCAN_H_
#define TF_DSLIDE_CORE_DENSE_SCAN_H_

#include <cstdint>

#include "custom_ops/core/active_set.h"
#include "custom_ops/core/parallel.h"
#include "custom_ops/core/softmax.h"

namespace dslide {

// A dense layer applied to a batch: logits = x w^T + bias. `bias` may be null.
struct DenseScan {
  int64_t rows;
  int64_t d;
  int64_t units;
  const float* x;     // (rows, d)
  const float* w;     // (units, d)
  const float* bias;  // (units)
};

// The k <= units largest logits of each row, falling, the lower id first among equals. NaN counts
// as -infinity.
void TopK(const DenseScan& scan, int64_t k, int32_t* ids, float* scores,
          const ParallelFor& parallel);

// Softmax cross-entropy of each row over all units against the uniform distribution over its
// labels; 0 without labels. The labels' logits are taken from the tiles that the sums see, so that
// the loss is never negative.
void FullCrossentropy(const DenseScan& scan, const CsrView& labels, const SoftmaxParts& parts,
                      float* loss, const ParallelFor& parallel);

// Gradients of sum over rows of upstream[row] * loss[row].
void FullCrossentropyGradient(const DenseScan& scan, const CsrView& labels,
                              const SoftmaxTotals& totals, float* x_gradient, float* w_gradient,
                              float* bias_gradient, const ParallelFor& parallel);

}  // namespace dslide

#endif  // TF_DSLIDE_CORE_DENSE_SCAN_H_
