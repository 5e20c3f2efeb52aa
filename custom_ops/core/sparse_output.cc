#include "custom_ops/core/sparse_output.h"

#include <algorithm>

namespace dslide {

template <typename Own, typename Shared>
void SparseOutput::ForEntries(int64_t row, const Own& own, const Shared& shared) const {
  const int64_t last = active_.own.splits[row + 1], count = active_.shared.count;
  const int32_t* ids = active_.own.ids;
  const int32_t* shared_ids = active_.shared.ids;
  const float* shared_values = active_.shared_logits + row * count;
  int64_t s = 0;
  auto shared_before = [&](int32_t limit) {
    for (; s < count && shared_ids[s] < limit; ++s) {
      if (keep_zeros_ || shared_values[s] != 0.0f) shared(s, shared_ids[s]);
    }
  };
  for (int64_t e = active_.own.splits[row]; e < last; ++e) {
    shared_before(ids[e]);
    if (s < count && shared_ids[s] == ids[e]) ++s;
    if (keep_zeros_ || active_.logits[e] != 0.0f) own(e, ids[e]);
  }
  for (; s < count; ++s) {
    if (keep_zeros_ || shared_values[s] != 0.0f) shared(s, shared_ids[s]);
  }
}

int64_t SparseOutput::RowCost() const {
  const CsrView& own = active_.own;
  return 5 + 2 * (active_.shared.count + own.size() / std::max<int64_t>(1, own.rows));
}

SparseOutput::SparseOutput(const ActiveSets& active, bool keep_zeros, const ParallelFor& parallel)
    : active_(active), keep_zeros_(keep_zeros), splits_(active.own.rows + 1, 0) {
  parallel(active_.own.rows, RowCost(), [&](int64_t begin, int64_t end) {
    for (int64_t row = begin; row < end; ++row) {
      int64_t count = 0;
      const auto seen = [&](int64_t, int32_t) { ++count; };
      ForEntries(row, seen, seen);
      splits_[row + 1] = count;
    }
  });
  for (size_t row = 1; row < splits_.size(); ++row) splits_[row] += splits_[row - 1];
}

void SparseOutput::Write(int64_t* indices, float* values, const ParallelFor& parallel) const {
  parallel(active_.own.rows, RowCost(), [&](int64_t begin, int64_t end) {
    for (int64_t row = begin; row < end; ++row) {
      int64_t at = splits_[row];
      const auto put = [&](int32_t id, float value) {
        indices[2 * at] = row;
        indices[2 * at + 1] = id;
        values[at++] = value;
      };
      const float* shared_values = active_.shared_logits + row * active_.shared.count;
      ForEntries(
          row, [&](int64_t e, int32_t id) { put(id, active_.logits[e]); },
          [&](int64_t s, int32_t id) { put(id, shared_values[s]); });
    }
  });
}

void SparseOutput::Spread(const float* entries, float* own, float* shared,
                          const ParallelFor& parallel) const {
  const CsrView& sets = active_.own;
  const int64_t count = active_.shared.count;
  parallel(sets.rows, RowCost(), [&](int64_t begin, int64_t end) {
    std::fill(own + sets.splits[begin], own + sets.splits[end], 0.0f);
    std::fill(shared + begin * count, shared + end * count, 0.0f);
    for (int64_t row = begin; row < end; ++row) {
      const float* next = entries + splits_[row];
      ForEntries(
          row, [&](int64_t e, int32_t) { own[e] = *next++; },
          [&](int64_t s, int32_t) { shared[row * count + s] = *next++; });
    }
  });
}

}  // namespace dslide
