#include "custom_ops/core/hashing.h"

#include <algorithm>
#include <functional>
#include <limits>
#include <numeric>

#include "custom_ops/core/random.h"
#include "custom_ops/core/simd.h"

namespace dslide {
namespace {

// A random permutation of [0, n) in `order`, which must hold one already.
void Shuffle(uint64_t key, std::vector<int32_t>* order, int64_t prefix) {
  const int64_t n = order->size();
  for (int64_t j = 0; j < prefix; ++j) {
    std::swap((*order)[j], (*order)[j + Below(Mix(key, j), n - j)]);
  }
}

// A sum of twelve uniform integers, centred and scaled to variance 1.
float NearNormal(uint64_t key) {
  int64_t sum = 0;
  for (int word = 0; word < 3; ++word) {
    const uint64_t random = Mix(key, word);
    for (int part = 0; part < 4; ++part) sum += random >> (16 * part) & 0xffff;
  }
  return static_cast<float>((static_cast<double>(sum) - 6.0 * 65535.0) / 65536.0);
}

}  // namespace

void MakeSimHash(uint64_t seed, int64_t dim, int64_t projections, int64_t nonzeros, int32_t* index,
                 float* value) {
  std::vector<int32_t> order(dim);
  std::iota(order.begin(), order.end(), 0);
  for (int64_t p = 0; p < projections; ++p) {
    const uint64_t key = Mix(seed, p);
    Shuffle(key, &order, nonzeros);
    std::copy(order.begin(), order.begin() + nonzeros, index + p * nonzeros);
    std::sort(index + p * nonzeros, index + (p + 1) * nonzeros);
    for (int64_t j = 0; j < nonzeros; ++j) value[p * nonzeros + j] = NearNormal(Mix(~key, j));
  }
}

void MakeDwta(uint64_t seed, int64_t dim, int64_t bins, int64_t bin_size, int32_t* index) {
  const int64_t bins_per_permutation = dim / bin_size;
  std::vector<int32_t> order(dim);
  std::iota(order.begin(), order.end(), 0);
  for (int64_t bin = 0; bin < bins; ++bin) {
    const int64_t place = bin % bins_per_permutation;
    if (place == 0) Shuffle(Mix(seed, bin), &order, dim);
    std::copy_n(order.begin() + place * bin_size, bin_size, index + bin * bin_size);
  }
}

namespace {

// "row 3 holds nan at column 0", or an empty string where no row was noted.
std::string NotFinite(const FirstBad& bad, const float* x, int64_t dim) {
  const int64_t row = bad.first();
  if (row < 0) return "";
  const float* at = std::find_if(x + row * dim, x + (row + 1) * dim,
                                 [](float value) { return !(value - value == 0); });
  return "row " + std::to_string(row) + " holds " + std::to_string(*at) + " at column " +
         std::to_string(at - (x + row * dim));
}

// Splits n vectors into blocks of kHashBlock, turns each block so that its vectors lie in the
// lanes, and calls `hash(xt, first, lanes)`. Returns which vector is not finite.
template <typename Hash>
std::string ForBlocks(const float* x, int64_t n, int64_t dim, int64_t cost,
                      const ParallelFor& parallel, const Hash& hash) {
  FirstBad bad;
  const int64_t blocks = (n + kHashBlock - 1) / kHashBlock;
  parallel(blocks, cost, [&](int64_t begin, int64_t end) {
    std::vector<float> xt(dim * kHashBlock);
    for (int64_t block = begin; block < end; ++block) {
      const int64_t first = block * kHashBlock;
      const int64_t lanes = std::min<int64_t>(kHashBlock, n - first);
      for (int64_t lane = 0; lane < lanes; ++lane) {
        const float* row = x + (first + lane) * dim;
        if (!Simd().all_finite(row, dim)) bad.Note(first + lane);
        for (int64_t i = 0; i < dim; ++i) xt[i * kHashBlock + lane] = row[i];
      }
      hash(xt.data(), first, lanes);
    }
  });
  return NotFinite(bad, x, dim);
}

}  // namespace

std::string SimHashCodes(const SimHash& hash, const float* x, int64_t n, int32_t* codes,
                         const ParallelFor& parallel) {
  const int64_t projections = hash.bits * hash.tables;
  return ForBlocks(x, n, hash.dim, projections * hash.nonzeros * 4, parallel,
                   [&](const float* xt, int64_t first, int64_t lanes) {
                     float sum[kHashBlock];
                     for (int64_t table = 0; table < hash.tables; ++table) {
                       int32_t code[kHashBlock] = {};
                       for (int64_t bit = 0; bit < hash.bits; ++bit) {
                         const int64_t p = (table * hash.bits + bit) * hash.nonzeros;
                         Simd().project(xt, hash.index + p, hash.value + p, hash.nonzeros, sum);
                         for (int lane = 0; lane < kHashBlock; ++lane) {
                           code[lane] |= static_cast<int32_t>(sum[lane] > 0) << bit;
                         }
                       }
                       for (int64_t lane = 0; lane < lanes; ++lane) {
                         codes[(first + lane) * hash.tables + table] = code[lane];
                       }
                     }
                   });
}

std::string ProjectionCodes(const OffsetProjections& hash, const float* x, int64_t n,
                            int32_t* codes, const ParallelFor& parallel) {
  static_assert(kHashBlock == kPanel, "a block of vectors is a panel of a matrix");
  const int64_t projections = hash.bits * hash.tables, stride = hash.dim + 1;
  return ForBlocks(x, n, hash.dim, projections * hash.dim * 4, parallel,
                   [&](const float* xt, int64_t first, int64_t lanes) {
                     std::vector<float> sums(projections * kHashBlock);
                     Simd().gemm_panel(projections, kHashBlock, hash.dim, hash.weights, stride, 1,
                                       xt, sums.data(), kHashBlock, false);
                     for (int64_t table = 0; table < hash.tables; ++table) {
                       int32_t code[kHashBlock] = {};
                       for (int64_t bit = 0; bit < hash.bits; ++bit) {
                         const int64_t p = table * hash.bits + bit;
                         const float border = -hash.weights[p * stride + hash.dim];
                         const float* sum = sums.data() + p * kHashBlock;
                         for (int lane = 0; lane < kHashBlock; ++lane) {
                           code[lane] |= static_cast<int32_t>(sum[lane] > border) << bit;
                         }
                       }
                       for (int64_t lane = 0; lane < lanes; ++lane) {
                         codes[(first + lane) * hash.tables + table] = code[lane];
                       }
                     }
                   });
}

namespace {

int64_t Log2(int64_t power) { return 63 - __builtin_clzll(power); }

// Folds a code of `total` bits to its `kept` best mixed ones. Each step is a bijection of `total`
// bits, so that every address stands for as many codes.
int32_t Fold(uint64_t code, int64_t total, int64_t kept) {
  const uint64_t mask = (uint64_t{1} << total) - 1;
  code = code * 0x9e3779b97f4a7c15ull & mask;
  code ^= code >> ((total + 1) / 2);
  code = code * 0xbf58476d1ce4e5b9ull & mask;
  return static_cast<int32_t>(code >> (total - kept));
}

// The code of one lane's bin, or of the bin that it borrows from.
int32_t BinCode(const int32_t* winner, const int32_t* filled, int64_t bins, int64_t bin,
                int64_t lane) {
  for (int64_t attempt = 0; attempt < 64; ++attempt) {
    const int64_t from = attempt == 0 ? bin : Below(Mix(bin, attempt), bins);
    if (filled[from * kHashBlock + lane]) return winner[from * kHashBlock + lane];
  }
  for (int64_t step = 1; step < bins; ++step) {
    const int64_t from = (bin + step) % bins;
    if (filled[from * kHashBlock + lane]) return winner[from * kHashBlock + lane];
  }
  return 0;  // The whole vector is 0.
}

}  // namespace

std::string DwtaCodes(const Dwta& hash, const float* x, int64_t n, int32_t* codes,
                      const ParallelFor& parallel) {
  const int64_t bins = hash.tables * hash.bins_per_table;
  const int64_t bits = Log2(hash.bin_size);
  const bool folds = bits * hash.bins_per_table > hash.address_bits;
  return ForBlocks(
      x, n, hash.dim, bins * hash.bin_size * 8, parallel,
      [&](const float* xt, int64_t first, int64_t lanes) {
        std::vector<int32_t> winner(bins * kHashBlock), filled(bins * kHashBlock);
        for (int64_t bin = 0; bin < bins; ++bin) {
          Simd().winner(xt, hash.index + bin * hash.bin_size, hash.bin_size,
                        winner.data() + bin * kHashBlock, filled.data() + bin * kHashBlock);
        }
        for (int64_t lane = 0; lane < lanes; ++lane) {
          for (int64_t table = 0; table < hash.tables; ++table) {
            uint64_t code = 0;
            for (int64_t k = 0; k < hash.bins_per_table; ++k) {
              const int64_t bin = table * hash.bins_per_table + k;
              code = code << bits |
                     (hash.densify ? BinCode(winner.data(), filled.data(), bins, bin, lane)
                                   : winner[bin * kHashBlock + lane]);
            }
            if (folds) code = Fold(code, bits * hash.bins_per_table, hash.address_bits);
            codes[(first + lane) * hash.tables + table] = static_cast<int32_t>(code);
          }
        }
      });
}

int64_t MinHashPermutations(int64_t bins, int64_t bins_per_permutation) {
  return (bins + bins_per_permutation - 1) / bins_per_permutation;
}

void MakeMinHash(uint64_t seed, int64_t dim, int64_t permutations, int32_t* place) {
  std::vector<int32_t> order(dim);
  std::iota(order.begin(), order.end(), 0);
  for (int64_t p = 0; p < permutations; ++p) {
    Shuffle(Mix(seed, p), &order, dim);
    for (int64_t i = 0; i < dim; ++i) place[p * dim + order[i]] = static_cast<int32_t>(i);
  }
}

namespace {

// The hashes of one vector at a time.
class SetHasher {
 public:
  explicit SetHasher(const MinHash& hash)
      : hash_(hash),
        set_(hash.dim),
        values_(hash.dim),
        bin_of_(hash.dim),
        first_(MinHashPermutations(hash.bins_per_table * hash.tables, hash.bins_per_permutation) *
               hash.bins_per_permutation) {
    for (int64_t place = 0; place < hash.dim; ++place) {
      bin_of_[place] = static_cast<int32_t>(place * hash.bins_per_permutation / hash.dim);
    }
  }

  void Codes(const float* x, int32_t* codes) {
    FindSet(x);
    if (size_ == 0) {
      std::fill_n(codes, hash_.tables, 0);
      return;
    }
    FillBins();
    const int64_t bins = hash_.bins_per_permutation;
    const int32_t* lenders = first_.data();
    int64_t place = 0, bin = 0;  // of a bin in its permutation, and among all
    for (int64_t table = 0; table < hash_.tables; ++table) {
      uint64_t mixed = 0;
      for (int64_t k = 0; k < hash_.bins_per_table; ++k, ++bin) {
        const int32_t own = lenders[place];
        mixed = Mix(mixed, own != kEmpty ? own : Borrowed(bin, place, lenders));
        if (++place < bins) continue;
        place = 0;
        lenders += bins;
      }
      codes[table] = static_cast<int32_t>(Below(mixed, uint64_t{1} << hash_.address_bits));
    }
  }

 private:
  void FindSet(const float* x) {
    size_ = 0;
    for (int64_t i = 0; i < hash_.dim; ++i) {
      set_[size_] = static_cast<int32_t>(i);
      values_[size_] = x[i];
      size_ += x[i] > 0;
    }
    if (size_ > hash_.top) KeepLargest(x);
  }

  void KeepLargest(const float* x) {
    const auto last = values_.begin() + hash_.top - 1;
    std::nth_element(values_.begin(), last, values_.begin() + size_, std::greater<float>());
    // The first of those that equal the least one fill the set.
    const float least = *last;
    int64_t equals = 1 + std::count(values_.begin(), last, least);
    int64_t kept = 0;
    for (int64_t j = 0; j < size_; ++j) {
      const int32_t member = set_[j];
      const bool equal = x[member] == least;
      set_[kept] = member;
      kept += x[member] > least || (equal && equals > 0);
      equals -= equal;
    }
    size_ = kept;
  }

  // The first place of a member in each bin of each permutation, kEmpty if there is none.
  void FillBins() {
    std::fill(first_.begin(), first_.end(), kEmpty);
    const int64_t bins = hash_.bins_per_permutation;
    const int64_t permutations = first_.size() / bins;
    for (int64_t p = 0; p < permutations; ++p) {
      const int32_t* place = hash_.place + p * hash_.dim;
      for (int64_t j = 0; j < size_; ++j) {
        const int32_t member = place[set_[j]];
        int32_t& first = first_[p * bins + bin_of_[member]];
        first = std::min(first, member);
      }
    }
  }

  // What an empty bin, the `place`-th of its permutation, gets from the others.
  int32_t Borrowed(int64_t bin, int64_t place, const int32_t* lenders) const {
    const int64_t bins = hash_.bins_per_permutation;
    for (int64_t attempt = 1; attempt < 64; ++attempt) {
      const int32_t first = lenders[Below(Mix(bin, attempt), bins)];
      if (first != kEmpty) return first;
    }
    for (int64_t step = 1;; ++step) {  // A set that is not empty fills some bin.
      const int32_t first = lenders[(place + step) % bins];
      if (first != kEmpty) return first;
    }
  }

  static constexpr int32_t kEmpty = std::numeric_limits<int32_t>::max();

  const MinHash& hash_;
  std::vector<int32_t> set_;  // its first size_ coordinates
  int64_t size_ = 0;
  std::vector<float> values_;
  std::vector<int32_t> bin_of_;  // of each place in a permutation
  std::vector<int32_t> first_;
};

}  // namespace

std::string MinHashCodes(const MinHash& hash, const float* x, int64_t n, int32_t* codes,
                         const ParallelFor& parallel) {
  FirstBad bad;
  const int64_t bins = hash.bins_per_table * hash.tables;
  const int64_t permutations = MinHashPermutations(bins, hash.bins_per_permutation);
  const int64_t cost = hash.dim * 2 + permutations * std::min(hash.top, hash.dim) * 2 + bins * 8;
  parallel(n, cost, [&](int64_t begin, int64_t end) {
    SetHasher hasher(hash);
    for (int64_t row = begin; row < end; ++row) {
      if (!Simd().all_finite(x + row * hash.dim, hash.dim)) {
        bad.Note(row);
        continue;
      }
      hasher.Codes(x + row * hash.dim, codes + row * hash.tables);
    }
  });
  return NotFinite(bad, x, hash.dim);
}

std::string BuildTables(const int32_t* codes, int64_t n, int64_t tables, int64_t buckets,
                        int32_t* bucket_ptr, int32_t* neuron_ids, const ParallelFor& parallel) {
  // As many tables at once as share a cache line of codes.
  constexpr int64_t kGroup = 8;
  FirstBad bad;
  const int64_t groups = (tables + kGroup - 1) / kGroup;
  parallel(groups, 1 + n * kGroup * 4, [&](int64_t begin, int64_t end) {
    for (int64_t group = begin; group < end; ++group) {
      const int64_t first = group * kGroup, last = std::min(tables, first + kGroup);
      const int64_t stride = buckets + 1;
      std::fill(bucket_ptr + first * stride, bucket_ptr + last * stride, 0);
      for (int64_t i = 0; i < n; ++i) {
        for (int64_t table = first; table < last; ++table) {
          const int32_t code = codes[i * tables + table];
          if (code < 0 || code >= buckets) {
            bad.Note(i * tables + table);
            return;
          }
          ++bucket_ptr[table * stride + code + 1];
        }
      }
      std::vector<int32_t> next(kGroup * buckets);
      for (int64_t table = first; table < last; ++table) {
        int32_t* ptr = bucket_ptr + table * stride;
        std::partial_sum(ptr, ptr + stride, ptr);
        std::copy_n(ptr, buckets, next.begin() + (table - first) * buckets);
      }
      for (int64_t i = 0; i < n; ++i) {
        for (int64_t table = first; table < last; ++table) {
          const int32_t code = codes[i * tables + table];
          neuron_ids[table * n + next[(table - first) * buckets + code]++] =
              static_cast<int32_t>(i);
        }
      }
    }
  });
  const int64_t at = bad.first();
  if (at < 0) return "";
  return "neuron " + std::to_string(at / tables) + " has code " + std::to_string(codes[at]) +
         " in table " + std::to_string(at % tables) + ", which is outside [0, " +
         std::to_string(buckets) + ")";
}

namespace {

// Whether the borders of a table's buckets rise from 0 to n.
bool AreBorders(const int32_t* ptr, int64_t buckets, int64_t n) {
  return ptr[0] == 0 && ptr[buckets] == n && std::is_sorted(ptr, ptr + buckets + 1);
}

}  // namespace

std::string ArrangeBuckets(const int32_t* bucket_ptr, int64_t tables, int64_t buckets, int64_t n,
                           BucketPolicy policy, uint64_t seed, int32_t* neuron_ids,
                           const ParallelFor& parallel) {
  FirstBad bad;
  parallel(tables, 1 + buckets + n * 4, [&](int64_t begin, int64_t end) {
    for (int64_t table = begin; table < end; ++table) {
      const int32_t* ptr = bucket_ptr + table * (buckets + 1);
      if (!AreBorders(ptr, buckets, n)) {
        bad.Note(table);
        continue;
      }
      int32_t* ids = neuron_ids + table * n;
      const uint64_t key = Mix(seed, table);
      for (int64_t b = 0; b < buckets; ++b) {
        if (policy == BucketPolicy::kFifo) {
          std::reverse(ids + ptr[b], ids + ptr[b + 1]);
          continue;
        }
        for (int64_t j = ptr[b]; j < ptr[b + 1]; ++j) {
          std::swap(ids[j], ids[j + Below(Mix(key, j), ptr[b + 1] - j)]);
        }
      }
    }
  });
  return bad.first() < 0
             ? ""
             : "the borders of table " + std::to_string(bad.first()) +
                   "'s buckets must rise from 0 to the number of neurons, " + std::to_string(n);
}

}  // namespace dslide
