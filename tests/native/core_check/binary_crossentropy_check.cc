#include <algorithm>
#include <cmath>

#include "custom_ops/core/binary_crossentropy.h"
#include "tests/native/core_check/check.h"
#include "tests/native/core_check/layer.h"

namespace dslide {
namespace {

double Softplus(double z) { return std::max(z, 0.0) + std::log1p(std::exp(-std::abs(z))); }

void CheckRow(const Layer& layer, const RowNeurons& given, const Csr& labels, int64_t row,
              const Floats& own_adjustment, const Values& gradient, float loss) {
  const RowNeurons got(layer, gradient, row);
  const int64_t own = layer.own.view().length(row), first = layer.own.splits[row];
  double expected = 0, size = 0;
  Doubles slopes, bounds;
  Floats got_slopes;
  for (int64_t j = 0; j < static_cast<int64_t>(given.ids.size()); ++j) {
    const double z = *given.values[j];
    const bool is_label =
        std::binary_search(labels.view().begin(row), labels.view().end(row), given.ids[j]);
    const double by_own = own_adjustment.empty() || j >= own ? 0 : own_adjustment[first + j];
    const double weight = is_label ? 1 : std::exp(by_own + given.adjustments[j]);
    expected += weight * Softplus(z) - is_label * z;
    size += weight * (1 + std::abs(z));
    slopes.push_back(weight / (1 + std::exp(-z)) - is_label);
    bounds.push_back(8 * kRounding * (weight + is_label));
    got_slopes.push_back(*got.values[j]);
  }
  // What a shared neuron that is the row's own gives is added and taken away.
  size += 3 * 21 * static_cast<double>(layer.shared.size());
  CheckClose({loss}, {expected}, {8 * kRounding * size}, "BinaryCrossentropy");
  CheckClose(got_slopes, slopes, bounds, "gradient of BinaryCrossentropy");
  CheckHidden(layer, gradient, row);
}

void CheckLayer(const Shape& shape, const Layer& layer, Source* source) {
  const Values logits(layer, source, 20);
  const Csr labels = SomeOf(layer.own);
  for (bool adjusted : {false, true}) {
    Adjustment adjustment;
    Floats own_adjustment;
    if (adjusted) {
      adjustment = {source->Array(shape.rows), source->Array(layer.shared.size())};
      own_adjustment = source->Array(layer.own.ids.size());
    }
    ActiveSets active = logits.Of(layer);
    adjustment.Set(&active);
    const float* by_own = adjusted ? own_adjustment.data() : nullptr;
    std::vector<Floats> before;
    for (const ParallelFor& pool : kPools) {
      Floats loss(shape.rows);
      Values gradient(layer);
      Check(BinaryCrossentropy(active, by_own, labels.view(), loss.data(), gradient.own.data(),
                               gradient.shared.data(), pool) == -1,
            "labels are active");
      for (int64_t row = 0; row < shape.rows; ++row) {
        CheckRow(layer, RowNeurons(layer, logits, row, adjustment), labels, row, own_adjustment,
                 gradient, loss[row]);
      }
      CheckSameByThreads({loss, gradient.own, gradient.shared}, &before, "binary cross-entropy");
    }
    CheckLostLabels(shape, layer, labels, [&](const CsrView& wrong, const ParallelFor& pool) {
      Floats loss(shape.rows);
      Values gradient(layer);
      return Ints{static_cast<int32_t>(BinaryCrossentropy(
          active, by_own, wrong, loss.data(), gradient.own.data(), gradient.shared.data(), pool))};
    });
  }
}

void CheckBinaryCrossentropy() { ForLayers(35, CheckLayer); }

const Checks kChecks = {CheckBinaryCrossentropy};

}  // namespace
}  // namespace dslide
