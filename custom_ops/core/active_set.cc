#include "custom_ops/core/active_set.h"

#include <algorithm>
#include <atomic>
#include <cmath>
#include <limits>

#include "custom_ops/core/random.h"

namespace dslide {
namespace {

// Rough nanoseconds of looking at one id.
constexpr int64_t kLook = 1;

}  // namespace

std::string CheckSplits(const int64_t* splits, int64_t rows, int64_t size) {
  if (splits[0] != 0 || splits[rows] != size) {
    return "row_splits must run from 0 to the number of ids, " + std::to_string(size) +
           "; received " + std::to_string(splits[0]) + " to " + std::to_string(splits[rows]);
  }
  for (int64_t row = 0; row < rows; ++row) {
    if (splits[row + 1] < splits[row]) {
      return "row_splits must not fall; received " + std::to_string(splits[row]) + " and then " +
             std::to_string(splits[row + 1]) + " at row " + std::to_string(row);
    }
  }
  return "";
}

std::string CanonicalLabels(const int64_t* splits, int64_t rows, const int64_t* values,
                            int64_t size, int64_t units, Csr* labels) {
  std::string error = CheckSplits(splits, rows, size);
  if (!error.empty()) return error;
  labels->splits.assign(rows + 1, 0);
  labels->ids.clear();
  labels->ids.reserve(size);
  for (int64_t row = 0; row < rows; ++row) {
    const size_t begin = labels->ids.size();
    for (int64_t j = splits[row]; j < splits[row + 1]; ++j) {
      if (values[j] == -1) continue;
      if (values[j] < 0 || values[j] >= units) {
        return "row " + std::to_string(row) + " has label " + std::to_string(values[j]) +
               ", which is outside [0, " + std::to_string(units) +
               "); labels number the layer's units from 0, and -1 pads";
      }
      labels->ids.push_back(static_cast<int32_t>(values[j]));
    }
    const auto first = labels->ids.begin() + begin;
    std::sort(first, labels->ids.end());
    labels->ids.erase(std::unique(first, labels->ids.end()), labels->ids.end());
    labels->splits[row + 1] = labels->ids.size();
  }
  return "";
}

namespace {

// One branch-free pass, so that checking costs little beside using; the caller looks closer when it
// fails.
bool IdsAreSound(const int64_t* splits, int64_t rows, const int32_t* ids, int64_t size,
                 int64_t units, bool strictly, const ParallelFor& parallel) {
  const uint32_t limit = static_cast<uint32_t>(units);
  std::atomic<bool> sound{true};
  parallel(rows, 1 + kLook * size / std::max<int64_t>(1, rows), [&](int64_t begin, int64_t end) {
    uint32_t bad = 0;
    for (int64_t j = splits[begin]; j < splits[end]; ++j) {
      bad |= static_cast<uint32_t>(ids[j]) >= limit;
    }
    for (int64_t row = begin; row < end; ++row) {
      const int64_t first = splits[row] + 1, last = splits[row + 1];
      if (strictly) {
        for (int64_t j = first; j < last; ++j) bad |= ids[j] <= ids[j - 1];
      } else {
        for (int64_t j = first; j < last; ++j) bad |= ids[j] < ids[j - 1];
      }
    }
    if (bad != 0) sound = false;
  });
  return sound;
}

}  // namespace

std::string CheckCsr(const int64_t* splits, int64_t rows, const int32_t* ids, int64_t size,
                     int64_t units, bool strictly, const ParallelFor& parallel) {
  std::string error = CheckSplits(splits, rows, size);
  if (!error.empty()) return error;
  if (IdsAreSound(splits, rows, ids, size, units, strictly, parallel)) return "";
  for (int64_t row = 0; row < rows; ++row) {
    for (int64_t j = splits[row]; j < splits[row + 1]; ++j) {
      if (ids[j] < 0 || ids[j] >= units) {
        return "row " + std::to_string(row) + " has id " + std::to_string(ids[j]) +
               ", which is outside [0, " + std::to_string(units) + ")";
      }
      if (j > splits[row] && (strictly ? ids[j] <= ids[j - 1] : ids[j] < ids[j - 1])) {
        return "ids must ascend in each row; row " + std::to_string(row) + " has " +
               std::to_string(ids[j - 1]) + " and then " + std::to_string(ids[j]);
      }
    }
  }
  return "";
}

Membership::Membership(const IdList& list)
    : list_(list), limit_(list.count > 0 ? int64_t{list.ids[list.count - 1]} + 1 : 0) {
  bits_.assign((limit_ + 63) / 64, 0);
  for (const int32_t id : list_) bits_[id >> 6] |= uint64_t{1} << (id & 63);
}

bool IsSound(const CscView& view, int64_t rows, int64_t entries) {
  if (view.splits[0] != 0 || view.splits[view.count] != entries) return false;
  for (int64_t u = 0; u < view.count; ++u) {
    if (view.length(u) < 0 || view.neurons[u] < 0) return false;
    if (u > 0 && view.neurons[u] <= view.neurons[u - 1]) return false;
  }
  std::vector<bool> named(entries);
  for (int64_t e = 0; e < entries; ++e) {
    const int64_t row = view.entry_row[e], index = view.entry_index[e];
    if (row < 0 || row >= rows || index < 0 || index >= entries || named[index]) return false;
    named[index] = true;
  }
  int64_t before = -1;
  for (const int32_t place : view.shared_places) {
    if (place <= before || place >= view.count) return false;
    before = place;
  }
  return true;
}

SharedNeurons SampleNeurons(int64_t units, int64_t count, const IdList& fixed,
                            Distribution distribution, uint64_t seed) {
  count = std::min(fixed.count + count, units);
  std::vector<uint64_t> taken((units + 63) / 64, 0);
  SharedNeurons result;
  std::vector<int32_t>& ids = result.ids;
  ids.reserve(count);
  const double log_range = std::log1p(static_cast<double>(units));
  auto take = [&](int64_t id) {
    uint64_t& word = taken[id >> 6];
    const uint64_t bit = uint64_t{1} << (id & 63);
    if (word & bit) return;
    word |= bit;
    ids.push_back(static_cast<int32_t>(id));
  };
  auto draw = [&](uint64_t random) -> int64_t {
    if (distribution == Distribution::kUniform) return Below(random, units);
    return std::min<int64_t>(units - 1, std::expm1(Unit(random) * log_range));
  };
  for (const int32_t id : fixed) take(id);
  // Past this many draws nearly all are taken; the rest comes in order from a random place.
  const int64_t attempts = 64 * count;
  for (int64_t a = 0; a < attempts && static_cast<int64_t>(ids.size()) < count; ++a) {
    take(draw(Mix(seed, a)));
  }
  const int64_t start = Below(Mix(seed), units);
  for (int64_t j = 0; j < units && static_cast<int64_t>(ids.size()) < count; ++j) {
    take((start + j) % units);
  }
  std::sort(ids.begin(), ids.end());
  result.drawn.assign(ids.size(), 1.0f);
  auto place = ids.begin();
  for (const int32_t id : fixed) {
    place = std::lower_bound(place, ids.end(), id);
    result.drawn[place - ids.begin()] = 0.0f;
  }
  return result;
}

std::vector<float> LogImportanceWeights(const CsrView& own, const IdList& shared,
                                        const float* drawn, int64_t units,
                                        const ParallelFor& parallel) {
  const Membership membership(shared);
  const int64_t all_drawn = std::count(drawn, drawn + shared.count, 1.0f);
  std::vector<float> result(own.rows, 0.0f);
  parallel(own.rows, 20 + own.size() / std::max<int64_t>(1, own.rows),
           [&](int64_t begin, int64_t end) {
             for (int64_t row = begin; row < end; ++row) {
               int64_t left_out = units - own.length(row) - (shared.count - all_drawn);
               int64_t standing = all_drawn;
               for (const int32_t* id = own.begin(row); id != own.end(row); ++id) {
                 if (!membership.Has(*id)) continue;
                 const bool by_chance = drawn[membership.PlaceOf(*id)] == 1.0f;
                 standing -= by_chance;
                 left_out += !by_chance;
               }
               if (standing == 0) continue;
               result[row] = static_cast<float>(std::log(static_cast<double>(left_out) / standing));
             }
           });
  return result;
}

namespace {

// Slabs small enough for their counters to stay in the cache, yet few enough to find their borders
// cheaply in every row. Whole words of bits.
int64_t SlabUnits(int64_t units) {
  constexpr int64_t kCounters = 32768, kMostSlabs = 64;
  return std::max(kCounters, (units + 64 * kMostSlabs - 1) / (64 * kMostSlabs) * 64);
}

}  // namespace

Transpose::Transpose(const CsrView& active, const IdList& shared, int64_t units,
                     const ParallelFor& parallel)
    : active_(active),
      shared_(shared),
      units_(units),
      slab_units_(SlabUnits(units)),
      slabs_((units + slab_units_ - 1) / slab_units_),
      seen_(slabs_ * slab_units_ / 64, 0),
      places_((slabs_ + 1) * active.rows),
      slab_entries_(slabs_ + 1, 0),
      slab_neurons_(slabs_ + 1, 0) {
  parallel(active.rows, slabs_ * 20, [&](int64_t begin, int64_t end) {
    for (int64_t row = begin; row < end; ++row) {
      const int32_t* first = active_.begin(row);
      for (int64_t slab = 0; slab <= slabs_; ++slab) {
        if (slab == slabs_) first = active_.end(row);
        first = std::lower_bound(first, active_.end(row), SlabBegin(slab),
                                 [](int32_t id, int64_t border) { return id < border; });
        places_[slab * active_.rows + row] = static_cast<int32_t>(first - active_.ids);
      }
    }
  });
  parallel(slabs_, 1 + active.size() / std::max<int64_t>(1, slabs_),
           [&](int64_t begin, int64_t end) {
             for (int64_t slab = begin; slab < end; ++slab) LookAt(slab);
           });
  for (int64_t slab = 0; slab < slabs_; ++slab) {
    slab_entries_[slab + 1] += slab_entries_[slab];
    slab_neurons_[slab + 1] += slab_neurons_[slab];
  }
  count_ = slab_neurons_[slabs_];
}

void Transpose::LookAt(int64_t slab) {
  uint64_t* words = &seen_[slab * slab_units_ / 64];
  int64_t entries = 0, neurons = 0;
  auto see = [&](int64_t j) {
    uint64_t& word = words[j >> 6];
    const uint64_t bit = uint64_t{1} << (j & 63);
    neurons += (word & bit) == 0;
    word |= bit;
  };
  ForEntries(slab, [&](int64_t, int32_t, int64_t j) {
    ++entries;
    see(j);
  });
  for (const int32_t* id = FirstShared(slab); id != FirstShared(slab + 1); ++id) {
    see(*id - SlabBegin(slab));
  }
  slab_entries_[slab + 1] = entries;
  slab_neurons_[slab + 1] = neurons;
}

void Transpose::WriteSlab(int64_t slab, int32_t* neurons, int64_t* splits, int32_t* entry_row,
                          int32_t* entry_index, int32_t* shared_places,
                          std::vector<int32_t>* counters) const {
  int32_t* next = counters->data();  // entries of a neuron, later the place of its next one
  ForEntries(slab, [&](int64_t, int32_t, int64_t j) { ++next[j]; });
  const int32_t* shared = FirstShared(slab);
  const int32_t* shared_end = FirstShared(slab + 1);
  int64_t place = slab_entries_[slab], u = slab_neurons_[slab];
  ForNeurons(slab, [&](int64_t j) {
    neurons[u] = static_cast<int32_t>(SlabBegin(slab) + j);
    if (shared != shared_end && *shared == neurons[u]) {
      shared_places[shared++ - shared_.ids] = static_cast<int32_t>(u);
    }
    splits[u++] = place;
    const int32_t length = next[j];
    next[j] = static_cast<int32_t>(place);
    place += length;
  });
  ForEntries(slab, [&](int64_t row, int32_t e, int64_t j) {
    const int32_t to = next[j]++;
    entry_row[to] = static_cast<int32_t>(row);
    entry_index[to] = e;
  });
  ForNeurons(slab, [&](int64_t j) { next[j] = 0; });
}

void Transpose::Write(int32_t* neurons, int64_t* splits, int32_t* entry_row, int32_t* entry_index,
                      int32_t* shared_places, const ParallelFor& parallel) const {
  splits[count_] = slab_entries_[slabs_];
  parallel(slabs_, 1 + 3 * active_.size() / std::max<int64_t>(1, slabs_),
           [&](int64_t begin, int64_t end) {
             std::vector<int32_t> next(slab_units_, 0);  // zeros between slabs
             for (int64_t slab = begin; slab < end; ++slab) {
               WriteSlab(slab, neurons, splits, entry_row, entry_index, shared_places, &next);
             }
           });
}

}  // namespace dslide
