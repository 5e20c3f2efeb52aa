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

// The row's logits of the shared neurons with their adjustments, -infinity for those that are its
// own.
void CopyShared(const ActiveSets& active, const Membership& shared, int64_t row, float* logits) {
  const float* from = active.shared_logits + row * active.shared.count;
  if (active.row_adjustment) {
    const float adjustment = active.row_adjustment[row];
    for (int64_t s = 0; s < active.shared.count; ++s) {
      logits[s] = from[s] + adjustment * active.shared_adjustment[s];
    }
  } else {
    std::copy_n(from, active.shared.count, logits);
  }
  if (active.shared.count == 0) return;
  for (const int32_t* id = active.own.begin(row); id != active.own.end(row); ++id) {
    if (shared.Has(*id)) logits[shared.PlaceOf(*id)] = kLowest;
  }
}

// Calls `use(place)` for the place of each of the row's labels among its own neurons, until one is
// not there; whether all were.
template <typename Use>
bool ForLabels(const CsrView& own, const CsrView& labels, int64_t row, const Use& use) {
  const int32_t *ids = own.begin(row), *end = own.end(row), *place = ids;
  for (const int32_t* label = labels.begin(row); label != labels.end(row); ++label) {
    place = std::lower_bound(place, end, *label);
    if (place == end || *place != *label) return false;
    use(place - ids);
  }
  return true;
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
  double label_logits = 0;
  const bool all = ForLabels(active.own, labels, row, [&](int64_t place) {
    label_logits += logits[place];
    gradient[place] -= target;
  });
  if (!all) return std::numeric_limits<float>::quiet_NaN();
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

float SoftmaxTotals::Scale(int64_t row) const {
  if (!(label_count[row] > 0)) return 0.0f;
  return static_cast<float>(upstream[row] * std::exp(-static_cast<double>(log_sum[row])));
}

int64_t PartsOfSoftmax(const ActiveSets& active, const CsrView& labels, const SoftmaxParts& parts,
                       const ParallelFor& parallel) {
  FirstBad bad;
  const CsrView& own = active.own;
  const Membership shared(active.shared);
  parallel(own.rows, RowCost(active, 2), [&](int64_t begin, int64_t end) {
    std::vector<float> scratch;
    for (int64_t row = begin; row < end; ++row) {
      const int64_t n = own.length(row), m = active.shared.count;
      const float* logits = active.logits + own.splits[row];
      scratch.resize(n + m);
      std::copy_n(logits, n, scratch.data());
      CopyShared(active, shared, row, scratch.data() + n);
      float top = std::numeric_limits<float>::lowest(), sum = 0;
      if (n + m > 0) {
        top = std::max(top, Simd().max(scratch.data(), n + m));
        sum = Simd().exp_sum(scratch.data(), n + m, top, scratch.data());
      }
      double label_sum = 0;
      const bool all = ForLabels(own, labels, row, [&](int64_t place) {
        label_sum += static_cast<double>(logits[place]) - top;
      });
      if (!all) bad.Note(row);
      parts.top[row] = top;
      parts.log_sum[row] = std::log(sum);
      parts.label_sum[row] = static_cast<float>(label_sum);
    }
  });
  return bad.first();
}

int64_t GradientOfSoftmax(const ActiveSets& active, const CsrView& labels,
                          const SoftmaxTotals& totals, float* gradient, float* shared_gradient,
                          const ParallelFor& parallel) {
  FirstBad bad;
  const CsrView& own = active.own;
  const Membership shared(active.shared);
  parallel(own.rows, RowCost(active, 2), [&](int64_t begin, int64_t end) {
    for (int64_t row = begin; row < end; ++row) {
      const int64_t n = own.length(row), m = active.shared.count;
      float* row_gradient = gradient + own.splits[row];
      float* row_shared = shared_gradient + row * m;
      const float scale = totals.Scale(row), target = totals.Target(row);
      CopyShared(active, shared, row, row_shared);
      Simd().exp_sum(active.logits + own.splits[row], n, totals.top[row], row_gradient);
      Simd().exp_sum(row_shared, m, totals.top[row], row_shared);
      Simd().scale(row_gradient, n, scale, row_gradient);
      Simd().scale(row_shared, m, scale, row_shared);
      const bool all =
          ForLabels(own, labels, row, [&](int64_t place) { row_gradient[place] -= target; });
      if (!all) bad.Note(row);
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
