// Which neurons hashing picks: those of the buckets that the samples' codes name.

#ifndef TF_DSLIDE_CORE_SELECTION_H_
#define TF_DSLIDE_CORE_SELECTION_H_

#include <cstdint>
#include <memory>
#include <vector>

#include "custom_ops/core/active_set.h"
#include "custom_ops/core/parallel.h"

namespace dslide {

struct LshQuery {
  int64_t units;
  int64_t tables;
  int64_t buckets;
  const int32_t* codes;       // (rows, tables)
  const int32_t* bucket_ptr;  // (tables, buckets + 1)
  const int32_t* neuron_ids;  // (tables, units)
  int64_t hashed;             // wanted number of a row's labels and neurons from the tables
  int64_t bucket_size;        // at most so many are taken from one bucket
  IdList excluded;            // neurons that only a label can bring in
  uint64_t seed;
  bool from_start = false;     // long buckets give their first neurons, not a window anywhere
  int64_t min_collisions = 0;  // 0: those of most collisions first; else any with so many
  bool by_code = false;        // rows with equal codes get equal neurons, wherever they stand
};

// Counters of SelectFromTables that last from one call to the next: to clear them at each call
// would take longer than to select for a few rows. 9/8 bytes a unit for each thread that
// ever selected.
class LshScratch {
 public:
  LshScratch();
  ~LshScratch();

 private:
  friend Csr SelectFromTables(const LshQuery& query, const CsrView& labels,
                              const LshScratch& scratch, const ParallelFor& parallel, bool* sound);
  struct Selectors;
  std::unique_ptr<Selectors> selectors_;
};

// Each row's labels and the neurons of the buckets that its codes name: those found in most tables
// first, until the row holds `hashed` of them. With `min_collisions` given, the tables are looked
// up in a random order, another one for each row, and the neurons found in so many of them are
// taken as they come, until the row is full. Excluded neurons are passed over unless they are
// labels. A bucket longer than `bucket_size` gives a window at a random place, another one for each
// row or, `by_code`, the same for all. Takes O(tables * bucket_size + units / 4096) a row. Tables
// that hold an id outside [0, units), or one more often than once a table, leave `sound` false.
Csr SelectFromTables(const LshQuery& query, const CsrView& labels, const LshScratch& scratch,
                     const ParallelFor& parallel, bool* sound);

}  // namespace dslide

#endif  // TF_DSLIDE_CORE_SELECTION_H_
