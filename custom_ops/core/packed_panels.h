// The right-hand side of a matrix product, laid out as the innermost loop reads it.

#ifndef TF_DSLIDE_CORE_STRIPS_H_
#define TF_DSLIDE_CORE_STRIPS_H_

#include <algorithm>
#include <cstdint>
#include <memory>

#include "custom_ops/core/simd.h"

namespace dslide {

// A matrix (k, n) in strips of kStrip columns, each (k, kStrip) and contiguous: a strip's rows
// compete for no cache set, as those of a matrix whose width is a power of two do. Values are not
// set; columns past the n-th must be, to anything finite.
class PackedPanels {
 public:
  PackedPanels(int64_t k, int64_t n) : k_(k), n_(n), data_(new float[count() * k * kStrip]) {}

  int64_t count() const { return (n_ + kStrip - 1) / kStrip; }
  // Columns of the matrix that a strip holds.
  int64_t width(int64_t strip) const { return std::min<int64_t>(kStrip, n_ - strip * kStrip); }
  float* at(int64_t strip, int64_t l = 0) { return data_.get() + (strip * k_ + l) * kStrip; }

  void SetRow(int64_t l, const float* row) {
    for (int64_t strip = 0; strip < count(); ++strip) {
      float* to = at(strip, l);
      std::copy_n(row + strip * kStrip, width(strip), to);
      std::fill(to + width(strip), to + kStrip, 0.0f);
    }
  }

  // Columns [strip * kStrip, ...) from rows of another matrix: `row(j)` is the j-th one's.
  template <typename RowOf>
  void SetColumns(int64_t strip, const RowOf& row) {
    const float* from[kStrip];
    const int64_t columns = width(strip);
    for (int64_t j = 0; j < kStrip; ++j) from[j] = row(strip * kStrip + std::min(j, columns - 1));
    float* to = at(strip);
    for (int64_t l = 0; l < k_; ++l) {
      for (int64_t j = 0; j < kStrip; ++j) *to++ = from[j][l];
    }
  }

 private:
  int64_t k_;
  int64_t n_;
  std::unique_ptr<float[]> data_;
};

}  // namespace dslide

#endif  // TF_DSLIDE_CORE_STRIPS_H_
