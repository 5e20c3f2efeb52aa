// Active sets: for each sample the neurons that take part, as CSR with sorted unique ids.

#ifndef TF_DSLIDE_CORE_ACTIVE_SET_H_
#define TF_DSLIDE_CORE_ACTIVE_SET_H_

#include <algorithm>
#include <cstdint>
#include <string>
#include <vector>

#include "custom_ops/core/parallel.h"

namespace dslide {

// Row r holds ids[splits[r]] to ids[splits[r + 1]], ascending.
struct CsrView {
  int64_t rows;
  const int64_t* splits;
  const int32_t* ids;

  int64_t size() const { return splits[rows]; }
  int64_t length(int64_t row) const { return splits[row + 1] - splits[row]; }
  const int32_t* begin(int64_t row) const { return ids + splits[row]; }
  const int32_t* end(int64_t row) const { return ids + splits[row + 1]; }
};

// Ascending distinct ids, such as those of neurons that all rows of a batch share.
struct IdList {
  const int32_t* ids;
  int64_t count;

  const int32_t* begin() const { return ids; }
  const int32_t* end() const { return ids + count; }
};

// Finds out quickly that an id is not in a list, which is most often so.
class Membership {
 public:
  explicit Membership(const IdList& list);

  bool Has(int32_t id) const {
    return id < limit_ && (bits_[id >> 6] >> (id & 63) & uint64_t{1}) != 0;
  }
  // Where the list holds an id that it has.
  int64_t PlaceOf(int32_t id) const {
    return std::lower_bound(list_.begin(), list_.end(), id) - list_.begin();
  }

 private:
  IdList list_;
  int64_t limit_;
  std::vector<uint64_t> bits_;
};

// A CSR that owns its arrays.
struct Csr {
  std::vector<int64_t> splits;
  std::vector<int32_t> ids;

  CsrView view() const {
    return {static_cast<int64_t>(splits.size()) - 1, splits.data(), ids.data()};
  }
};

// Sorts each row's labels, drops repeated ones and the padding -1. Returns an empty string, or
// what is wrong: splits that do not rise from 0 to `size`, or a label outside [0, units).
std::string CanonicalLabels(const int64_t* splits, int64_t rows, const int64_t* values,
                            int64_t size, int64_t units, Csr* labels);

// Says what is wrong with splits that claim to cut `size` things into `rows` rows; empty if nothing
// is.
std::string CheckSplits(const int64_t* splits, int64_t rows, int64_t size);

// Says what is wrong with a CSR that claims to hold ids in [0, units), ascending in each row
// (`strictly`: without repetition); empty if nothing is.
std::string CheckCsr(const int64_t* splits, int64_t rows, const int32_t* ids, int64_t size,
                     int64_t units, bool strictly, const ParallelFor& parallel);

enum class Distribution { kUniform, kLogUniform };

// Neurons for all rows of a batch: ids[s] was drawn by chance if drawn[s] is 1, and not if it is 0.
struct SharedNeurons {
  std::vector<int32_t> ids;
  std::vector<float> drawn;
};

// The `fixed` neurons and `count` others drawn by chance, as far as there are so many, ascending.
// kLogUniform prefers low ids: P(id) ~ log(1 + 1 / (id + 1)).
SharedNeurons SampleNeurons(int64_t units, int64_t count, const IdList& fixed,
                            Distribution distribution, uint64_t seed);

// For each row the logarithm of the number of units that each shared neuron drawn by chance stands
// for: those that are neither the row's own nor shared without chance, divided by the number of
// drawn ones that are not the row's own. 0 where there is none. If the draw was uniform, the row's
// sum of exponentials with this added to the logits of those drawn is an unbiased estimate of the
// sum over all units. `drawn` holds 1 or 0 for each shared neuron.
std::vector<float> LogImportanceWeights(const CsrView& own, const IdList& shared,
                                        const float* drawn, int64_t units,
                                        const ParallelFor& parallel);

// The active sets of a batch seen from the neurons: neuron neurons[u] is active in the samples
// entry_row[e], at the places entry_index[e] of the CSR, for e in [splits[u], splits[u + 1]).
// Besides, the neurons at shared_places are active in all samples.
struct CscView {
  int64_t count;
  const int32_t* neurons;
  const int64_t* splits;
  const int32_t* entry_row;
  const int32_t* entry_index;
  IdList shared_places;  // in [0, count)

  int64_t size() const { return splits[count]; }
  int64_t length(int64_t u) const { return splits[u + 1] - splits[u]; }
  int64_t shared() const { return shared_places.count; }
  int32_t shared_neuron(int64_t s) const { return neurons[shared_places.ids[s]]; }
};

// Whether a view of `entries` entries in `rows` samples is one that `Transpose` could have written.
bool IsSound(const CscView& view, int64_t rows, int64_t entries);

// The transpose of a CSR with ascending rows and ids in [0, units), by a counting sort that goes
// slab by slab of neurons so that its counters stay in the cache. Shared neurons stand in the view
// too, without entries if no row has them as its own. Takes a bit a unit, and time for its entries
// and for units / 64.
class Transpose {
 public:
  Transpose(const CsrView& active, const IdList& shared, int64_t units,
            const ParallelFor& parallel);

  // Number of distinct neurons.
  int64_t count() const { return count_; }

  // Fills arrays of count(), count() + 1, twice the CSR's size, and the place of each shared
  // neuron in the view.
  void Write(int32_t* neurons, int64_t* splits, int32_t* entry_row, int32_t* entry_index,
             int32_t* shared_places, const ParallelFor& parallel) const;

 private:
  int64_t SlabBegin(int64_t slab) const { return slab * slab_units_; }
  int32_t FirstPlace(int64_t slab, int64_t row) const { return places_[slab * active_.rows + row]; }

  // The entries of a slab, by row: calls `use(row, entry, id - SlabBegin(slab))`.
  template <typename Use>
  void ForEntries(int64_t slab, const Use& use) const {
    const int32_t begin = static_cast<int32_t>(SlabBegin(slab));
    for (int64_t row = 0; row < active_.rows; ++row) {
      const int32_t last = FirstPlace(slab + 1, row);
      for (int32_t e = FirstPlace(slab, row); e < last; ++e) use(row, e, active_.ids[e] - begin);
    }
  }

  // The neurons of a slab, ascending: calls `use(id - SlabBegin(slab))`.
  template <typename Use>
  void ForNeurons(int64_t slab, const Use& use) const {
    const uint64_t* words = &seen_[slab * slab_units_ / 64];
    for (int64_t word = 0; word < slab_units_ / 64; ++word) {
      for (uint64_t bits = words[word]; bits != 0; bits &= bits - 1) {
        use(word * 64 + __builtin_ctzll(bits));
      }
    }
  }

  // Notes which neurons a slab has, and counts them and its entries.
  void LookAt(int64_t slab);

  // The shared neurons of a slab: [first, last) in their list.
  const int32_t* FirstShared(int64_t slab) const {
    return std::lower_bound(shared_.begin(), shared_.end(), SlabBegin(slab));
  }
  void WriteSlab(int64_t slab, int32_t* neurons, int64_t* splits, int32_t* entry_row,
                 int32_t* entry_index, int32_t* shared_places, std::vector<int32_t>* next) const;

  CsrView active_;
  IdList shared_;
  int64_t units_;
  int64_t slab_units_;
  int64_t slabs_;
  int64_t count_;
  std::vector<uint64_t> seen_;         // a bit a unit, whole words for each slab
  std::vector<int32_t> places_;        // (slabs + 1, rows): where a slab begins in a row
  std::vector<int64_t> slab_entries_;  // (slabs + 1): entries before a slab
  std::vector<int64_t> slab_neurons_;  // (slabs + 1): distinct neurons before a slab
};

}  // namespace dslide

#endif  // TF_DSLIDE_CORE_ACTIVE_SET_H_
