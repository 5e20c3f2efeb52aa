#include "custom_ops/core/softmax.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <vector>

#include "custom_ops/core/scored.h"
#include "custom_ops/core/simd.h"

namespace dslide {
namespace {

int64_t MeanCost(const CsrView& active, int64_t per_entry) {
  return 50 + per_entry * active.size() / std::max<int64_t>(1, active.rows);
}

int64_t RowCost(const ActiveSets& active, int64_t per_entry) {
  return MeanCost(active.own, per_entry) + per_entry * active.shared.count;
}

constexpr float kLowest = -std::numeric_limits<float>::infinity();

// The row's logits of the shared neurons with their offsets, -infinity for those that are its own.
void CopyShared(const ActiveSets& active, const Membership& shared, int64_t row, float* logits) {
  const float* from = active.shared_logits + row * active.shared.count;
  if (active.row_offsets) {
    const float offset = active.row_offsets[row];
    for (int64_t s = 0; s < active.shared.count; ++s) {
      logits[s] = from[s] + offset * active.shared_offsets[s];
    }
  } else {
    std::copy_n(from, active.shared.count, logits);
  }
  if (active.shared.count == 0) return;
  for (const int32_t* id = active.own.begin(row); id != active.own.end(row); ++id) {
    if (shared.Has(*id)) logits[shared.PlaceOf(*id)] = kLowest;
  }
}

// The loss of a row with labels. `gradient` and `shared_gradient` receive the probabilities less
// the targets; the latter holds the row's logits of the shared neurons before. NaN if a label is
// not among the row's own neurons.
float RowCrossentropy(const ActiveSets& active, const CsrView& labels, int64_t row, float* gradient,
                      float* shared_gradient) {
  const int64_t first = active.own.splits[row], n = active.own.length(row);
  const int64_t shared = active.shared.count;
  const float* logits = active.logits + first;
  float top = Simd().max(logits, n);
  if (shared > 0) top = std::max(top, Simd().max(shared_gradient, shared));
  const float sum = Simd().exp_sum(logits, n, top, gradient) +
                    Simd().exp_sum(shared_gradient, shared, top, shared_gradient);
  Simd().scale(gradient, n, 1.0f / sum, gradient);
  Simd().scale(shared_gradient, shared, 1.0f / sum, shared_gradient);
  const float target = 1.0f / static_cast<float>(labels.length(row));
  const int32_t *ids = active.own.begin(row), *place = ids;
  double label_logits = 0;
  for (const int32_t* label = labels.begin(row); label != labels.end(row); ++label) {
    place = std::lower_bound(place, ids + n, *label);
    if (place == ids + n || *place != *label) return std::numeric_limits<float>::quiet_NaN();
    label_logits += logits[place - ids];
    gradient[place - ids] -= target;
  }
  return static_cast<float>(static_cast<double>(top) + std::log(static_cast<double>(sum)) -
                            label_logits / labels.length(row));
}

}  // namespace

int64_t SoftmaxCrossentropy(const ActiveSets& active, const CsrView& labels, float* loss,
                            float* gradient, float* shared_gradient, const ParallelFor& parallel) {
  FirstBad bad;
  const CsrView& own = active.own;
  const Membership shared(active.shared);
  parallel(own.rows, RowCost(active, 2), [&](int64_t begin, int64_t end) {
    for (int64_t row = begin; row < end; ++row) {
      float* row_gradient = gradient + own.splits[row];
      float* row_shared = shared_gradient + row * active.shared.count;
      loss[row] = 0;
      if (labels.length(row) == 0) {
        std::fill_n(row_gradient, own.length(row), 0.0f);
        std::fill_n(row_shared, active.shared.count, 0.0f);
      } else if (own.length(row) < labels.length(row)) {
        bad.Note(row);
      } else {
        CopyShared(active, shared, row, row_shared);
        loss[row] = RowCrossentropy(active, labels, row, row_gradient, row_shared);
        // NaN logits give a NaN loss too: they are the caller's to see, not a missing label.
        if (std::isnan(loss[row]) &&
            !std::includes(own.begin(row), own.end(row), labels.begin(row), labels.end(row))) {
          bad.Note(row);
        }
      }
    }
  });
  return bad.first();
}

void ScaleRows(const CsrView& own, int64_t shared, const float* values, const float* shared_values,
               const float* scale, float* out, float* shared_out, const ParallelFor& parallel) {
  parallel(own.rows, MeanCost(own, 1) + shared, [&](int64_t begin, int64_t end) {
    for (int64_t row = begin; row < end; ++row) {
      const int64_t first = own.splits[row], at = row * shared;
      Simd().scale(values + first, own.length(row), scale[row], out + first);
      Simd().scale(shared_values + at, shared, scale[row], shared_out + at);
    }
  });
}

namespace {

// All neurons of a row, each once.
void ListRow(const ActiveSets& active, int64_t row, std::vector<Scored>* list) {
  list->clear();
  for (int64_t e = active.own.splits[row]; e < active.own.splits[row + 1]; ++e) {
    list->push_back({active.logits[e], active.own.ids[e]});
  }
  const float* logits = active.shared_logits + row * active.shared.count;
  const int32_t *own = active.own.begin(row), *end = active.own.end(row);
  for (const int32_t id : active.shared) {
    while (own != end && *own < id) ++own;
    if (own == end || *own != id) list->push_back({*logits, id});
    ++logits;
  }
}

}  // namespace

void ActiveTopK(const ActiveSets& active, int64_t k, int32_t* ids, float* scores,
                const ParallelFor& parallel) {
  parallel(active.own.rows, RowCost(active, 3), [&](int64_t begin, int64_t end) {
    std::vector<Scored> list;
    for (int64_t row = begin; row < end; ++row) {
      ListRow(active, row, &list);
      const int64_t best = std::min<int64_t>(k, list.size());
      std::partial_sort(list.begin(), list.begin() + best, list.end(), Before);
      for (int64_t j = 0; j < k; ++j) {
        ids[row * k + j] = j < best ? list[j].id : -1;
        scores[row * k + j] = j < best ? list[j].score : kLowest;
      }
    }
  });
}

}  // namespace dslide
