#include <algorithm>
#include <cmath>
#include <limits>

#include "custom_ops/core/hashing.h"
#include "tests/native/core_check/check.h"

namespace dslide {
namespace {

void CheckHashes() {
  Source source(4);
  for (int64_t dim : {1, 7, 8, 31, 200}) {
    for (int64_t n : {0, 1, 31, 32, 70}) {
      const int64_t bits = 3, tables = 11, nonzeros = (dim + 2) / 3;
      const int64_t projections = bits * tables;
      Ints index(projections * nonzeros);
      Floats value(projections * nonzeros), x = source.Array(n * dim);
      MakeSimHash(5, dim, projections, nonzeros, index.data(), value.data());
      const SimHash hash = {dim, bits, tables, nonzeros, index.data(), value.data()};
      Ints first;
      for (const ParallelFor& pool : kPools) {
        Ints codes(n * tables);
        Check(SimHashCodes(hash, x.data(), n, codes.data(), pool).empty(), "SimHashCodes");
        for (int64_t i = 0; i < n * projections; ++i) {
          const int64_t row = i / projections, p = i % projections;
          double sum = 0, size = 0;
          for (int64_t j = p * nonzeros; j < (p + 1) * nonzeros; ++j) {
            sum += double{value[j]} * x[row * dim + index[j]];
            size += std::abs(double{value[j]} * x[row * dim + index[j]]);
          }
          if (std::abs(sum) <= size * (nonzeros + 2) * kRounding && sum != 0) continue;
          const int32_t code = codes[row * tables + p / bits];
          Check((code >> p % bits & 1) == (sum > 0), "SimHash bit");
        }
        if (first.empty()) first = codes;
        CheckSame(first, codes, "SimHash by threads");
      }
      if (n == 0) continue;
      x[(n / 2) * dim] = std::numeric_limits<float>::quiet_NaN();
      Ints codes(n * tables);
      const std::string error = SimHashCodes(hash, x.data(), n, codes.data(), FourThreads);
      Check(error.find("row " + std::to_string(n / 2) + " ") == 0, "NaN is named: " + error);
    }
  }
}

// One code for equal sets, by all pools, and for vectors without a set the code 0.
void CheckMinHash() {
  Source source(16);
  for (int64_t dim : {1, 7, 64, 200}) {
    for (int64_t per_permutation : {1, 4, 300}) {
      const int64_t per_table = 3, tables = 5, top = 9, address_bits = 6;
      const int64_t count = MinHashPermutations(per_table * tables, per_permutation);
      Ints place(count * dim);
      MakeMinHash(7, dim, count, place.data());
      const MinHash hash = {dim,          top,         per_table, tables, per_permutation,
                            address_bits, place.data()};
      for (int64_t n : {0, 1, 33, 70}) {
        Floats x = source.Array(n * dim);
        for (int64_t i = 0; i < n; i += 3) {
          for (int64_t j = 0; j < dim; ++j) x[i * dim + j] = -std::abs(x[i * dim + j]);
        }
        for (int64_t i = 2; i < n; i += 3) {
          for (int64_t j = 0; j < dim; ++j) x[i * dim + j] = 2 * x[(i - 1) * dim + j];
        }
        Ints first;
        for (const ParallelFor& pool : kPools) {
          Ints codes(n * tables);
          Check(MinHashCodes(hash, x.data(), n, codes.data(), pool).empty(), "MinHashCodes");
          if (first.empty()) first = codes;
          CheckSame(first, codes, "MinHash by threads");
        }
        for (int64_t i = 0; i < n * tables; ++i) {
          const int64_t row = i / tables;
          Check(first[i] >= 0 && first[i] < 1 << address_bits, "MinHash range");
          if (row % 3 == 0) Check(first[i] == 0, "MinHash of no set");
          if (row % 3 == 2) Check(first[i] == first[i - tables], "MinHash of equal sets");
        }
      }
    }
  }
}

// The winner of each bin with values, for Dwta.
void CheckDwta() {
  Source source(6);
  for (int64_t dim : {1, 7, 8, 31, 200}) {
    int64_t bin_size = 8;
    while (bin_size > dim) bin_size /= 2;
    const int64_t per_table = 3, tables = 5, bins = per_table * tables;
    Ints index(bins * bin_size);
    MakeDwta(7, dim, bins, bin_size, index.data());
    for (int64_t n : {0, 1, 33, 70}) {
      Floats x = source.Array(n * dim);
      for (float& value : x) value = source.Integer(3) ? 0.0f : std::abs(value);
      for (int64_t address_bits : {0, 4, 9}) {
        const Dwta hash = {dim, per_table, tables, bin_size, address_bits, index.data()};
        Ints first;
        for (const ParallelFor& pool : kPools) {
          Ints codes(n * tables);
          Check(DwtaCodes(hash, x.data(), n, codes.data(), pool).empty(), "DwtaCodes");
          if (first.empty()) first = codes;
          CheckSame(first, codes, "DWTA by threads");
          for (int32_t code : codes) Check(code >= 0 && code < 1 << address_bits, "DWTA range");
          if (address_bits < 9) continue;
          for (int64_t i = 0; i < n * bins; ++i) {
            const float* row = x.data() + i / bins * dim;
            const int32_t* bin = index.data() + i % bins * bin_size;
            int64_t winner = 0;
            for (int64_t j = 1; j < bin_size; ++j) {
              if (row[bin[j]] > row[bin[winner]]) winner = j;
            }
            if (row[bin[winner]] == 0) continue;  // borrowed, or won by 0
            const int64_t bits = bin_size == 8 ? 3 : bin_size == 4 ? 2 : bin_size == 2 ? 1 : 0;
            const int64_t place = per_table - 1 - i % per_table;
            const int32_t code = codes[i / bins * tables + i % bins / per_table];
            Check((code >> bits * place & (bin_size - 1)) == winner, "DWTA winner");
          }
        }
      }
    }
  }
}

void CheckTables() {
  Source source(8);
  for (int64_t n : {0, 1, 100, 1000}) {
    for (int64_t tables : {1, 8, 9, 21}) {
      const int64_t buckets = 13;
      Ints codes(n * tables);
      for (int32_t& code : codes) code = source.Integer(buckets);
      for (const ParallelFor& pool : kPools) {
        Ints ptr(tables * (buckets + 1)), ids(tables * n);
        Check(BuildTables(codes.data(), n, tables, buckets, ptr.data(), ids.data(), pool).empty(),
              "BuildTables");
        for (int64_t t = 0; t < tables; ++t) {
          Ints expected;
          for (int64_t b = 0; b < buckets; ++b) {
            Check(ptr[t * (buckets + 1) + b] == static_cast<int32_t>(expected.size()),
                  "bucket_ptr");
            for (int64_t i = 0; i < n; ++i) {
              if (codes[i * tables + t] == b) expected.push_back(i);
            }
          }
          Check(ptr[t * (buckets + 1) + buckets] == n, "end of bucket_ptr");
          CheckSame(Ints(ids.begin() + t * n, ids.begin() + (t + 1) * n), expected, "neuron_ids");
        }
        if (n == 0) continue;
        for (const BucketPolicy policy : {BucketPolicy::kReservoir, BucketPolicy::kFifo}) {
          Ints arranged = ids;
          Check(ArrangeBuckets(ptr.data(), tables, buckets, n, policy, 5, arranged.data(), pool)
                    .empty(),
                "ArrangeBuckets");
          for (int64_t t = 0; t < tables; ++t) {
            for (int64_t b = 0; b < buckets; ++b) {
              const int32_t* border = ptr.data() + t * (buckets + 1) + b;
              std::sort(arranged.begin() + t * n + border[0], arranged.begin() + t * n + border[1]);
            }
          }
          CheckSame(arranged, ids, "arranged buckets hold the same");
        }
        Ints unsound = ptr;
        unsound[buckets] = -1;
        Check(ArrangeBuckets(unsound.data(), tables, buckets, n, BucketPolicy::kFifo, 5, ids.data(),
                             pool)
                      .find("table 0") != std::string::npos,
              "borders are checked");
        Ints wrong = codes;
        wrong[n / 2 * tables] = buckets;
        const std::string error =
            BuildTables(wrong.data(), n, tables, buckets, ptr.data(), ids.data(), pool);
        Check(error.find("neuron " + std::to_string(n / 2) + " ") == 0, "bad code: " + error);
      }
    }
  }
}

const Checks kChecks = {CheckHashes, CheckMinHash, CheckDwta, CheckTables};

}  // namespace
}  // namespace dslide
