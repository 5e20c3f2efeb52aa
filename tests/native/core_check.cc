// Runs every function of the core on odd shapes, with four threads and with one, against plain
// loops in double precision. Includes nothing but the core, so that sanitizers see all that runs.
//
// Arrays have exactly the size that the core may touch: AddressSanitizer finds the first float past
// the end. Ends with 1 and one line for each failure.

#include <algorithm>
#include <atomic>
#include <cmath>
#include <cstdio>
#include <cstring>
#include <iterator>
#include <limits>
#include <map>
#include <set>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "custom_ops/core/active_set.h"
#include "custom_ops/core/dense_scan.h"
#include "custom_ops/core/hashing.h"
#include "custom_ops/core/parallel.h"
#include "custom_ops/core/projection_learning.h"
#include "custom_ops/core/random.h"
#include "custom_ops/core/selection.h"
#include "custom_ops/core/simd.h"
#include "custom_ops/core/softmax.h"
#include "custom_ops/core/sparse_linear.h"
#include "custom_ops/core/sparse_output.h"
#include "custom_ops/core/sparse_products.h"

namespace dslide {
namespace {

using Floats = std::vector<float>;
using Doubles = std::vector<double>;
using Ints = std::vector<int32_t>;

int64_t checks = 0, failures = 0;

void Check(bool holds, const std::string& what) {
  ++checks;
  if (holds) return;
  ++failures;
  std::printf("FAILED: %s\n", what.c_str());
}

// One rounding of a float, relative.
constexpr double kRounding = 1.0 / (1 << 24);

// |actual - expected| <= bound at every place.
void CheckClose(const Floats& actual, const Doubles& expected, const Doubles& bound,
                const std::string& what) {
  bool holds = actual.size() == expected.size();
  for (size_t i = 0; holds && i < actual.size(); ++i) {
    holds = std::abs(actual[i] - expected[i]) <= bound[i];
    if (!holds) {
      std::printf("%s: %g at %zu, expected %g within %g\n", what.c_str(), actual[i], i, expected[i],
                  bound[i]);
    }
  }
  Check(holds, what);
}

template <typename T>
void CheckSame(const std::vector<T>& one, const std::vector<T>& two, const std::string& what) {
  Check(one.size() == two.size() &&
            (one.empty() || std::memcmp(one.data(), two.data(), one.size() * sizeof(T)) == 0),
        what);
}

void Alone(int64_t total, int64_t, const std::function<void(int64_t, int64_t)>& work) {
  if (total > 0) work(0, total);
}

// Ranges of uneven length, taken by whichever thread is free.
void FourThreads(int64_t total, int64_t, const std::function<void(int64_t, int64_t)>& work) {
  if (total <= 0) return;
  std::vector<int64_t> borders = {0};
  for (int64_t length = 1; borders.back() < total; length = length * 2 % 37 + 1) {
    borders.push_back(std::min(total, borders.back() + length * (1 + total / 100)));
  }
  std::atomic<size_t> next{0};
  auto run = [&] {
    for (size_t i = next++; i + 1 < borders.size(); i = next++) work(borders[i], borders[i + 1]);
  };
  std::vector<std::thread> threads;
  for (int t = 0; t < 4; ++t) threads.emplace_back(run);
  for (std::thread& thread : threads) thread.join();
}

const std::vector<ParallelFor> kPools = {Alone, FourThreads};

class Source {
 public:
  explicit Source(uint64_t seed) : seed_(seed) {}
  uint64_t Word() { return Mix(seed_, count_++); }
  int64_t Integer(int64_t n) { return Below(Word(), n); }
  // In [-1, 1), and now and then 0.
  float Float() { return Integer(8) == 0 ? 0.0f : static_cast<float>(2 * Unit(Word()) - 1); }
  Floats Array(int64_t size) {
    Floats result(size);
    for (float& value : result) value = Float();
    return result;
  }
  // Rows of at most `most` distinct ascending ids.
  Csr Sets(int64_t rows, int64_t units, int64_t most) {
    Csr result;
    result.splits = {0};
    for (int64_t row = 0; row < rows; ++row) {
      std::set<int32_t> ids;
      for (int64_t j = Integer(most + 1); j > 0; --j) ids.insert(Integer(units));
      result.ids.insert(result.ids.end(), ids.begin(), ids.end());
      result.splits.push_back(result.ids.size());
    }
    result.ids.shrink_to_fit();
    return result;
  }
  // `count` distinct ascending ids.
  Ints Set(int64_t units, int64_t count) {
    return SampleNeurons(units, count, {}, Distribution::kUniform, Word()).ids;
  }

 private:
  uint64_t seed_;
  uint64_t count_ = 0;
};

IdList List(const Ints& ids) { return {ids.data(), static_cast<int64_t>(ids.size())}; }

struct Shape {
  int64_t rows, units, d;
  std::string Name(const std::string& what) const {
    return what + " rows " + std::to_string(rows) + " units " + std::to_string(units) + " d " +
           std::to_string(d);
  }
};

const std::vector<Shape> kShapes = {
    {0, 5, 3},    {1, 1, 1},   {1, 64, 7},    {63, 65, 8},    {64, 63, 9},
    {65, 64, 31}, {7, 129, 1}, {130, 70, 33}, {33, 4099, 16}, {66, 300, 200},
};

// The small loops.
void CheckSimd() {
  const SimdKernels& simd = Simd();
  Source source(1);
  for (int64_t n : {1, 2, 3, 7, 8, 15, 16, 17, 31, 33, 100}) {
    const std::string name = " of " + std::to_string(n);
    Floats x = source.Array(n), out(n), doubled(n);
    for (float& value : x) value *= 40;
    const float top = simd.max(x.data(), n);
    Check(top == *std::max_element(x.begin(), x.end()), "max" + name);
    const float sum = simd.exp_sum(x.data(), n, top, out.data());
    Doubles exact(n), bound(n);
    double total = 0;
    for (int64_t i = 0; i < n; ++i) total += exact[i] = std::exp(double{x[i]} - top);
    for (int64_t i = 0; i < n; ++i) bound[i] = exact[i] * 3 * kRounding + 1e-37;
    // x - top is rounded before the exponential is taken.
    for (int64_t i = 0; i < n; ++i) bound[i] += exact[i] * std::abs(x[i] - top) * kRounding;
    CheckClose(out, exact, bound, "exp" + name);
    CheckClose({sum}, {total}, {total * (n + 60) * kRounding}, "exp_sum" + name);

    doubled = x;
    simd.add(x.data(), n, doubled.data());
    simd.scale(x.data(), n, 2.0f, out.data());
    CheckSame(out, doubled, "add and scale" + name);
    simd.scale(out.data(), n, 0.5f, out.data());
    CheckSame(out, x, "scale in place" + name);
    Check(simd.all_finite(x.data(), n), "all_finite" + name);
    Check(!simd.any_above(x.data(), x.data(), n), "any_above itself" + name);
    for (int64_t i = 0; i < n; ++i) {
      Floats other = x;
      other[i] = std::nextafter(x[i], 1000.0f);
      Check(simd.any_above(other.data(), x.data(), n), "any_above" + name);
      for (float bad :
           {std::numeric_limits<float>::quiet_NaN(), std::numeric_limits<float>::infinity(),
            -std::numeric_limits<float>::infinity()}) {
        other[i] = bad;
        Check(!simd.all_finite(other.data(), n), "all_finite with a bad value" + name);
      }
    }
  }
}

// Blocks of 16, one of them without any value that counts, against a loop.
void CheckBlockTops() {
  Source source(2);
  const Ints first = {0, 16, 48, 64};
  const Floats bias = source.Array(80);
  Floats x = source.Array(80);
  for (int i = 0; i < 80; i += 3) x[i] = i % 2 ? -0.0f : std::numeric_limits<float>::quiet_NaN();
  for (int i = 48; i < 64; ++i) x[i] = -0.0f;
  x[70] = 0.0f;
  for (const float* b : {static_cast<const float*>(nullptr), bias.data()}) {
    Floats expected, tops(first.size());
    for (int32_t begin : first) {
      float top = -std::numeric_limits<float>::infinity();
      for (int32_t i = begin; i < begin + 16; ++i) {
        const bool counts = !std::isnan(x[i]) && !(x[i] == 0 && std::signbit(x[i]));
        if (counts) top = std::max(top, x[i] + (b ? b[i] : 0.0f));
      }
      expected.push_back(top);
    }
    Simd().block_tops(x.data(), b, first.data(), static_cast<int64_t>(first.size()), tops.data());
    Check(tops == expected, "block_tops");
  }
}

// Layers of different sizes one after the other: a thread keeps its memory, which must suffice.
void CheckConnected() {
  const std::vector<int64_t> splits = {0, 1};
  const Ints feature = {0}, neuron = {3};
  const Floats value = {2}, weight = {0.5f};
  for (int64_t units : {17, 31, 5, 40}) {
    const Ints label = {static_cast<int32_t>(units - 1)};
    const SparseKernel connections = {
        {1, splits.data(), neuron.data()}, 1, weight.data(), nullptr, units};
    SparseLinearActive active;
    const SparseRows x = {{1, splits.data(), feature.data()}, value.data()};
    const CsrView labels = {1, splits.data(), label.data()};
    Check(SparseLinearSelect(x, connections, labels, 4, &active, Alone) == -1, "connected");
    Check(active.active.ids == Ints{3, label[0]}, "connected, active neurons");
    Check(active.logits == Floats{1, 0}, "connected, logits");
    Check(active.position == Ints{0} && active.place == Ints{0}, "connected, matches");
  }
}

// e^x over all that a softmax asks for.
void CheckExp() {
  Floats x, out;
  for (double value = -120; value <= 0; value += 0.00371) x.push_back(static_cast<float>(value));
  out.resize(x.size());
  Simd().exp_sum(x.data(), x.size(), 0, out.data());
  double worst = 0;
  for (size_t i = 0; i < x.size(); ++i) {
    const double exact = std::exp(double{x[i]});
    if (x[i] > -87) worst = std::max(worst, std::abs(out[i] - exact) / exact);
    if (x[i] < -88) Check(out[i] == 0, "exp vanishes");
  }
  Check(worst < 3 * kRounding, "exp: relative error " + std::to_string(worst / kRounding));
}

void CheckGemm() {
  Source source(2);
  for (int64_t m : {1, 3, 4, 6, 8, 13}) {
    for (int64_t n : {1, 7, 16, 33, 64}) {
      for (int64_t k : {0, 1, 5, 32}) {
        // a as it is and turned; b and c with room between their rows.
        const int64_t ldb = n + 3, ldc = n + 2;
        const Floats a = source.Array(m * k), b = source.Array(std::max<int64_t>(0, k * ldb - 3));
        const Floats before = source.Array(m * ldc - 2);
        for (bool turned : {false, true}) {
          for (bool accumulate : {false, true}) {
            Floats c = before;
            Simd().gemm(m, n, k, a.data(), turned ? 1 : k, turned ? m : 1, b.data(), ldb, c.data(),
                        ldc, accumulate);
            Doubles exact(before.begin(), before.end()), bound(before.size(), 0);
            for (int64_t i = 0; i < m; ++i) {
              for (int64_t j = 0; j < n; ++j) {
                double sum = accumulate ? before[i * ldc + j] : 0, size = std::abs(sum);
                for (int64_t l = 0; l < k; ++l) {
                  const double product = double{a[turned ? l * m + i : i * k + l]} * b[l * ldb + j];
                  sum += product;
                  size += std::abs(product);
                }
                exact[i * ldc + j] = sum;
                bound[i * ldc + j] = size * (k + 2) * kRounding;
              }
            }
            CheckClose(c, exact, bound, "gemm");
          }
        }
      }
    }
  }
}

void CheckColumns() {
  Source source(3);
  for (int64_t rows : {1, 5, 64}) {
    for (int64_t cols : {1, 8, 19, 64}) {
      const int64_t ld = cols + 1;
      Floats tile = source.Array(rows * ld - 1);
      for (float& value : tile) value *= 30;
      Floats top(cols, std::numeric_limits<float>::lowest()), sum(cols, 0);
      // In two steps, as tile follows tile.
      const int64_t half = (rows + 1) / 2;
      Simd().column_log_sum_exp(tile.data(), half, ld, cols, top.data(), sum.data());
      if (half < rows) {
        Simd().column_log_sum_exp(tile.data() + half * ld, rows - half, ld, cols, top.data(),
                                  sum.data());
      }
      const Floats scale = source.Array(cols);
      Floats softmax = tile;
      Simd().column_softmax(softmax.data(), rows, ld, cols, top.data(), scale.data());
      for (int64_t j = 0; j < cols; ++j) {
        float best = tile[j];
        for (int64_t i = 0; i < rows; ++i) best = std::max(best, tile[i * ld + j]);
        double total = 0;
        for (int64_t i = 0; i < rows; ++i) {
          const double e = std::exp(double{tile[i * ld + j]} - best);
          total += e;
          CheckClose({softmax[i * ld + j]}, {e * scale[j]}, {e * 80 * kRounding + 1e-37},
                     "column_softmax");
        }
        Check(top[j] == best, "column maximum");
        CheckClose({sum[j]}, {total}, {total * (rows + 80) * kRounding}, "column sum");
      }
      for (int64_t i = 0; i + 1 < rows; ++i) {
        Check(softmax[i * ld + cols] == tile[i * ld + cols], "column_softmax keeps its columns");
      }
    }
  }
}

// Hashing.
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

// Projections with offsets: their codes, and learning them.
void CheckProjections() {
  Source source(5);
  for (int64_t dim : {1, 7, 8, 31, 200}) {
    const int64_t bits = 3, tables = 5, projections = bits * tables;
    const Floats weights = source.Array(projections * (dim + 1));
    for (int64_t n : {0, 1, 2, 33, 300}) {
      const Floats x = source.Array(n * dim), bias = source.Array(n);
      const OffsetProjections hash = {dim, bits, tables, weights.data()};
      Ints first;
      Floats first_learned;
      for (const ParallelFor& pool : kPools) {
        Ints codes(n * tables);
        Check(ProjectionCodes(hash, x.data(), n, codes.data(), pool).empty(), "ProjectionCodes");
        for (int64_t i = 0; i < n * projections; ++i) {
          const int64_t row = i / projections, p = i % projections;
          const float* w = weights.data() + p * (dim + 1);
          double sum = w[dim], size = std::abs(sum);
          for (int64_t j = 0; j < dim; ++j) {
            sum += double{w[j]} * x[row * dim + j];
            size += std::abs(double{w[j]} * x[row * dim + j]);
          }
          if (std::abs(sum) <= size * (dim + 2) * kRounding) continue;
          const int32_t code = codes[row * tables + p / bits];
          Check((code >> p % bits & 1) == (sum > 0), "bit of a projection");
        }
        if (first.empty()) first = codes;
        CheckSame(first, codes, "ProjectionCodes by threads");
        Floats q = weights, p = weights;
        const ProjectionLearning problem = {
            dim,  bits, tables, x.data(), std::min<int64_t>(n, 70), x.data(), bias.data(), n,
            true, 3,    0.1f,   9};
        LearnProjections(problem, q.data(), p.data(), pool);
        for (float value : q) Check(std::isfinite(value), "learned projections are finite");
        for (float value : p) Check(std::isfinite(value), "learned projections are finite");
        Check((n > 1) == (q != weights), "learning changes projections where it can");
        q.insert(q.end(), p.begin(), p.end());
        if (first_learned.empty()) first_learned = q;
        Check(first_learned == q, "LearnProjections by threads");
      }
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

// Active sets.
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
  const Csr labels = {std::vector<int64_t>(shape.rows + 1, 0), {}};
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

void CheckSelectedForBatch(const Shape& shape, const LshQuery& query) {
  Ints first;
  for (const ParallelFor& pool : kPools) {
    bool sound = false;
    const Ints got = SelectForBatch(query, shape.rows, pool, &sound);
    Check(sound, "sound tables");
    const int64_t size = got.size(), bounds[] = {0, size};
    Check(CheckCsr(bounds, 1, got.data(), size, shape.units, true, FourThreads).empty(),
          shape.Name("batch"));
    Check(std::includes(got.begin(), got.end(), query.excluded.begin(), query.excluded.end()),
          shape.Name("excluded neurons of the batch"));
    Check(size <= query.hashed + query.excluded.count, shape.Name("size of the batch's set"));
    if (&pool == &kPools[0]) first = got;
    CheckSame(first, got, "batch by threads");
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
        for (int64_t bucket_size : {int64_t{1}, int64_t{7}, units}) {
          const LshQuery query = {units,      tables, buckets,     codes.data(),   ptr.data(),
                                  ids.data(), hashed, bucket_size, List(excluded), 11};
          CheckSelected(shape, query, labels);
          if (hashed == 20) CheckSelectedByCode(shape, query);
          CheckSelectedForBatch(shape, query);
          if (bucket_size != 7) continue;
          LshQuery enough = query;
          enough.from_start = true;
          enough.least = 1 + source.Integer(4);
          CheckSelected(shape, enough, labels);
          CheckSelectedForBatch(shape, enough);
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

void CheckLabels() {
  const std::vector<int64_t> splits = {0, 4, 4, 6}, values = {3, -1, 0, 3, -1, 4};
  Csr labels;
  Check(CanonicalLabels(splits.data(), 3, values.data(), 6, 5, &labels).empty(), "labels");
  CheckSame(labels.ids, Ints{0, 3, 4}, "sorted labels");
  CheckSame(labels.splits, std::vector<int64_t>{0, 2, 2, 3}, "splits of labels");
  for (int64_t bad : {int64_t{5}, int64_t{-2}, std::numeric_limits<int64_t>::min(),
                      std::numeric_limits<int64_t>::max()}) {
    std::vector<int64_t> wrong = values;
    wrong[5] = bad;
    const std::string error = CanonicalLabels(splits.data(), 3, wrong.data(), 6, 5, &labels);
    Check(error.find("row 2 has label " + std::to_string(bad)) == 0, error);
  }
  for (const std::vector<int64_t>& wrong : {std::vector<int64_t>{0, 4, 3, 6},
                                            {1, 4, 4, 6},
                                            {0, 4, 4, 5},
                                            {0, -9, 4, 6},
                                            {0, 9, 9, 6}}) {
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
void CheckLogShares() {
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

struct Layer {
  Floats x, w, bias;
  Csr own;
  Ints shared;
  Floats coef, shared_coef;

  Layer(const Shape& shape, int64_t shared_count, Source* source)
      : x(source->Array(shape.rows * shape.d)),
        w(source->Array(shape.units * shape.d)),
        bias(source->Array(shape.units)),
        own(source->Sets(shape.rows, shape.units, 40)),
        shared(source->Set(shape.units, shared_count)),
        coef(source->Array(own.ids.size())),
        shared_coef(source->Array(shape.rows * shared.size())) {}

  GradientFactors parts(const Shape& shape) const {
    return {x.data(), shape.rows, shape.d, coef.data(), shared_coef.data()};
  }
};

// The view by neuron with arrays of its own.
struct View {
  Ints neurons, entry_row, entry_index, shared_places;
  std::vector<int64_t> splits;

  View(const Layer& layer, int64_t units, const ParallelFor& pool)
      : entry_row(layer.own.ids.size()),
        entry_index(layer.own.ids.size()),
        shared_places(layer.shared.size()) {
    const Transpose transpose(layer.own.view(), List(layer.shared), units, pool);
    neurons.resize(transpose.count());
    splits.resize(transpose.count() + 1);
    transpose.Write(neurons.data(), splits.data(), entry_row.data(), entry_index.data(),
                    shared_places.data(), pool);
  }
  CscView view() const {
    return {static_cast<int64_t>(neurons.size()),
            neurons.data(),
            splits.data(),
            entry_row.data(),
            entry_index.data(),
            List(shared_places)};
  }
};

void CheckTranspose(const Shape& shape, const Layer& layer) {
  const Csr& own = layer.own;
  const View one(layer, shape.units, Alone), four(layer, shape.units, FourThreads);
  CheckSame(one.neurons, four.neurons, shape.Name("neurons by threads"));
  CheckSame(one.splits, four.splits, shape.Name("neuron_splits by threads"));
  CheckSame(one.entry_row, four.entry_row, shape.Name("entry_row by threads"));
  CheckSame(one.entry_index, four.entry_index, shape.Name("entry_index by threads"));
  CheckSame(one.shared_places, four.shared_places, shape.Name("shared_places by threads"));
  const int64_t entries = own.ids.size();
  Check(CheckCscView(one.view(), shape.rows, entries, shape.units, FourThreads).empty(),
        "sound view");
  Check(EntriesAreDistinct(one.entry_index.data(), entries, FourThreads), "distinct entries");
  std::set<int32_t> neurons(own.ids.begin(), own.ids.end());
  neurons.insert(layer.shared.begin(), layer.shared.end());
  CheckSame(one.neurons, Ints(neurons.begin(), neurons.end()), shape.Name("neurons"));
  Ints shared;
  for (int32_t place : one.shared_places) shared.push_back(one.neurons[place]);
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

void CheckWrongViews(const Shape& shape, const Layer& layer) {
  const View sound(layer, shape.units, Alone);
  const int64_t entries = layer.own.ids.size();
  View wrong = sound;
  for (int64_t place : {int64_t{-1}, wrong.view().count}) {
    if (layer.shared.empty()) break;
    wrong.shared_places.back() = static_cast<int32_t>(place);
    Check(!CheckCscView(wrong.view(), shape.rows, entries, shape.units, FourThreads).empty(),
          "wrong place");
  }
  wrong = sound;
  if (layer.shared.size() > 1) {
    wrong.shared_places[0] = wrong.shared_places[1];
    Check(!CheckCscView(wrong.view(), shape.rows, entries, shape.units, FourThreads).empty(),
          "place twice");
  }
  if (entries < 2) return;
  wrong = sound;
  wrong.entry_index[0] = wrong.entry_index[1];
  Check(!EntriesAreDistinct(wrong.entry_index.data(), entries, FourThreads), "an entry twice");
  wrong.entry_index[0] = static_cast<int32_t>(entries);
  Check(!CheckCscView(wrong.view(), shape.rows, entries, shape.units, FourThreads).empty(),
        "wrong view");
}

// Sums of products with their error bounds.
struct Sums {
  Doubles exact, size;
  std::vector<int64_t> terms;

  explicit Sums(int64_t n) : exact(n), size(n), terms(n) {}
  void Add(int64_t i, double product) {
    exact[i] += product;
    size[i] += std::abs(product);
    ++terms[i];
  }
  // 16 more additions: sums may go by slabs.
  Doubles Bound() const {
    Doubles bound(exact.size());
    for (size_t i = 0; i < bound.size(); ++i) bound[i] = size[i] * (terms[i] + 18) * kRounding;
    return bound;
  }
};

// What the products of a layer must give.
struct Products {
  Sums logits, shared_logits, own_y, y, gradient, entry_sums;

  Products(const Shape& shape, const Layer& layer)
      : logits(layer.own.ids.size()),
        shared_logits(layer.shared_coef.size()),
        own_y(shape.rows * shape.d),
        y(shape.rows * shape.d),
        gradient(shape.units * shape.d),
        entry_sums(shape.units) {
    const int64_t shared = layer.shared.size();
    for (int64_t row = 0; row < shape.rows; ++row) {
      for (int64_t e = layer.own.splits[row]; e < layer.own.splits[row + 1]; ++e) {
        Add(layer, shape.d, row, layer.own.ids[e], layer.coef[e], e, &logits);
        for (int64_t i = 0; i < shape.d; ++i) {
          own_y.Add(row * shape.d + i,
                    double{layer.coef[e]} * layer.w[layer.own.ids[e] * shape.d + i]);
        }
      }
      for (int64_t s = 0; s < shared; ++s) {
        const int64_t at = row * shared + s;
        Add(layer, shape.d, row, layer.shared[s], layer.shared_coef[at], at, &shared_logits);
      }
    }
  }

 private:
  void Add(const Layer& layer, int64_t d, int64_t row, int64_t unit, double coef, int64_t at,
           Sums* to) {
    to->Add(at, layer.bias[unit]);
    entry_sums.Add(unit, coef);
    for (int64_t i = 0; i < d; ++i) {
      const double x = layer.x[row * d + i], w = layer.w[unit * d + i];
      to->Add(at, x * w);
      y.Add(row * d + i, coef * w);
      gradient.Add(unit * d + i, coef * x);
    }
  }
};

void CheckLogits(const Shape& shape, const Layer& layer, const Products& exact,
                 std::vector<Floats>* results, const ParallelFor& pool) {
  const View view(layer, shape.units, Alone);
  Floats logits(layer.own.ids.size()), shared_logits(layer.shared_coef.size());
  ActiveLogits(view.view(), layer.x.data(), layer.w.data(), layer.bias.data(), shape.d,
               logits.data(), pool);
  CheckClose(logits, exact.logits.exact, exact.logits.Bound(), shape.Name("ActiveLogits"));
  SharedLogits(view.view(), layer.x.data(), shape.rows, layer.w.data(), layer.bias.data(), shape.d,
               shared_logits.data(), pool);
  CheckClose(shared_logits, exact.shared_logits.exact, exact.shared_logits.Bound(),
             shape.Name("SharedLogits"));
  results->insert(results->end(), {logits, shared_logits});
  // A layer of biases that are 0 is one without.
  const Floats zeros(shape.units, 0.0f);
  Floats with(shared_logits), without(shared_logits);
  SharedLogits(view.view(), layer.x.data(), shape.rows, layer.w.data(), zeros.data(), shape.d,
               with.data(), pool);
  SharedLogits(view.view(), layer.x.data(), shape.rows, layer.w.data(), nullptr, shape.d,
               without.data(), pool);
  Check(with == without, shape.Name("SharedLogits without bias"));
}

void CheckSumsByRow(const Shape& shape, const Layer& layer, const Products& exact,
                    std::vector<Floats>* results, const ParallelFor& pool) {
  const View view(layer, shape.units, Alone);
  Floats own_y(shape.rows * shape.d), y(shape.rows * shape.d);
  CsrMatMul(layer.own.view(), layer.coef.data(), layer.w.data(), shape.d, own_y.data(), pool);
  CheckClose(own_y, exact.own_y.exact, exact.own_y.Bound(), shape.Name("CsrMatMul"));
  CsrMatMulByNeuron(view.view(), shape.rows, layer.coef.data(), layer.w.data(), shape.d, y.data(),
                    pool);
  CheckClose(y, exact.own_y.exact, exact.own_y.Bound(), shape.Name("CsrMatMulByNeuron"));
  results->insert(results->end(), {own_y, y});
  AddSharedMatMul(view.view(), shape.rows, layer.shared_coef.data(), layer.w.data(), shape.d,
                  y.data(), pool);
  CheckClose(y, exact.y.exact, exact.y.Bound(), shape.Name("AddSharedMatMul"));
  results->push_back(y);
}

void CheckSumsByNeuron(const Shape& shape, const Layer& layer, const Products& exact,
                       std::vector<Floats>* results, const ParallelFor& pool) {
  const View view(layer, shape.units, Alone);
  const int64_t count = view.neurons.size(), d = shape.d;
  Floats rows(count * d), sums(count), gradient(shape.units * d), all_sums(shape.units);
  RowGradient(view.view(), layer.parts(shape), rows.data(), pool);
  GradientFactors parts = layer.parts(shape);
  parts.x = nullptr;  // not used by EntrySums
  EntrySums(view.view(), parts, sums.data(), pool);
  for (int64_t u = 0; u < count; ++u) {
    std::copy_n(rows.begin() + u * d, d, gradient.begin() + view.neurons[u] * d);
    all_sums[view.neurons[u]] = sums[u];
  }
  CheckClose(gradient, exact.gradient.exact, exact.gradient.Bound(), shape.Name("RowGradient"));
  CheckClose(all_sums, exact.entry_sums.exact, exact.entry_sums.Bound(), shape.Name("EntrySums"));
  results->insert(results->end(), {rows, sums});
}

void CheckProducts(const Shape& shape, const Layer& layer) {
  const Products exact(shape, layer);
  std::vector<Floats> first;
  for (const ParallelFor& pool : kPools) {
    std::vector<Floats> all;
    CheckLogits(shape, layer, exact, &all, pool);
    CheckSumsByRow(shape, layer, exact, &all, pool);
    CheckSumsByNeuron(shape, layer, exact, &all, pool);
    if (first.empty()) first = all;
    for (size_t i = 0; i < all.size(); ++i) {
      CheckSame(first[i], all[i], shape.Name("product " + std::to_string(i) + " by threads"));
    }
  }
}

// Labels from the rows' own neurons; every third row has none.
Csr SomeOf(const Csr& own) {
  Csr labels;
  labels.splits = {0};
  const CsrView view = own.view();
  for (int64_t row = 0; row < view.rows; ++row) {
    for (int64_t j = 0; row % 3 != 2 && j < view.length(row) && j < 5; j += 2) {
      labels.ids.push_back(view.begin(row)[j]);
    }
    labels.splits.push_back(labels.ids.size());
  }
  labels.ids.shrink_to_fit();
  return labels;
}

// Loss of one row and the gradient by its logits, in double precision.
double RowLoss(const double* logits, const int32_t* ids, int64_t n, const int32_t* labels,
               int64_t label_count, double* gradient) {
  std::fill_n(gradient, n, 0.0);
  if (label_count == 0) return 0;
  const double top = *std::max_element(logits, logits + n);
  double total = 0, mean = 0;
  for (int64_t j = 0; j < n; ++j) total += std::exp(logits[j] - top);
  for (int64_t j = 0; j < n; ++j) {
    const bool is_label = std::binary_search(labels, labels + label_count, ids[j]);
    gradient[j] = std::exp(logits[j] - top) / total - (is_label ? 1.0 / label_count : 0);
    if (is_label) mean += logits[j] / label_count;
  }
  return top + std::log(total) - mean;
}

// Numbers of an active set: of the rows' own neurons and of the shared ones.
struct Values {
  Floats own, shared;

  explicit Values(const Layer& layer)
      : own(layer.own.ids.size()), shared(layer.shared_coef.size()) {}
  ActiveSets Of(const Layer& layer) const {
    return {layer.own.view(), List(layer.shared), own.data(), shared.data()};
  }
};

// A row's neurons, each once: its own, and those shared ones that are not.
struct RowNeurons {
  Ints ids;
  std::vector<const float*> values;

  RowNeurons(const Layer& layer, const Values& all, int64_t row) {
    const CsrView own = layer.own.view();
    for (int64_t e = own.splits[row]; e < own.splits[row + 1]; ++e) {
      ids.push_back(own.ids[e]);
      values.push_back(&all.own[e]);
    }
    for (size_t s = 0; s < layer.shared.size(); ++s) {
      if (std::binary_search(own.begin(row), own.end(row), layer.shared[s])) continue;
      ids.push_back(layer.shared[s]);
      values.push_back(&all.shared[row * layer.shared.size() + s]);
    }
  }
};

void CheckSoftmaxRow(const Shape& shape, const Layer& layer, const Values& logits,
                     const Values& gradient, const Csr& labels, int64_t row, float loss) {
  const RowNeurons given(layer, logits, row), got(layer, gradient, row);
  const int64_t n = given.ids.size();
  Doubles exact(n), slopes(n);
  Floats got_slopes(n);
  for (int64_t j = 0; j < n; ++j) {
    exact[j] = *given.values[j];
    got_slopes[j] = *got.values[j];
  }
  const double expected = RowLoss(exact.data(), given.ids.data(), n, labels.view().begin(row),
                                  labels.view().length(row), slopes.data());
  CheckClose({loss}, {expected}, {(n + 200) * kRounding}, shape.Name("SoftmaxCrossentropy"));
  CheckClose(got_slopes, slopes, Doubles(n, (n + 60) * kRounding), shape.Name("its gradient"));
  for (size_t s = 0; s < layer.shared.size(); ++s) {
    const float& slope = gradient.shared[row * layer.shared.size() + s];
    const bool counts = std::count(got.values.begin(), got.values.end(), &slope) > 0;
    Check(counts || slope == 0, shape.Name("gradient of a shared neuron that is the row's own"));
  }
}

// A row's entries by the rule: own neurons with their values, others that are shared with theirs.
void CheckSparseRow(const Layer& layer, const Values& values, bool keep_zeros, int64_t row,
                    std::vector<int64_t>* indices, Floats* entries) {
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
  Values values(layer);
  values.own = source->Array(values.own.size());
  values.shared = source->Array(values.shared.size());
  for (bool keep_zeros : {false, true}) {
    std::vector<int64_t> indices;
    Floats entries;
    for (int64_t row = 0; row < shape.rows; ++row) {
      CheckSparseRow(layer, values, keep_zeros, row, &indices, &entries);
    }
    for (const ParallelFor& pool : kPools) {
      const SparseOutput output(values.Of(layer), keep_zeros, pool);
      std::vector<int64_t> got_indices(2 * output.size());
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

void CheckLostLabels(const Shape& shape, const Layer& layer, const Values& logits,
                     const Csr& labels) {
  if (labels.ids.empty()) return;
  int64_t row = 0;
  while (labels.view().length(row) == 0) ++row;
  if (labels.view().length(row) != 1) return;
  // No neuron at all, or one that is only among the shared.
  Ints lost = {static_cast<int32_t>(shape.units)};
  for (int32_t id : layer.shared) {
    const CsrView own = layer.own.view();
    if (!std::binary_search(own.begin(row), own.end(row), id)) lost.push_back(id);
  }
  for (size_t j = 0; j < lost.size(); j += std::max<size_t>(1, lost.size() - 1)) {
    Csr wrong = labels;
    wrong.ids[0] = lost[j];
    if (labels.ids.size() > 1) wrong.ids.back() = static_cast<int32_t>(shape.units);
    for (const ParallelFor& pool : kPools) {
      Floats loss(shape.rows);
      Values gradient(layer);
      Check(SoftmaxCrossentropy(logits.Of(layer), wrong.view(), loss.data(), gradient.own.data(),
                                gradient.shared.data(), pool) == row,
            "the first row with a lost label");
    }
  }
}

void CheckSoftmax(const Shape& shape, const Layer& layer, Source* source) {
  Values logits(layer);
  logits.own = source->Array(logits.own.size());
  logits.shared = source->Array(logits.shared.size());
  for (Floats* part : {&logits.own, &logits.shared}) {
    for (float& logit : *part) logit *= 20;
  }
  const Csr labels = SomeOf(layer.own);
  const Floats scale = source->Array(shape.rows);
  std::vector<Floats> before;
  for (const ParallelFor& pool : kPools) {
    Floats loss(shape.rows);
    Values gradient(layer), scaled(layer);
    Check(SoftmaxCrossentropy(logits.Of(layer), labels.view(), loss.data(), gradient.own.data(),
                              gradient.shared.data(), pool) == -1,
          "labels are active");
    const int64_t shared = layer.shared.size();
    ScaleRows(layer.own.view(), shared, gradient.own.data(), gradient.shared.data(), scale.data(),
              scaled.own.data(), scaled.shared.data(), pool);
    for (int64_t row = 0; row < shape.rows; ++row) {
      CheckSoftmaxRow(shape, layer, logits, gradient, labels, row, loss[row]);
      for (int64_t e = layer.own.splits[row]; e < layer.own.splits[row + 1]; ++e) {
        Check(scaled.own[e] == gradient.own[e] * scale[row], shape.Name("ScaleRows"));
      }
      for (int64_t s = row * shared; s < (row + 1) * shared; ++s) {
        Check(scaled.shared[s] == gradient.shared[s] * scale[row], shape.Name("ScaleRows, shared"));
      }
    }
    const std::vector<Floats> all = {loss, gradient.own, gradient.shared, scaled.own,
                                     scaled.shared};
    if (before.empty()) before = all;
    for (size_t i = 0; i < all.size(); ++i) CheckSame(before[i], all[i], "softmax by threads");
  }
  CheckLostLabels(shape, layer, logits, labels);
}

void CheckActiveTopK(const Shape& shape, const Layer& layer, Source* source) {
  Values logits(layer);
  for (Floats* part : {&logits.own, &logits.shared}) {
    for (float& logit : *part) logit = static_cast<float>(source->Integer(7));
  }
  for (int64_t k : {1, 5, 60}) {
    for (const ParallelFor& pool : kPools) {
      Ints ids(shape.rows * k);
      Floats scores(shape.rows * k);
      ActiveTopK(logits.Of(layer), k, ids.data(), scores.data(), pool);
      for (int64_t row = 0; row < shape.rows; ++row) {
        const RowNeurons neurons(layer, logits, row);
        std::vector<std::pair<float, int32_t>> best;  // (-score, id)
        for (size_t j = 0; j < neurons.ids.size(); ++j) {
          best.emplace_back(-*neurons.values[j], neurons.ids[j]);
        }
        std::sort(best.begin(), best.end());
        best.resize(k, {std::numeric_limits<float>::infinity(), -1});
        for (int64_t j = 0; j < k; ++j) {
          Check(ids[row * k + j] == best[j].second && scores[row * k + j] == -best[j].first,
                shape.Name("ActiveTopK"));
        }
      }
    }
  }
}

// Passes over all units. Weights are multiples of 1/8, so that logits are exact.
void CheckScans(const Shape& shape, Source* source) {
  const int64_t rows = shape.rows, units = shape.units, d = shape.d;
  Floats x(rows * d), w(units * d), bias(units), upstream = source->Array(rows);
  for (Floats* array : {&x, &w, &bias}) {
    for (float& value : *array) value = static_cast<float>(source->Integer(17) - 8) / 8;
  }
  Csr labels = source->Sets(rows, units, 3);
  for (const float* given : std::vector<const float*>{nullptr, bias.data()}) {
    const DenseScan scan = {rows, d, units, x.data(), w.data(), given};
    Doubles logits(rows * units), by_logit(rows * units), loss(rows);
    Sums x_sums(rows * d), w_sums(units * d), bias_sums(units);
    Ints everything(units);
    for (int64_t u = 0; u < units; ++u) everything[u] = static_cast<int32_t>(u);
    for (int64_t row = 0; row < rows; ++row) {
      for (int64_t u = 0; u < units; ++u) {
        double& logit = logits[row * units + u];
        logit = given ? given[u] : 0;
        for (int64_t i = 0; i < d; ++i) logit += double{x[row * d + i]} * w[u * d + i];
      }
      loss[row] =
          RowLoss(logits.data() + row * units, everything.data(), units, labels.view().begin(row),
                  labels.view().length(row), by_logit.data() + row * units);
      for (int64_t u = 0; u < units; ++u) {
        const double slope = by_logit[row * units + u] * upstream[row];
        bias_sums.Add(u, slope);
        for (int64_t i = 0; i < d; ++i) {
          x_sums.Add(row * d + i, slope * w[u * d + i]);
          w_sums.Add(u * d + i, slope * x[row * d + i]);
        }
      }
    }
    // Probabilities are good to some 20 roundings and the sum over units.
    auto bound = [&](const Sums& sums) {
      Doubles result = sums.Bound();
      for (size_t i = 0; i < result.size(); ++i) {
        result[i] += (sums.size[i] + std::abs(sums.exact[i])) * 40 * kRounding +
                     sums.terms[i] * 2 * kRounding;
      }
      return result;
    };
    Doubles loss_bound(rows);
    for (int64_t row = 0; row < rows; ++row) loss_bound[row] = (60 + loss[row]) * 4 * kRounding;
    std::vector<Floats> before;
    for (const ParallelFor& pool : kPools) {
      Floats top(rows), log_sum(rows), label_sum(rows), label_count(rows), got_loss(rows);
      Floats x_gradient(rows * d), w_gradient(units * d);
      Floats bias_gradient(given ? units : 0);
      for (int64_t row = 0; row < rows; ++row) label_count[row] = labels.view().length(row);
      const SoftmaxParts parts = {top.data(), log_sum.data(), label_sum.data()};
      const SoftmaxTotals totals = {top.data(), log_sum.data(), label_count.data(),
                                    upstream.data()};
      FullCrossentropy(scan, labels.view(), parts, got_loss.data(), pool);
      CheckClose(got_loss, loss, loss_bound, shape.Name("FullCrossentropy"));
      FullCrossentropyGradient(scan, labels.view(), totals, x_gradient.data(), w_gradient.data(),
                               given ? bias_gradient.data() : nullptr, pool);
      CheckClose(x_gradient, x_sums.exact, bound(x_sums), shape.Name("x gradient"));
      CheckClose(w_gradient, w_sums.exact, bound(w_sums), shape.Name("w gradient"));
      if (given) {
        CheckClose(bias_gradient, bias_sums.exact, bound(bias_sums), shape.Name("bias gradient"));
      }
      const int64_t k = std::min<int64_t>(units, 9);
      Ints ids(rows * k);
      Floats scores(rows * k);
      TopK(scan, k, ids.data(), scores.data(), pool);
      for (int64_t row = 0; row < rows; ++row) {
        Ints order = everything;
        std::stable_sort(order.begin(), order.end(), [&](int32_t a, int32_t b) {
          return logits[row * units + a] > logits[row * units + b];
        });
        for (int64_t j = 0; j < k; ++j) {
          Check(
              ids[row * k + j] == order[j] && scores[row * k + j] == logits[row * units + order[j]],
              shape.Name("TopK"));
        }
      }
      const std::vector<Floats> all = {top,        log_sum,    label_sum,    got_loss,
                                       x_gradient, w_gradient, bias_gradient};
      if (before.empty()) before = all;
      for (size_t i = 0; i < all.size(); ++i) {
        CheckSame(before[i], all[i], shape.Name("scan " + std::to_string(i) + " by threads"));
      }
    }
  }
}

// Adam.
const AdamStep kStep = {0.02f, 0.9f, 0.99f, 1e-3f, 0.003f};

struct Moments {
  Floats weight, momentum, velocity;

  Moments(int64_t size, Source* source)
      : weight(source->Array(size)), momentum(source->Array(size)), velocity(source->Array(size)) {
    for (float& value : velocity) value *= value;
  }
  AdamUpdate Update(int64_t d, bool unit_rows = false) {
    return {weight.data(), momentum.data(), velocity.data(), d, kStep, unit_rows};
  }
};

void CheckAdamIsSame(const Moments& one, const Moments& two, const std::string& what) {
  CheckSame(one.weight, two.weight, what + ": weight");
  CheckSame(one.momentum, two.momentum, what + ": momentum");
  CheckSame(one.velocity, two.velocity, what + ": velocity");
}

// Whether `after` is one step from `before` with the gradient given, at the places given.
void CheckStep(const Moments& before, const Moments& after, const Doubles& gradient,
               const Doubles& error, const std::string& what) {
  const size_t n = gradient.size();
  Doubles weight(n), momentum(n), velocity(n), weight_bound(n), momentum_bound(n),
      velocity_bound(n);
  for (size_t i = 0; i < n; ++i) {
    const double g = gradient[i], b1 = kStep.beta_1, b2 = kStep.beta_2;
    momentum[i] = b1 * before.momentum[i] + (1 - b1) * g;
    velocity[i] = b2 * before.velocity[i] + (1 - b2) * g * g;
    const double root = std::sqrt(velocity[i]) + kStep.epsilon;
    weight[i] = before.weight[i] * (1 - double{kStep.decay}) - kStep.rate * momentum[i] / root;
    momentum_bound[i] = error[i] + 4 * kRounding * (std::abs(before.momentum[i]) + std::abs(g));
    velocity_bound[i] =
        2 * error[i] * std::abs(g) + 4 * kRounding * (before.velocity[i] + g * g) + 1e-37;
    weight_bound[i] =
        4 * kRounding * std::abs(weight[i]) + 3 * kRounding +
        kStep.rate *
            (momentum_bound[i] + std::abs(momentum[i]) * velocity_bound[i] / (root * root)) / root;
  }
  CheckClose(after.weight, weight, weight_bound, what + ": weight");
  CheckClose(after.momentum, momentum, momentum_bound, what + ": momentum");
  CheckClose(after.velocity, velocity, velocity_bound, what + ": velocity");
}

void CheckDenseAdam() {
  Source source(20);
  for (int64_t n : {0, 1, 7, 63, 64, 65, 1000, 12345}) {
    const Moments start(n, &source);
    const Floats gradient = source.Array(n);
    Moments one = start, four = start;
    UpdateAll(one.Update(n), n, gradient.data(), Alone);
    UpdateAll(four.Update(n), n, gradient.data(), FourThreads);
    CheckAdamIsSame(one, four, "DenseAdam by threads");
    CheckStep(start, one, Doubles(gradient.begin(), gradient.end()), Doubles(n, 0), "DenseAdam");
  }
}

void CheckRowAdam(const Shape& shape, const Layer& layer, Source* source) {
  const int64_t d = shape.d;
  const View view(layer, shape.units, Alone);
  const GradientFactors parts = layer.parts(shape);
  const int64_t count = view.neurons.size();
  const Moments start(shape.units * d, source);
  Floats gradient(count * d);
  RowGradient(view.view(), parts, gradient.data(), Alone);
  Moments apart = start;
  UpdateRows(apart.Update(d), view.neurons.data(), count, gradient.data(), Alone);
  for (const ParallelFor& pool : kPools) {
    Moments threads = start, fused = start;
    UpdateRows(threads.Update(d), view.neurons.data(), count, gradient.data(), pool);
    CheckAdamIsSame(apart, threads, shape.Name("RowAdam by threads"));
    UpdateRowsOf(view.view(), parts, fused.Update(d), pool);
    CheckAdamIsSame(apart, fused, shape.Name("RowGradientAdam"));
  }
  // Touched rows make one step, all others none.
  Moments touched(0, source), stepped(0, source);
  std::set<int32_t> rows(view.neurons.begin(), view.neurons.end());
  for (int64_t i = 0; i < shape.units * d; ++i) {
    if (rows.count(i / d)) {
      for (auto [to, from] : {std::pair{&touched, &start}, {&stepped, &apart}}) {
        to->weight.push_back(from->weight[i]);
        to->momentum.push_back(from->momentum[i]);
        to->velocity.push_back(from->velocity[i]);
      }
    } else {
      Check(apart.weight[i] == start.weight[i] && apart.momentum[i] == start.momentum[i] &&
                apart.velocity[i] == start.velocity[i],
            shape.Name("untouched row"));
    }
  }
  CheckStep(touched, stepped, Doubles(gradient.begin(), gradient.end()), Doubles(count * d, 0),
            shape.Name("RowAdam"));
}

// Adagrad by rows, with and without rows of length 1, against its definition.
void CheckAdagrad(const Shape& shape, const Layer& layer, Source* source) {
  const int64_t d = shape.d;
  const View view(layer, shape.units, Alone);
  const GradientFactors parts = layer.parts(shape);
  const int64_t count = view.neurons.size();
  Floats weight = source->Array(shape.units * d), sums = source->Array(shape.units * d);
  for (float& sum : sums) sum *= sum;
  Floats gradient(count * d);
  RowGradient(view.view(), parts, gradient.data(), Alone);
  const AdagradStep step = {0.05f, 1e-3f, 0.002f};
  for (bool unit_rows : {false, true}) {
    Floats w = weight, v = sums, w_fused = weight, v_fused = sums;
    UpdateRows(AdagradUpdate(w.data(), v.data(), d, step, unit_rows), view.neurons.data(), count,
               gradient.data(), FourThreads);
    UpdateRowsOf(view.view(), parts,
                 AdagradUpdate(w_fused.data(), v_fused.data(), d, step, unit_rows), FourThreads);
    CheckSame(w, w_fused, shape.Name("UpdateRowsOf by Adagrad: weight"));
    CheckSame(v, v_fused, shape.Name("UpdateRowsOf by Adagrad: accumulator"));
    Doubles expected(weight.begin(), weight.end()), expected_sums(sums.begin(), sums.end());
    for (int64_t u = 0; u < count; ++u) {
      const int64_t at = view.neurons[u] * d;
      double squares = 0;
      for (int64_t i = 0; i < d; ++i) {
        const double g = gradient[u * d + i];
        expected_sums[at + i] += g * g;
        expected[at + i] -= step.decay * double{weight[at + i]} +
                            step.rate * g / (std::sqrt(expected_sums[at + i]) + step.epsilon);
        squares += expected[at + i] * expected[at + i];
      }
      if (!unit_rows || squares == 0) continue;
      for (int64_t i = 0; i < d; ++i) expected[at + i] /= std::sqrt(squares);
    }
    Doubles bound(expected.size()), bound_sums(expected.size());
    for (size_t i = 0; i < expected.size(); ++i) {
      bound[i] = 1e-5 * (1 + std::abs(expected[i]));
      bound_sums[i] = 8 * kRounding * expected_sums[i];
    }
    CheckClose(w, expected, bound, shape.Name("Adagrad: weight"));
    CheckClose(v, expected_sums, bound_sums, shape.Name("Adagrad: accumulator"));
  }
}

void CheckGroupedRows() {
  Source source(21);
  for (int64_t count : {0, 1, 5, 100}) {
    Ints rows(count);
    for (int32_t& row : rows) row = source.Integer(13);
    const GroupedRows groups(rows.data(), count);
    const CscView view = groups.view();
    Check(CheckCscView(view, count, count, 13, FourThreads).empty(), "view of grouped rows");
    Check(view.shared() == 0, "grouped rows share nothing");
    std::vector<std::pair<int32_t, int32_t>> expected, got;  // (row, place)
    for (int64_t j = 0; j < count; ++j) expected.emplace_back(rows[j], j);
    std::sort(expected.begin(), expected.end());
    for (int64_t u = 0; u < view.count; ++u) {
      for (int64_t e = view.splits[u]; e < view.splits[u + 1]; ++e) {
        got.emplace_back(view.neurons[u], view.entry_row[e]);
      }
    }
    Check(expected == got, "grouped rows");
  }
}

void CheckSlabs() {
  for (int64_t total : {0, 1, 7, 16, 1000}) {
    for (int64_t count : {1, 3, 16, 64}) {
      const Slabs slabs(total, count);
      Check(slabs.begin(0) == 0 && slabs.end(slabs.count() - 1) == total, "ends of slabs");
      for (int64_t s = 0; s < slabs.count(); ++s) {
        const int64_t length = slabs.end(s) - slabs.begin(s);
        Check(length == total / slabs.count() || length == total / slabs.count() + 1, "slab");
      }
    }
  }
}

void CheckAll() {
  CheckSlabs();
  CheckSimd();
  CheckBlockTops();
  CheckConnected();
  CheckExp();
  CheckGemm();
  CheckColumns();
  CheckHashes();
  CheckProjections();
  CheckDwta();
  CheckMinHash();
  CheckTables();
  CheckMembership();
  CheckSelection();
  CheckLabels();
  CheckSamples();
  CheckLogShares();
  CheckDenseAdam();
  CheckGroupedRows();
  Source source(30);
  for (const Shape& shape : kShapes) {
    CheckScans(shape, &source);
    std::set<int64_t> shared_counts = {0, 1, std::min<int64_t>(shape.units, 70), shape.units};
    for (int64_t shared : shared_counts) {
      const Layer layer(shape, shared, &source);
      CheckTranspose(shape, layer);
      CheckWrongViews(shape, layer);
      CheckProducts(shape, layer);
      CheckSoftmax(shape, layer, &source);
      CheckSparseOutput(shape, layer, &source);
      CheckActiveTopK(shape, layer, &source);
      CheckRowAdam(shape, layer, &source);
      CheckAdagrad(shape, layer, &source);
    }
  }
}

}  // namespace
}  // namespace dslide

int main() {
  dslide::CheckAll();
  std::printf("%s: %lld checks, %lld failures\n", dslide::Simd().name,
              static_cast<long long>(dslide::checks), static_cast<long long>(dslide::failures));
  return dslide::failures == 0 ? 0 : 1;
}
