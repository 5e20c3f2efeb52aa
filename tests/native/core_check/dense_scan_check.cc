#include <algorithm>

#include "custom_ops/core/dense_scan.h"
#include "tests/native/core_check/check.h"
#include "tests/native/core_check/layer.h"

namespace dslide {
namespace {

// Passes over all units. Weights are multiples of 1/8, so that logits are exact.
void CheckScans(const Shape& shape, Source* source) {
  const int64_t rows = shape.rows, units = shape.units, d = shape.d;
  const Floats x = source->Eighths(rows * d), w = source->Eighths(units * d);
  const Floats bias = source->Eighths(units), upstream = source->Array(rows);
  Csr labels = source->Sets(rows, units, 3);
  for (const float* given : std::vector<const float*>{nullptr, bias.data()}) {
    const DenseScan scan = {rows, d, units, x.data(), w.data(), given};
    Doubles logits(rows * units), by_logit(rows * units), loss(rows);
    Sums x_sums(rows * d), w_sums(units * d), bias_sums(units);
    Ints everything(units);
    for (int64_t u = 0; u < units; ++u) everything[u] = static_cast<int32_t>(u);
    for (int64_t row = 0; row < rows; ++row) {
      for (int64_t u = 0; u < units; ++u) {
        double& logit = logits[row * units + u];
        logit = given ? given[u] : 0;
        for (int64_t i = 0; i < d; ++i) logit += double{x[row * d + i]} * w[u * d + i];
      }
      loss[row] =
          RowLoss(logits.data() + row * units, everything.data(), units, labels.view().begin(row),
                  labels.view().length(row), by_logit.data() + row * units);
      for (int64_t u = 0; u < units; ++u) {
        const double slope = by_logit[row * units + u] * upstream[row];
        bias_sums.Add(u, slope);
        for (int64_t i = 0; i < d; ++i) {
          x_sums.Add(row * d + i, slope * w[u * d + i]);
          w_sums.Add(u * d + i, slope * x[row * d + i]);
        }
      }
    }
    // Probabilities are good to some 20 roundings and the sum over units.
    auto bound = [&](const Sums& sums) {
      Doubles result = sums.Bound();
      for (size_t i = 0; i < result.size(); ++i) {
        result[i] += (sums.size[i] + std::abs(sums.exact[i])) * 40 * kRounding +
                     sums.terms[i] * 2 * kRounding;
      }
      return result;
    };
    Doubles loss_bound(rows);
    for (int64_t row = 0; row < rows; ++row) loss_bound[row] = (60 + loss[row]) * 4 * kRounding;
    std::vector<Floats> before;
    for (const ParallelFor& pool : kPools) {
      Floats top(rows), log_sum(rows), label_sum(rows), label_count(rows), got_loss(rows);
      Floats x_gradient(rows * d), w_gradient(units * d);
      Floats bias_gradient(given ? units : 0);
      for (int64_t row = 0; row < rows; ++row) label_count[row] = labels.view().length(row);
      const SoftmaxParts parts = {top.data(), log_sum.data(), label_sum.data()};
      const SoftmaxTotals totals = {top.data(), log_sum.data(), label_count.data(),
                                    upstream.data()};
      FullCrossentropy(scan, labels.view(), parts, got_loss.data(), pool);
      CheckClose(got_loss, loss, loss_bound, shape.Name("FullCrossentropy"));
      FullCrossentropyGradient(scan, labels.view(), totals, x_gradient.data(), w_gradient.data(),
                               given ? bias_gradient.data() : nullptr, pool);
      CheckClose(x_gradient, x_sums.exact, bound(x_sums), shape.Name("x gradient"));
      CheckClose(w_gradient, w_sums.exact, bound(w_sums), shape.Name("w gradient"));
      if (given) {
        CheckClose(bias_gradient, bias_sums.exact, bound(bias_sums), shape.Name("bias gradient"));
      }
      const int64_t k = std::min<int64_t>(units, 9);
      Ints ids(rows * k);
      Floats scores(rows * k);
      TopK(scan, k, ids.data(), scores.data(), pool);
      for (int64_t row = 0; row < rows; ++row) {
        Ints order = everything;
        std::stable_sort(order.begin(), order.end(), [&](int32_t a, int32_t b) {
          return logits[row * units + a] > logits[row * units + b];
        });
        for (int64_t j = 0; j < k; ++j) {
          Check(
              ids[row * k + j] == order[j] && scores[row * k + j] == logits[row * units + order[j]],
              shape.Name("TopK"));
        }
      }
      const std::vector<Floats> all = {top,        log_sum,    label_sum,    got_loss,
                                       x_gradient, w_gradient, bias_gradient};
      CheckSameByThreads(all, &before, shape.Name("scan"));
    }
  }
}

void CheckAllScans() {
  Source source(30);
  for (const Shape& shape : kShapes) CheckScans(shape, &source);
}

const Checks kChecks = {CheckAllScans};

}  // namespace
}  // namespace dslide
