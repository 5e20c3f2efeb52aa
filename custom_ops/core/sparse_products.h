// The three products between samples x (rows, d), weights w (units, d) and a value for each entry
// (sample, neuron) of an active set. Each is the gradient of the others. For neurons that all
// samples share the values are a matrix (rows, shared), and the products dense.

#ifndef TF_DSLIDE_CORE_SPARSE_PRODUCTS_H_
#define TF_DSLIDE_CORE_SPARSE_PRODUCTS_H_

#include <cstdint>
#include <vector>

#include "custom_ops/core/active_set.h"
#include "custom_ops/core/optimizers.h"
#include "custom_ops/core/parallel.h"

namespace dslide {

// logits[e] = <x[row], w[neuron]> + bias[neuron] for each entry e. By neuron: a row of weights is
// read once for all its samples. `bias` may be null.
void ActiveLogits(const CscView& view, const float* x, const float* w, const float* bias, int64_t d,
                  float* logits, const ParallelFor& parallel);

// y[row] = sum over the row's entries of coef[e] * w[neuron], by sample.
void CsrMatMul(const CsrView& active, const float* coef, const float* w, int64_t d, float* y,
               const ParallelFor& parallel);

// The logits of all samples for the shared neurons: (rows, shared).
void SharedLogits(const CscView& view, const float* x, int64_t rows, const float* w,
                  const float* bias, int64_t d, float* logits, const ParallelFor& parallel);

// CsrMatMul by neuron, for active sets whose rows share neurons: sums go to one buffer a slab of
// neurons (a fixed number of slabs, so that the order of sums is fixed) and are added in order.
void CsrMatMulByNeuron(const CscView& view, int64_t rows, const float* coef, const float* w,
                       int64_t d, float* y, const ParallelFor& parallel);

// y[row] += sum over the shared neurons of coef[row][s] * w[neuron].
void AddSharedMatMul(const CscView& view, int64_t rows, const float* coef, const float* w,
                     int64_t d, float* y, const ParallelFor& parallel);

// Samples with the values of their neurons: what the gradient of weights is computed from.
struct GradientFactors {
  const float* x;  // (rows, d)
  int64_t rows;
  int64_t d;
  const float* coef;         // of each entry
  const float* shared_coef;  // (rows, shared)
};

// gradient[u] = sum over the entries of neurons[u] of coef[e] * x[row], and over all rows of
// their shared coef * x[row] if the neuron is shared; (count, d).
void RowGradient(const CscView& view, const GradientFactors& factors, float* gradient,
                 const ParallelFor& parallel);

// sums[u] = sum of coef over the entries of neurons[u] and over all rows if the neuron is shared:
// the gradient of a bias. Of the factors x and d are not used.
void EntrySums(const CscView& view, const GradientFactors& factors, float* sums,
               const ParallelFor& parallel);

// Groups equal rows of an unsorted list, so that slices of one row can be summed: the view's
// samples are the places in the list.
class GroupedRows {
 public:
  GroupedRows(const int32_t* rows, int64_t count);
  CscView view() const {
    return {static_cast<int64_t>(unique_.size()),
            unique_.data(),
            splits_.data(),
            order_.data(),
            order_.data(),
            {}};
  }

 private:
  std::vector<int32_t> unique_;
  std::vector<int64_t> splits_;
  std::vector<int32_t> order_;
};

// RowGradient and UpdateRows in one sweep: a gradient row lives in the cache only.
void UpdateRowsOf(const CscView& view, const GradientFactors& factors, const RowUpdate& update,
                  const ParallelFor& parallel);

}  // namespace dslide

#endif  // TF_DSLIDE_CORE_SPARSE_PRODUCTS_H_
