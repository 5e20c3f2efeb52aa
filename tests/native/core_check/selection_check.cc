#include <algorithm>
#include <iterator>

#include "custom_ops/core/hashing.h"
#include "custom_ops/core/selection.h"
#include "tests/native/core_check/check.h"

namespace dslide {
namespace {

// One for all queries: what one leaves behind must not show in the next.
const LshScratch& Scratch() {
  static const LshScratch scratch;
  return scratch;
}

void CheckSelected(const Shape& shape, const LshQuery& query, const Csr& labels) {
  Csr first;
  for (const ParallelFor& pool : kPools) {
    bool sound = false;
    const Csr got = SelectFromTables(query, labels.view(), Scratch(), pool, &sound);
    const CsrView own = got.view();
    Check(sound, "sound tables");
    Check(CheckCsr(own.splits, shape.rows, own.ids, got.ids.size(), shape.units, true, FourThreads)
              .empty(),
          shape.Name("selected CSR"));
    for (int64_t row = 0; row < shape.rows; ++row) {
      const int32_t *label = labels.view().begin(row), *last = labels.view().end(row);
      Check(std::includes(own.begin(row), own.end(row), label, last), shape.Name("labels"));
      Check(own.length(row) <= std::max(query.hashed, labels.view().length(row)),
            shape.Name("size of a row"));
      Ints added;
      std::set_difference(own.begin(row), own.end(row), label, last, std::back_inserter(added));
      Check(std::none_of(added.begin(), added.end(),
                         [&](int32_t id) {
                           return std::binary_search(query.excluded.begin(), query.excluded.end(),
                                                     id);
                         }),
            shape.Name("excluded neurons"));
    }
    if (first.splits.empty()) first = got;
    CheckSame(first.splits, got.splits, "selected splits by threads");
    CheckSame(first.ids, got.ids, "selected ids by threads");
  }
}

// With `by_code` the neurons of a row follow from its codes alone: in another place they are the
// same.
void CheckSelectedByCode(const Shape& shape, LshQuery query) {
  query.by_code = true;
  bool sound = false;
  const Csr labels = {Longs(shape.rows + 1, 0), {}};
  const Csr there = SelectFromTables(query, labels.view(), Scratch(), FourThreads, &sound);
  Ints turned;
  for (int64_t row = shape.rows; row-- > 0;) {
    turned.insert(turned.end(), query.codes + row * query.tables,
                  query.codes + (row + 1) * query.tables);
  }
  query.codes = turned.data();
  const Csr back = SelectFromTables(query, labels.view(), Scratch(), Alone, &sound);
  for (int64_t row = 0; row < shape.rows; ++row) {
    const CsrView one = there.view(), other = back.view();
    const int64_t place = shape.rows - 1 - row;
    CheckSame(Ints(one.begin(row), one.end(row)), Ints(other.begin(place), other.end(place)),
              shape.Name("selected by code"));
  }
}

void CheckSelection() {
  Source source(9);
  for (const Shape& shape : kShapes) {
    for (int64_t tables : {0, 3, 254, 255, 300}) {
      const int64_t buckets = 4, rows = shape.rows, units = shape.units;
      Ints neuron_codes(units * tables), codes(rows * tables);
      for (int32_t& code : neuron_codes) code = source.Integer(buckets);
      for (int32_t& code : codes) code = source.Integer(buckets);
      Ints ptr(tables * (buckets + 1)), ids(tables * units);
      BuildTables(neuron_codes.data(), units, tables, buckets, ptr.data(), ids.data(), Alone);
      const Csr labels = source.Sets(rows, units, 3);
      const Ints excluded = source.Set(units, source.Integer(21));
      for (int64_t hashed : {int64_t{0}, int64_t{20}, units}) {
        for (int64_t bucket_size : {int64_t{1}, int64_t{7}, std::min<int64_t>(units, 200)}) {
          const LshQuery query = {units,      tables, buckets,     codes.data(),   ptr.data(),
                                  ids.data(), hashed, bucket_size, List(excluded), 11};
          CheckSelected(shape, query, labels);
          if (hashed == 20) CheckSelectedByCode(shape, query);
          if (bucket_size != 7) continue;
          LshQuery enough = query;
          enough.from_start = true;
          enough.min_collisions = 1 + source.Integer(4);
          CheckSelected(shape, enough, labels);
        }
      }
      if (rows == 0 || units < 60 || tables == 0) continue;  // too few for every bucket to hold one
      // Tables that are not sound, with more ids of one neuron than a counter holds.
      Ints broken(tables * units, static_cast<int32_t>(units));
      bool sound = true;
      const LshQuery query = {units,         tables, buckets, codes.data(), ptr.data(),
                              broken.data(), 5,      units,   {},           11};
      SelectFromTables(query, labels.view(), Scratch(), FourThreads, &sound);
      Check(!sound, "ids out of range are noticed");
      std::fill(broken.begin(), broken.end(), 0);
      SelectFromTables(query, labels.view(), Scratch(), FourThreads, &sound);
    }
  }
}

const Checks kChecks = {CheckSelection};

}  // namespace
}  // namespace dslide
