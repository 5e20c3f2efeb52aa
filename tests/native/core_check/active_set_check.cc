#include <algorithm>
#include <cmath>
#include <limits>
#include <set>
#include <utility>

#include "custom_ops/core/active_set.h"
#include "tests/native/core_check/check.h"
#include "tests/native/core_check/layer.h"

namespace dslide {
namespace {

void CheckMembership() {
  for (const Ints& ids : {Ints{}, {0}, {63}, {64}, {0, 63, 64, 200}, {5, 6, 7}}) {
    const Membership membership(List(ids));
    for (int32_t id = 0; id < 300; ++id) {
      const auto place = std::find(ids.begin(), ids.end(), id);
      Check(membership.Has(id) == (place != ids.end()), "Membership");
      if (place != ids.end()) Check(membership.PlaceOf(id) == place - ids.begin(), "PlaceOf");
    }
  }
}

void CheckLabels() {
  const Longs splits = {0, 4, 4, 6}, values = {3, -1, 0, 3, -1, 4};
  Csr labels;
  Check(CanonicalLabels(splits.data(), 3, values.data(), 6, 5, &labels).empty(), "labels");
  CheckSame(labels.ids, Ints{0, 3, 4}, "sorted labels");
  CheckSame(labels.splits, Longs{0, 2, 2, 3}, "splits of labels");
  for (int64_t bad : {int64_t{5}, int64_t{-2}, std::numeric_limits<int64_t>::min(),
                      std::numeric_limits<int64_t>::max()}) {
    Longs wrong = values;
    wrong[5] = bad;
    const std::string error = CanonicalLabels(splits.data(), 3, wrong.data(), 6, 5, &labels);
    Check(error.find("row 2 has label " + std::to_string(bad)) == 0, error);
  }
  for (const Longs& wrong :
       {Longs{0, 4, 3, 6}, {1, 4, 4, 6}, {0, 4, 4, 5}, {0, -9, 4, 6}, {0, 9, 9, 6}}) {
    Check(!CanonicalLabels(wrong.data(), 3, values.data(), 6, 5, &labels).empty(), "bad splits");
    Check(
        !CheckCsr(wrong.data(), 3, Ints{0, 1, 2, 3, 0, 1}.data(), 6, 9, true, FourThreads).empty(),
        "CSR");
  }
  const Ints repeated = {0, 1, 1, 2, 0, 1};
  Check(CheckCsr(splits.data(), 3, repeated.data(), 6, 3, false, FourThreads).empty(),
        "repeated ids");
  Check(!CheckCsr(splits.data(), 3, repeated.data(), 6, 3, true, FourThreads).empty(),
        "repeated ids, strictly");
  Check(!CheckCsr(splits.data(), 3, repeated.data(), 6, 2, false, FourThreads).empty(),
        "id out of range");
  Check(CheckSplits(splits.data(), 3, 6).empty(), "splits");
  Check(!CheckSplits(splits.data(), 3, 7).empty(), "splits of more");
}

void CheckSamples() {
  Source source(12);
  for (Distribution distribution : {Distribution::kUniform, Distribution::kLogUniform}) {
    for (int64_t units : {1, 63, 64, 65, 5000}) {
      for (int64_t count : {int64_t{0}, int64_t{1}, units / 2, units, units + 9}) {
        for (int64_t fixed_count : {int64_t{0}, int64_t{1}, units / 3, units}) {
          const Ints fixed = source.Set(units, fixed_count);
          const SharedNeurons got = SampleNeurons(units, count, List(fixed), distribution, 12);
          const int64_t size = got.ids.size(), bounds[] = {0, size};
          Check(size == std::min(units, fixed_count + count), "number of samples");
          Check(CheckCsr(bounds, 1, got.ids.data(), size, units, true, FourThreads).empty(),
                "distinct samples");
          Ints given;
          for (size_t s = 0; s < got.drawn.size(); ++s) {
            Check(got.drawn[s] == 0 || got.drawn[s] == 1, "drawn or not");
            if (got.drawn[s] == 0) given.push_back(got.ids[s]);
          }
          Check(got.drawn.size() == got.ids.size(), "a mark for each sample");
          CheckSame(given, fixed, "fixed neurons");
        }
      }
    }
  }
}

// What the shared neurons drawn by chance stand for.
void CheckLogImportanceWeights() {
  Source source(13);
  for (const Shape& shape : kShapes) {
    const Csr own = source.Sets(shape.rows, shape.units, 30);
    const CsrView view = own.view();
    for (int64_t count : {int64_t{0}, int64_t{1}, shape.units / 2, shape.units}) {
      const SharedNeurons shared =
          SampleNeurons(shape.units, count, List(source.Set(shape.units, count / 3)),
                        Distribution::kUniform, source.Word());
      Doubles exact(shape.rows), bound(shape.rows);
      for (int64_t row = 0; row < shape.rows; ++row) {
        std::set<int32_t> certain(view.begin(row), view.end(row)), standing;
        for (size_t s = 0; s < shared.ids.size(); ++s) {
          const bool is_own = std::binary_search(view.begin(row), view.end(row), shared.ids[s]);
          if (!is_own) (shared.drawn[s] == 1 ? standing : certain).insert(shared.ids[s]);
        }
        const double left_out = shape.units - static_cast<double>(certain.size());
        exact[row] = standing.empty() ? 0 : std::log(left_out / standing.size());
        bound[row] = exact[row] * kRounding;
      }
      Floats first;
      for (const ParallelFor& pool : kPools) {
        const Floats got =
            LogImportanceWeights(view, List(shared.ids), shared.drawn.data(), shape.units, pool);
        CheckClose(got, exact, bound, shape.Name("LogImportanceWeights"));
        if (first.empty()) first = got;
        CheckSame(first, got, "shares by threads");
      }
    }
  }
}

void CheckTranspose(const Shape& shape, const Layer& layer) {
  const Csr& own = layer.own;
  const View one(layer, shape.units, Alone), four(layer, shape.units, FourThreads);
  CheckSame(one.neurons, four.neurons, shape.Name("neurons by threads"));
  CheckSame(one.splits, four.splits, shape.Name("neuron_splits by threads"));
  CheckSame(one.entry_row, four.entry_row, shape.Name("entry_row by threads"));
  CheckSame(one.entry_index, four.entry_index, shape.Name("entry_index by threads"));
  CheckSame(one.shared_places, four.shared_places, shape.Name("shared_places by threads"));
  const int64_t entries = own.ids.size();
  Check(IsSound(one.view(), shape.rows, entries), "a sound view");
  std::set<int32_t> neurons(own.ids.begin(), own.ids.end());
  neurons.insert(layer.shared.begin(), layer.shared.end());
  CheckSame(one.neurons, Ints(neurons.begin(), neurons.end()), shape.Name("neurons"));
  Ints shared;
  for (size_t s = 0; s < layer.shared.size(); ++s) shared.push_back(one.view().shared_neuron(s));
  CheckSame(shared, layer.shared, shape.Name("shared places"));
  std::vector<std::pair<int32_t, int32_t>> expected, got;  // (neuron, place)
  for (int64_t e = 0; e < entries; ++e) expected.emplace_back(own.ids[e], e);
  std::sort(expected.begin(), expected.end());
  for (size_t u = 0; u < one.neurons.size(); ++u) {
    for (int64_t e = one.splits[u]; e < one.splits[u + 1]; ++e) {
      got.emplace_back(one.neurons[u], one.entry_index[e]);
      const int64_t place = one.entry_index[e], row = one.entry_row[e];
      Check(own.splits[row] <= place && place < own.splits[row + 1], "row of an entry");
    }
  }
  Check(expected == got, shape.Name("transpose"));
}

void CheckWrong(const Shape& shape, const Layer& layer, const View& view, const std::string& what) {
  Check(!IsSound(view.view(), shape.rows, layer.own.ids.size()), "unsound view: " + what);
}

void CheckWrongViews(const Shape& shape, const Layer& layer) {
  const View sound(layer, shape.units, Alone);
  const int32_t entries = layer.own.ids.size(), count = sound.neurons.size();
  const auto with = [&](Ints View::* array, size_t place, int32_t value, const std::string& what) {
    if (place >= (sound.*array).size()) return;
    View wrong = sound;
    (wrong.*array)[place] = value;
    CheckWrong(shape, layer, wrong, what);
  };
  for (int32_t place : {-1, count}) with(&View::shared_places, 0, place, "a shared place");
  if (layer.shared.size() > 1) with(&View::shared_places, 1, sound.shared_places[0], "place twice");
  with(&View::neurons, 0, -1, "a neuron below 0");
  if (count > 1) with(&View::neurons, 1, sound.neurons[0], "a neuron twice");
  for (int32_t row : {-1, static_cast<int32_t>(shape.rows)}) {
    with(&View::entry_row, entries / 2, row, "row of an entry");
  }
  for (int32_t index : {-1, entries}) with(&View::entry_index, 0, index, "index of an entry");
  if (entries > 1) with(&View::entry_index, 0, sound.entry_index[1], "an entry twice");
  for (size_t u : {0, count / 2, count}) {
    View wrong = sound;
    wrong.splits[u] += u == 0 ? -1 : entries + 1;
    CheckWrong(shape, layer, wrong, "splits");
  }
}

void CheckViews() {
  ForLayers(30, [](const Shape& shape, const Layer& layer, Source*) {
    CheckTranspose(shape, layer);
    CheckWrongViews(shape, layer);
  });
}

const Checks kChecks = {CheckMembership, CheckLabels, CheckSamples, CheckLogImportanceWeights,
                        CheckViews};

}  // namespace
}  // namespace dslide
