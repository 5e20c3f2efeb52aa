// Locality-sensitive hash families: vectors that point the same way get the same code often.

#ifndef TF_DSLIDE_CORE_HASHING_H_
#define TF_DSLIDE_CORE_HASHING_H_

#include <cstdint>
#include <string>
#include <vector>

#include "custom_ops/core/parallel.h"

namespace dslide {

// Signs of sparse random projections: P(one bit agrees) = 1 - angle / pi. Projection p of
// bits * tables takes the coordinates index[p * nonzeros + j] with the weights value[...].
struct SimHash {
  int64_t dim;
  int64_t bits;
  int64_t tables;
  int64_t nonzeros;
  const int32_t* index;
  const float* value;
};

// Random coordinates (distinct in a projection) and near-normal weights (the sum of twelve uniform
// integers: no library function, so one seed gives one result on every machine).
void MakeSimHash(uint64_t seed, int64_t dim, int64_t projections, int64_t nonzeros, int32_t* index,
                 float* value);

// Winner-take-all. A bin names `bin_size` coordinates (a power of two); its code is the place of
// the largest, the first of equals. Densified, bins whose coordinates are all 0 borrow the code of
// another bin, so that sparse and non-negative vectors still spread over all codes. A table joins
// the codes of `bins_per_table` bins, log2(bin_size) bits each, and folds them to `address_bits`.
struct Dwta {
  int64_t dim;
  int64_t bins_per_table;
  int64_t tables;
  int64_t bin_size;
  int64_t address_bits;
  const int32_t* index;  // (tables * bins_per_table, bin_size)
  bool densify = true;
};

// Signs of dense projections with an offset each. Projection p of bits * tables has the weights
// weights[p * (dim + 1) + ...], its offset last.
struct OffsetProjections {
  int64_t dim;
  int64_t bits;
  int64_t tables;
  const float* weights;
};

// Coordinates of the bins, cut from random permutations of all coordinates.
void MakeDwta(uint64_t seed, int64_t dim, int64_t bins, int64_t bin_size, int32_t* index);

// Densified one-permutation hashing of a vector's set: its `top` largest coordinates among those
// above 0, the lower one first of equals. A permutation of all coordinates is cut into bins; a
// bin's hash is the member of the set that comes first in it. An empty bin borrows from others of
// its permutation, which it asks in an order of its own, so that two sets agree in a bin with the
// probability of their Jaccard similarity. A table mixes `bins_per_table` hashes to `address_bits`.
struct MinHash {
  int64_t dim;
  int64_t top;
  int64_t bins_per_table;
  int64_t tables;
  int64_t bins_per_permutation;
  int64_t address_bits;
  const int32_t* place;  // (permutations, dim): where a permutation puts each coordinate
};

// As many permutations as hold the bins of all tables.
int64_t MinHashPermutations(int64_t bins, int64_t bins_per_permutation);
void MakeMinHash(uint64_t seed, int64_t dim, int64_t permutations, int32_t* place);

// Codes (n, tables) of n vectors. Return an empty string, or which vector is not finite.
std::string SimHashCodes(const SimHash& hash, const float* x, int64_t n, int32_t* codes,
                         const ParallelFor& parallel);
std::string ProjectionCodes(const OffsetProjections& hash, const float* x, int64_t n,
                            int32_t* codes, const ParallelFor& parallel);
std::string DwtaCodes(const Dwta& hash, const float* x, int64_t n, int32_t* codes,
                      const ParallelFor& parallel);
std::string MinHashCodes(const MinHash& hash, const float* x, int64_t n, int32_t* codes,
                         const ParallelFor& parallel);

// Hash tables in CSR from the codes (n, tables) of n neurons: bucket b of table t holds
// neuron_ids[t * n + bucket_ptr[t * (buckets + 1) + b]] and following, ascending. A counting sort,
// in parallel over tables. Returns an empty string, or which code is outside [0, buckets).
std::string BuildTables(const int32_t* codes, int64_t n, int64_t tables, int64_t buckets,
                        int32_t* bucket_ptr, int32_t* neuron_ids, const ParallelFor& parallel);

// What a bucket that is longer than wanted keeps: any of its neurons with equal probability, or
// those that came last.
enum class BucketPolicy { kReservoir, kFifo };

// Reorders the neurons of each bucket so that the first m of them are those that a bucket with m
// places would keep, whatever m is. Returns an empty string, or which table has wrong borders.
std::string ArrangeBuckets(const int32_t* bucket_ptr, int64_t tables, int64_t buckets, int64_t n,
                           BucketPolicy policy, uint64_t seed, int32_t* neuron_ids,
                           const ParallelFor& parallel);

}  // namespace dslide

#endif  // TF_DSLIDE_CORE_HASHING_H_
