#include "custom_ops/core/softmax.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>
#include <vector>

#include "custom_ops/core/simd.h"

namespace dslide {
namespace {

int64_t MeanCost(const CsrView& active, int64_t per_entry) {
  return 50 + per_entry * active.size() / std::max<int64_t>(1, active.rows);
}

// The row's loss; `gradient` receives the probabilities less the targets. NaN if a label is not
// active.
float RowCrossentropy(const int32_t* ids, const float* logits, int64_t n, const int32_t* labels,
                      int64_t label_count, float* gradient) {
  const float top = Simd().max(logits, n);
  const float sum = Simd().exp_sum(logits, n, top, gradient);
  Simd().scale(gradient, n, 1.0f / sum, gradient);
  const float target = 1.0f / static_cast<float>(label_count);
  double label_logits = 0;
  const int32_t* place = ids;
  for (int64_t l = 0; l < label_count; ++l) {
    place = std::lower_bound(place, ids + n, labels[l]);
    if (place == ids + n || *place != labels[l]) return std::numeric_limits<float>::quiet_NaN();
    label_logits += logits[place - ids];
    gradient[place - ids] -= target;
  }
  return static_cast<float>(static_cast<double>(top) + std::log(static_cast<double>(sum)) -
                            label_logits / label_count);
}

}  // namespace

int64_t SoftmaxCrossentropy(const CsrView& active, const float* logits, const CsrView& labels,
                            float* loss, float* gradient, const ParallelFor& parallel) {
  FirstBad bad;
  parallel(active.rows, MeanCost(active, 2), [&](int64_t begin, int64_t end) {
    for (int64_t row = begin; row < end; ++row) {
      const int64_t first = active.splits[row], n = active.length(row);
      loss[row] = 0;
      if (labels.length(row) == 0) {
        std::fill_n(gradient + first, n, 0.0f);
      } else if (n < labels.length(row)) {
        bad.Note(row);
      } else {
        loss[row] = RowCrossentropy(active.begin(row), logits + first, n, labels.begin(row),
                                    labels.length(row), gradient + first);
        // NaN logits give a NaN loss too: they are the caller's to see, not a missing label.
        if (std::isnan(loss[row]) && !std::includes(active.begin(row), active.end(row),
                                                    labels.begin(row), labels.end(row))) {
          bad.Note(row);
        }
      }
    }
  });
  return bad.first();
}

void ScaleRows(const CsrView& active, const float* values, const float* scale, float* out,
               const ParallelFor& parallel) {
  parallel(active.rows, MeanCost(active, 1), [&](int64_t begin, int64_t end) {
    for (int64_t row = begin; row < end; ++row) {
      const int64_t first = active.splits[row];
      Simd().scale(values + first, active.length(row), scale[row], out + first);
    }
  });
}

void CsrTopK(const CsrView& active, const float* logits, int64_t k, int32_t* ids, float* scores,
             const ParallelFor& parallel) {
  parallel(active.rows, MeanCost(active, 3), [&](int64_t begin, int64_t end) {
    std::vector<int32_t> order;
    for (int64_t row = begin; row < end; ++row) {
      const int32_t* row_ids = active.begin(row);
      const float* row_logits = logits + active.splits[row];
      const int64_t n = active.length(row), best = std::min(k, n);
      order.resize(n);
      std::iota(order.begin(), order.end(), 0);
      std::partial_sort(
          order.begin(), order.begin() + best, order.end(), [&](int32_t a, int32_t b) {
            return row_logits[a] != row_logits[b] ? row_logits[a] > row_logits[b] : a < b;
          });
      for (int64_t j = 0; j < k; ++j) {
        ids[row * k + j] = j < best ? row_ids[order[j]] : -1;
        scores[row * k + j] =
            j < best ? row_logits[order[j]] : -std::numeric_limits<float>::infinity();
      }
    }
  });
}

}  // namespace dslide
