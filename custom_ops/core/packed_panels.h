// The right-hand side of a matrix product, laid out as the innermost loop reads it.

#ifndef TF_DSLIDE_CORE_PACKED_PANELS_H_
#define TF_DSLIDE_CORE_PACKED_PANELS_H_

#include <algorithm>
#include <cstdint>
#include <memory>

#include "custom_ops/core/simd.h"

namespace dslide {

// A matrix (k, n) in panels of kPanel columns, each (k, kPanel) and contiguous: a panel's rows
// compete for no cache set, as those of a matrix whose width is a power of two do. Values are not
// set; columns past the n-th must be, to anything finite.
class PackedPanels {
 public:
  PackedPanels(int64_t k, int64_t n) : k_(k), n_(n), data_(new float[count() * k * kPanel]) {}

  int64_t count() const { return (n_ + kPanel - 1) / kPanel; }
  // Columns of the matrix that a panel holds.
  int64_t width(int64_t panel) const { return std::min<int64_t>(kPanel, n_ - panel * kPanel); }
  float* at(int64_t panel, int64_t l = 0) { return data_.get() + (panel * k_ + l) * kPanel; }

  void SetRow(int64_t l, const float* row) {
    for (int64_t panel = 0; panel < count(); ++panel) {
      float* to = at(panel, l);
      std::copy_n(row + panel * kPanel, width(panel), to);
      std::fill(to + width(panel), to + kPanel, 0.0f);
    }
  }

  // Columns [panel * kPanel, ...) from rows of another matrix: `row(j)` is the j-th one's.
  template <typename RowOf>
  void SetColumns(int64_t panel, const RowOf& row) {
    const float* from[kPanel];
    const int64_t columns = width(panel);
    for (int64_t j = 0; j < kPanel; ++j) from[j] = row(panel * kPanel + std::min(j, columns - 1));
    float* to = at(panel);
    for (int64_t l = 0; l < k_; ++l) {
      for (int64_t j = 0; j < kPanel; ++j) *to++ = from[j][l];
    }
  }

 private:
  int64_t k_;
  int64_t n_;
  std::unique_ptr<float[]> data_;
};

}  // namespace dslide

#endif  // TF_DSLIDE_CORE_PACKED_PANELS_H_
