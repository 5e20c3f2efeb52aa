// Active sets: for each sample the neurons that take part, as CSR with sorted unique ids.

#ifndef TF_DSLIDE_CORE_ACTIVE_SET_H_
#define TF_DSLIDE_CORE_ACTIVE_SET_H_

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

// Says what is wrong with a CSR that claims to hold ids in [0, units), ascending in each row
// (`strictly`: without repetition); empty if nothing is.
std::string CheckCsr(const int64_t* splits, int64_t rows, const int32_t* ids, int64_t size,
                     int64_t units, bool strictly);

struct LshQuery {
  int64_t units;
  int64_t tables;
  int64_t buckets;
  const int32_t* codes;       // (rows, tables)
  const int32_t* bucket_ptr;  // (tables, buckets + 1)
  const int32_t* neuron_ids;  // (tables, units)
  int64_t hashed;             // wanted number of a row's labels and neurons from the tables
  int64_t bucket_size;        // at most so many are taken from one bucket
  const int32_t* shared;      // neurons that every row receives besides
  int64_t shared_count;
  uint64_t seed;
};

// Active sets in which some neurons stand for others: `offsets` are to be added to the logits.
struct WeightedCsr {
  Csr csr;
  std::vector<float> offsets;
};

// Each row's labels and the neurons of the buckets that its codes name: those found in most tables
// first, until the row holds `hashed` of them. A bucket longer than `bucket_size` gives a window
// at a random offset. The shared neurons come last: each of the t that the row lacks stands for
// (units - h) / t of the units not among the row's h, and so has the logarithm of that as offset.
// If they are a uniform sample, the row's sum of exponentials is an unbiased estimate of the one
// over all units. Takes `units` bytes a thread and O(tables * bucket_size + units / 64) a row.
// Tables that hold an id outside [0, units), or one more often than once a table, leave `sound`
// false.
WeightedCsr SelectFromTables(const LshQuery& query, const CsrView& labels,
                             const ParallelFor& parallel, bool* sound);

enum class Distribution { kUniform, kLogUniform };

// `count` distinct neurons, ascending. kLogUniform prefers low ids: P(id) ~ log(1 + 1 / (id + 1)).
std::vector<int32_t> SampleNeurons(int64_t units, int64_t count, Distribution distribution,
                                   uint64_t seed);

// Each row's labels merged into one set shared by all rows.
Csr UnionWithLabels(const int32_t* shared, int64_t count, const CsrView& labels);

// The active sets of a batch seen from the neurons: neuron neurons[u] is active in the samples
// entry_row[e], at the places entry_index[e] of the CSR, for e in [splits[u], splits[u + 1]).
struct NeuronView {
  int64_t count;
  const int32_t* neurons;
  const int64_t* splits;
  const int32_t* entry_row;
  const int32_t* entry_index;

  int64_t size() const { return splits[count]; }
  int64_t length(int64_t u) const { return splits[u + 1] - splits[u]; }
};

// Says what is wrong with a view of `entries` entries in `rows` samples; empty if nothing is. That
// each entry has a place of its own is left to `EntriesAreDistinct`.
std::string CheckNeuronView(const NeuronView& view, int64_t rows, int64_t entries, int64_t units);

// Whether every place in [0, entries) is named once.
bool EntriesAreDistinct(const int32_t* entry_index, int64_t entries);

// The transpose of a CSR with ascending rows and ids in [0, units), by a counting sort that goes
// slab by slab of neurons so that its counters stay in the cache.
class Transpose {
 public:
  Transpose(const CsrView& active, int64_t units, const ParallelFor& parallel);

  // Number of distinct neurons.
  int64_t count() const { return count_; }

  // Fills arrays of count(), count() + 1, and twice the CSR's size.
  void Write(int32_t* neurons, int64_t* splits, int32_t* entry_row, int32_t* entry_index,
             const ParallelFor& parallel) const;

 private:
  int64_t SlabBegin(int64_t slab) const { return slab * slab_units_; }
  int64_t SlabSize(int64_t slab) const;
  int32_t FirstPlace(int64_t slab, int64_t row) const { return places_[slab * active_.rows + row]; }

  CsrView active_;
  int64_t units_;
  int64_t slab_units_;
  int64_t slabs_;
  int64_t count_;
  std::vector<int32_t> places_;        // (slabs + 1, rows): where a slab begins in a row
  std::vector<int64_t> slab_entries_;  // (slabs + 1): entries before a slab
  std::vector<int64_t> slab_neurons_;  // (slabs + 1): distinct neurons before a slab
};

}  // namespace dslide

#endif  // TF_DSLIDE_CORE_ACTIVE_SET_H_
