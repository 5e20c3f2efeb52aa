// The values of a batch's active sets as one sparse matrix (rows, units), which is what a hidden
// layer hands on: entries ascend by row and neuron, each neuron of a row stands there once.

#ifndef TF_DSLIDE_CORE_SPARSE_OUTPUT_H_
#define TF_DSLIDE_CORE_SPARSE_OUTPUT_H_

#include <cstdint>
#include <vector>

#include "custom_ops/core/parallel.h"
#include "custom_ops/core/softmax.h"

namespace dslide {

// A shared neuron that is among a row's own has its own value there. Without `keep_zeros` values
// that are exactly 0 are left out: behind a ReLU nothing flows through them, in either direction.
class SparseOutput {
 public:
  SparseOutput(const ActiveSets& active, bool keep_zeros, const ParallelFor& parallel);

  // Number of entries.
  int64_t size() const { return splits_.back(); }

  // Fills indices (size, 2), row and neuron, and values (size).
  void Write(int64_t* indices, float* values, const ParallelFor& parallel) const;

  // The other way, for gradients: from a number of each entry to one of each own neuron and to
  // (rows, shared); 0 where there is no entry.
  void Spread(const float* entries, float* own, float* shared, const ParallelFor& parallel) const;

 private:
  // Calls `own(e, id)` for entries e of the row's own neurons and `shared(s, id)` for places s
  // among the shared ones, ascending by id, passing over what is left out.
  template <typename Own, typename Shared>
  void ForEntries(int64_t row, const Own& own, const Shared& shared) const;

  // Rough nanoseconds of a row.
  int64_t RowCost() const;

  ActiveSets active_;
  bool keep_zeros_;
  std::vector<int64_t> splits_;
};

}  // namespace dslide

#endif  // TF_DSLIDE_CORE_SPARSE_OUTPUT_H_
