#include <algorithm>
#include <cmath>
#include <limits>
#include <utility>

#include "custom_ops/core/softmax.h"
#include "tests/native/core_check/check.h"
#include "tests/native/core_check/layer.h"

namespace dslide {
namespace {

void CheckSlopes(const Shape& shape, const Layer& layer, const Values& gradient, int64_t row,
                 const Doubles& expected, double scale) {
  const RowNeurons got(layer, gradient, row);
  Floats slopes;
  for (const float* slope : got.values) slopes.push_back(*slope);
  const double bound = (slopes.size() + 60) * kRounding * scale;
  CheckClose(slopes, expected, Doubles(slopes.size(), bound), shape.Name("gradient of a softmax"));
  CheckHidden(layer, gradient, row);
}

struct Problem {
  const Shape& shape;
  const Layer& layer;
  Values logits;
  Adjustment adjustment;
  Csr labels;

  Problem(const Shape& shape, const Layer& layer, Source* source, bool adjusted)
      : shape(shape), layer(layer), logits(layer, source, 20), labels(SomeOf(layer.own)) {
    if (adjusted) adjustment = {source->Array(shape.rows), source->Array(layer.shared.size())};
  }
  ActiveSets Of() const {
    ActiveSets active = logits.Of(layer);
    adjustment.Set(&active);
    return active;
  }
  RowNeurons Row(int64_t row) const { return RowNeurons(layer, logits, row, adjustment); }
};

void CheckCrossentropyRow(const Problem& problem, const Values& gradient, int64_t row, float loss) {
  const RowNeurons given = problem.Row(row);
  const int64_t n = given.ids.size();
  const CsrView labels = problem.labels.view();
  Doubles slopes(n);
  const double expected = RowLoss(given.Adjusted().data(), given.ids.data(), n, labels.begin(row),
                                  labels.length(row), slopes.data());
  CheckClose({loss}, {expected}, {(n + 200) * kRounding},
             problem.shape.Name("SoftmaxCrossentropy"));
  CheckSlopes(problem.shape, problem.layer, gradient, row, slopes, 1);
}

void CheckCrossentropy(const Problem& problem, Source* source) {
  const Shape& shape = problem.shape;
  const Layer& layer = problem.layer;
  const Floats scale = source->Array(shape.rows);
  const int64_t shared = layer.shared.size();
  std::vector<Floats> before;
  for (const ParallelFor& pool : kPools) {
    Floats loss(shape.rows);
    Values gradient(layer), scaled(layer);
    Check(SoftmaxCrossentropy(problem.Of(), problem.labels.view(), loss.data(), gradient.own.data(),
                              gradient.shared.data(), pool) == -1,
          "labels are active");
    ScaleRows(layer.own.view(), shared, gradient.own.data(), gradient.shared.data(), scale.data(),
              scaled.own.data(), scaled.shared.data(), pool);
    for (int64_t row = 0; row < shape.rows; ++row) {
      CheckCrossentropyRow(problem, gradient, row, loss[row]);
      for (int64_t e = layer.own.splits[row]; e < layer.own.splits[row + 1]; ++e) {
        Check(scaled.own[e] == gradient.own[e] * scale[row], shape.Name("ScaleRows"));
      }
      for (int64_t s = row * shared; s < (row + 1) * shared; ++s) {
        Check(scaled.shared[s] == gradient.shared[s] * scale[row], shape.Name("ScaleRows, shared"));
      }
    }
    CheckSameByThreads({loss, gradient.own, gradient.shared, scaled.own, scaled.shared}, &before,
                       "softmax");
  }
}

struct Parts {
  Floats top, log_sum, label_sum;

  explicit Parts(int64_t rows) : top(rows), log_sum(rows), label_sum(rows) {}
  SoftmaxParts Of() { return {top.data(), log_sum.data(), label_sum.data()}; }
};

void CheckPartsRow(const Problem& problem, const Parts& got, int64_t row) {
  const RowNeurons given = problem.Row(row);
  const Doubles logits = given.Adjusted();
  const float top = got.top[row];
  if (logits.empty()) {
    Check(top == std::numeric_limits<float>::lowest() && got.label_sum[row] == 0 &&
              got.log_sum[row] == -std::numeric_limits<float>::infinity(),
          "parts of a row without neurons");
    return;
  }
  const CsrView labels = problem.labels.view();
  double sum = 0, label_sum = 0;
  for (size_t j = 0; j < logits.size(); ++j) {
    sum += std::exp(logits[j] - top);
    if (std::binary_search(labels.begin(row), labels.end(row), given.ids[j])) {
      label_sum += logits[j] - top;
    }
  }
  const double error = (logits.size() + 200) * kRounding;
  CheckClose({top}, {*std::max_element(logits.begin(), logits.end())}, {error}, "top of parts");
  CheckClose({got.log_sum[row]}, {std::log(sum)}, {error}, problem.shape.Name("log_sum of parts"));
  CheckClose({got.label_sum[row]}, {label_sum}, {error * (1 + std::abs(label_sum))},
             problem.shape.Name("label_sum of parts"));
}

// The gradient where other units, which are elsewhere, raise the sums and have labels.
void CheckGradientRow(const Problem& problem, const SoftmaxTotals& totals, const Values& gradient,
                      int64_t row) {
  const RowNeurons given = problem.Row(row);
  const CsrView labels = problem.labels.view();
  Doubles slopes = given.Adjusted();
  const double count = totals.label_count[row];
  for (size_t j = 0; j < slopes.size(); ++j) {
    const bool is_label = std::binary_search(labels.begin(row), labels.end(row), given.ids[j]);
    const double share = std::exp(slopes[j] - totals.top[row] - totals.log_sum[row]);
    slopes[j] = count == 0 ? 0 : totals.upstream[row] * (share - (is_label ? 1 / count : 0));
  }
  CheckSlopes(problem.shape, problem.layer, gradient, row, slopes, 4);
}

void CheckParts(const Problem& problem, Source* source) {
  const Shape& shape = problem.shape;
  const Floats upstream = source->Array(shape.rows);
  std::vector<Floats> before;
  for (const ParallelFor& pool : kPools) {
    Parts parts(shape.rows);
    Check(PartsOfSoftmax(problem.Of(), problem.labels.view(), parts.Of(), pool) == -1,
          "labels of parts are active");
    Floats top = parts.top, log_sum = parts.log_sum, label_count(shape.rows);
    for (int64_t row = 0; row < shape.rows; ++row) {
      CheckPartsRow(problem, parts, row);
      if (parts.log_sum[row] < 0) log_sum[row] = 0;  // no neuron is active
      top[row] += row % 4 == 1;
      log_sum[row] += 0.5f * (row % 4 == 2);
      label_count[row] = problem.labels.view().length(row) + row % 2;
    }
    const SoftmaxTotals totals = {top.data(), log_sum.data(), label_count.data(), upstream.data()};
    Values gradient(problem.layer);
    Check(GradientOfSoftmax(problem.Of(), problem.labels.view(), totals, gradient.own.data(),
                            gradient.shared.data(), pool) == -1,
          "labels of a gradient are active");
    for (int64_t row = 0; row < shape.rows; ++row) {
      CheckGradientRow(problem, totals, gradient, row);
      const double scale = label_count[row] > 0 ? upstream[row] * std::exp(-log_sum[row]) : 0;
      CheckClose({totals.Scale(row)}, {scale}, {4 * kRounding}, "SoftmaxTotals::Scale");
      Check(totals.Target(row) == (label_count[row] > 0 ? upstream[row] / label_count[row] : 0),
            "SoftmaxTotals::Target");
    }
    CheckSameByThreads({parts.top, parts.log_sum, parts.label_sum, gradient.own, gradient.shared},
                       &before, "parts of a softmax");
  }
}

void CheckLost(const Problem& problem) {
  const int64_t rows = problem.shape.rows;
  CheckLostLabels(
      problem.shape, problem.layer, problem.labels,
      [&](const CsrView& labels, const ParallelFor& pool) {
        Floats loss(rows), ones(rows, 1.0f);
        Parts parts(rows);
        Values gradient(problem.layer);
        const SoftmaxTotals totals = {ones.data(), ones.data(), ones.data(), ones.data()};
        float *own = gradient.own.data(), *shared = gradient.shared.data();
        return Ints{static_cast<int32_t>(
                        SoftmaxCrossentropy(problem.Of(), labels, loss.data(), own, shared, pool)),
                    static_cast<int32_t>(PartsOfSoftmax(problem.Of(), labels, parts.Of(), pool)),
                    static_cast<int32_t>(
                        GradientOfSoftmax(problem.Of(), labels, totals, own, shared, pool))};
      });
}

void CheckActiveTopK(const Shape& shape, const Layer& layer, Source* source) {
  Values logits(layer);
  for (Floats* part : {&logits.own, &logits.shared}) {
    for (float& logit : *part) logit = static_cast<float>(source->Integer(7));
  }
  for (int64_t k : {1, 5, 60}) {
    for (const ParallelFor& pool : kPools) {
      Ints ids(shape.rows * k);
      Floats scores(shape.rows * k);
      ActiveTopK(logits.Of(layer), k, ids.data(), scores.data(), pool);
      for (int64_t row = 0; row < shape.rows; ++row) {
        const RowNeurons neurons(layer, logits, row);
        std::vector<std::pair<float, int32_t>> best;  // (-score, id)
        for (size_t j = 0; j < neurons.ids.size(); ++j) {
          best.emplace_back(-*neurons.values[j], neurons.ids[j]);
        }
        std::sort(best.begin(), best.end());
        best.resize(k, {std::numeric_limits<float>::infinity(), -1});
        for (int64_t j = 0; j < k; ++j) {
          Check(ids[row * k + j] == best[j].second && scores[row * k + j] == -best[j].first,
                shape.Name("ActiveTopK"));
        }
      }
    }
  }
}

void CheckSoftmax() {
  ForLayers(32, [](const Shape& shape, const Layer& layer, Source* source) {
    for (bool adjusted : {false, true}) {
      const Problem problem(shape, layer, source, adjusted);
      CheckCrossentropy(problem, source);
      CheckParts(problem, source);
      if (!adjusted) CheckLost(problem);
    }
    CheckActiveTopK(shape, layer, source);
  });
}

const Checks kChecks = {CheckSoftmax};

}  // namespace
}  // namespace dslide
