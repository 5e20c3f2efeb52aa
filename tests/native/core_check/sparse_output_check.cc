#include <algorithm>
#include <map>

#include "custom_ops/core/sparse_output.h"
#include "tests/native/core_check/check.h"
#include "tests/native/core_check/layer.h"

namespace dslide {
namespace {

// A row's entries by the rule: own neurons with their values, others that are shared with theirs.
void CheckSparseRow(const Layer& layer, const Values& values, bool keep_zeros, int64_t row,
                    Longs* indices, Floats* entries) {
  std::map<int32_t, float> found;
  for (size_t s = 0; s < layer.shared.size(); ++s) {
    found[layer.shared[s]] = values.shared[row * layer.shared.size() + s];
  }
  const CsrView own = layer.own.view();
  for (int64_t e = own.splits[row]; e < own.splits[row + 1]; ++e) found[own.ids[e]] = values.own[e];
  for (const auto& [id, value] : found) {
    if (!keep_zeros && value == 0) continue;
    indices->insert(indices->end(), {row, id});
    entries->push_back(value);
  }
}

void CheckSparseOutput(const Shape& shape, const Layer& layer, Source* source) {
  const Values values(layer, source, 1);
  for (bool keep_zeros : {false, true}) {
    Longs indices;
    Floats entries;
    for (int64_t row = 0; row < shape.rows; ++row) {
      CheckSparseRow(layer, values, keep_zeros, row, &indices, &entries);
    }
    for (const ParallelFor& pool : kPools) {
      const SparseOutput output(values.Of(layer), keep_zeros, pool);
      Longs got_indices(2 * output.size());
      Floats got(output.size());
      output.Write(got_indices.data(), got.data(), pool);
      CheckSame(got_indices, indices, shape.Name("SparseOutput's indices"));
      CheckSame(got, entries, shape.Name("SparseOutput's values"));
      // Sent back, the entries are the values, but 0 for a shared neuron that is the row's own.
      Values back(layer);
      output.Spread(got.data(), back.own.data(), back.shared.data(), pool);
      CheckSame(back.own, values.own, shape.Name("Spread to own neurons"));
      for (size_t j = 0; j < back.shared.size(); ++j) {
        const CsrView own = layer.own.view();
        const int64_t row = j / layer.shared.size();
        const int32_t id = layer.shared[j % layer.shared.size()];
        const bool hidden = std::binary_search(own.begin(row), own.end(row), id);
        Check(back.shared[j] == (hidden ? 0.0f : values.shared[j]),
              shape.Name("Spread to shared neurons"));
      }
    }
  }
}

void CheckSparseOutputs() { ForLayers(33, CheckSparseOutput); }

const Checks kChecks = {CheckSparseOutputs};

}  // namespace
}  // namespace dslide
