#include "custom_ops/core/binary_crossentropy.h"

#include <algorithm>
#include <cmath>

namespace dslide {
namespace {

// The loss of a neuron that should be off, and its derivative.
struct Off {
  explicit Off(float logit) {
    const float e = std::exp(-std::abs(logit));
    loss = std::max(logit, 0.0f) + std::log1p(e);
    slope = (logit >= 0 ? 1.0f : e) / (1.0f + e);
  }
  float loss, slope;
};

// The row's own neurons; whether its labels are among them.
bool OwnOfRow(const ActiveSets& active, const float* own_adjustment, const CsrView& labels,
              int64_t row, double* loss, float* gradient) {
  const int32_t *label = labels.begin(row), *last = labels.end(row);
  for (int64_t e = active.own.splits[row]; e < active.own.splits[row + 1]; ++e) {
    const Off off(active.logits[e]);
    if (label != last && active.own.ids[e] == *label) {
      *loss += off.loss - active.logits[e];
      gradient[e] = off.slope - 1.0f;
      ++label;
    } else {
      const float weight = own_adjustment ? std::exp(own_adjustment[e]) : 1.0f;
      *loss += weight * off.loss;
      gradient[e] = weight * off.slope;
    }
  }
  return label == last;
}

void SharedOfRow(const ActiveSets& active, const Membership& shared, int64_t row, double* loss,
                 float* gradient) {
  const int64_t first = row * active.shared.count;
  const auto weight = [&](int64_t s) {
    return active.row_adjustment
               ? std::exp(active.row_adjustment[row] * active.shared_adjustment[s])
               : 1.0f;
  };
  for (int64_t s = 0; s < active.shared.count; ++s) {
    const Off off(active.shared_logits[first + s]);
    *loss += weight(s) * off.loss;
    gradient[first + s] = weight(s) * off.slope;
  }
  for (const int32_t* id = active.own.begin(row); id != active.own.end(row); ++id) {
    if (!shared.Has(*id)) continue;
    const int64_t s = shared.PlaceOf(*id);
    *loss -= weight(s) * Off(active.shared_logits[first + s]).loss;
    gradient[first + s] = 0;
  }
}

}  // namespace

int64_t BinaryCrossentropy(const ActiveSets& active, const float* own_adjustment,
                           const CsrView& labels, float* loss, float* gradient,
                           float* shared_gradient, const ParallelFor& parallel) {
  FirstBad bad;
  const Membership shared(active.shared);
  const int64_t rows = std::max<int64_t>(1, active.own.rows);
  const int64_t cost = 50 + 30 * (active.own.size() / rows + active.shared.count);
  parallel(active.own.rows, cost, [&](int64_t begin, int64_t end) {
    for (int64_t row = begin; row < end; ++row) {
      double sum = 0;
      if (!OwnOfRow(active, own_adjustment, labels, row, &sum, gradient)) bad.Note(row);
      SharedOfRow(active, shared, row, &sum, shared_gradient);
      loss[row] = static_cast<float>(sum);
    }
  });
  return bad.first();
}

}  // namespace dslide
