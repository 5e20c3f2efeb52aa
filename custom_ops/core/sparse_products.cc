#include "custom_ops/core/sparse_products.h"

#include <algorithm>
#include <memory>
#include <numeric>
#include <vector>

#include "custom_ops/core/packed_panels.h"
#include "custom_ops/core/prefetch.h"

namespace dslide {
namespace {

int64_t EntryCost(int64_t d) { return 5 + d / 16; }

int64_t NeuronCost(const CscView& view, int64_t d) {
  return StreamCost(d) + EntryCost(d) * view.size() / std::max<int64_t>(1, view.count);
}

inline void PrefetchNeuron(const CscView& view, int64_t u, const float* w, int64_t d) {
  if (u + kRowsAhead < view.count) PrefetchRange(w + view.neurons[u + kRowsAhead] * d, d);
}

}  // namespace

void ActiveLogits(const CscView& view, const float* x, const float* w, const float* bias, int64_t d,
                  float* logits, const ParallelFor& parallel) {
  parallel(view.count, NeuronCost(view, d), [&](int64_t begin, int64_t end) {
    for (int64_t u = begin; u < end; ++u) {
      PrefetchNeuron(view, u, w, d);
      const int64_t neuron = view.neurons[u], first = view.splits[u];
      Simd().dot_entries(w + neuron * d, x, d, view.entry_row + first, view.entry_index + first,
                         view.length(u), bias ? bias[neuron] : 0.0f, logits);
    }
  });
}

namespace {

// Rows of one side of a dense product that are treated together.
constexpr int64_t kBlock = 64;
// Terms of a sum after which a dense product goes on to the next block: two panels of so many rows
// fit the first-level cache.
constexpr int64_t kDepth = 128;

int64_t Blocks(int64_t count, int64_t block = kBlock) { return (count + block - 1) / block; }

// Rough nanoseconds of a dense product of so many multiplications.
int64_t GemmCost(int64_t products) { return 1 + products / 32; }

}  // namespace

void SharedLogits(const CscView& view, const float* x, int64_t rows, const float* w,
                  const float* bias, int64_t d, float* logits, const ParallelFor& parallel) {
  const int64_t shared = view.shared();
  PackedPanels weights(d, shared);
  parallel(weights.count(), kPanel * StreamCost(d), [&](int64_t begin, int64_t end) {
    for (int64_t panel = begin; panel < end; ++panel) {
      weights.SetColumns(panel, [&](int64_t s) { return w + view.shared_neuron(s) * d; });
    }
  });
  // A task takes a block of samples and a group of panels.
  constexpr int64_t kGroup = 16;
  const int64_t groups = Blocks(weights.count(), kGroup);
  parallel(groups * Blocks(rows), GemmCost(kGroup * kPanel * kBlock * d),
           [&](int64_t begin, int64_t end) {
             for (int64_t task = begin; task < end; ++task) {
               const int64_t first = task / groups * kBlock, m = std::min(kBlock, rows - first);
               const int64_t group = task % groups * kGroup;
               const int64_t last = std::min(weights.count(), group + kGroup);
               for (int64_t panel = group; panel < last; ++panel) {
                 const int64_t n = weights.width(panel), s = panel * kPanel;
                 float* to = logits + first * shared + s;
                 if (bias) {
                   float start[kPanel];
                   for (int64_t j = 0; j < n; ++j) start[j] = bias[view.shared_neuron(s + j)];
                   for (int64_t i = 0; i < m; ++i) std::copy_n(start, n, to + i * shared);
                 }
                 Simd().gemm_panel(m, n, d, x + first * d, d, 1, weights.at(panel), to, shared,
                                   bias != nullptr);
               }
             }
           });
}

void CsrMatMul(const CsrView& active, const float* coef, const float* w, int64_t d, float* y,
               const ParallelFor& parallel) {
  const int64_t cost = StreamCost(d) * (1 + active.size() / std::max<int64_t>(1, active.rows));
  parallel(active.rows, cost, [&](int64_t begin, int64_t end) {
    for (int64_t row = begin; row < end; ++row) {
      if (row + 1 < end) {
        for (const int32_t* id = active.begin(row + 1); id != active.end(row + 1); ++id) {
          Prefetch(w + *id * d);
        }
      }
      Simd().sum_entries(w, d, active.begin(row), nullptr, coef + active.splits[row],
                         active.length(row), y + row * d);
    }
  });
}

namespace {

// Borders of slabs of neurons with about the same number of entries each.
std::vector<int64_t> SlabBorders(const CscView& view, const Slabs& slabs) {
  std::vector<int64_t> borders(slabs.count() + 1, view.count);
  borders[0] = 0;
  for (int64_t slab = 1; slab < slabs.count(); ++slab) {
    borders[slab] =
        std::lower_bound(view.splits, view.splits + view.count, slabs.begin(slab)) - view.splits;
  }
  return borders;
}

}  // namespace

void CsrMatMulByNeuron(const CscView& view, int64_t rows, const float* coef, const float* w,
                       int64_t d, float* y, const ParallelFor& parallel) {
  // Each slab has sums of its own: few enough that they stay in the cache meanwhile.
  constexpr int64_t kSlabs = 8;
  const Slabs slabs(view.size(), kSlabs);
  const std::vector<int64_t> borders = SlabBorders(view, slabs);
  const int64_t size = rows * d;
  const std::unique_ptr<float[]> others(new float[(slabs.count() - 1) * size]);
  auto sums = [&](int64_t slab) { return slab == 0 ? y : &others[(slab - 1) * size]; };
  const int64_t cost = NeuronCost(view, d) * (1 + view.count / slabs.count());
  parallel(slabs.count(), cost, [&](int64_t begin, int64_t end) {
    for (int64_t slab = begin; slab < end; ++slab) {
      std::fill_n(sums(slab), size, 0.0f);
      for (int64_t u = borders[slab]; u < borders[slab + 1]; ++u) {
        PrefetchNeuron(view, u, w, d);
        const int64_t first = view.splits[u];
        Simd().spread_entries(w + view.neurons[u] * d, d, view.entry_row + first,
                              view.entry_index + first, coef, view.length(u), sums(slab));
      }
    }
  });
  parallel(rows, slabs.count() * StreamCost(d), [&](int64_t begin, int64_t end) {
    for (int64_t slab = 1; slab < slabs.count(); ++slab) {
      Simd().add(sums(slab) + begin * d, (end - begin) * d, y + begin * d);
    }
  });
}

void AddSharedMatMul(const CscView& view, int64_t rows, const float* coef, const float* w,
                     int64_t d, float* y, const ParallelFor& parallel) {
  const int64_t shared = view.shared();
  if (shared == 0) return;
  PackedPanels weights(shared, d);
  parallel(shared, StreamCost(d), [&](int64_t begin, int64_t end) {
    for (int64_t s = begin; s < end; ++s) {
      if (s + kRowsAhead < end) PrefetchRange(w + view.shared_neuron(s + kRowsAhead) * d, d);
      weights.SetRow(s, w + view.shared_neuron(s) * d);
    }
  });
  constexpr int64_t kRows = 32;
  parallel(Blocks(rows, kRows), GemmCost(kRows * shared * d), [&](int64_t begin, int64_t end) {
    for (int64_t block = begin; block < end; ++block) {
      const int64_t first = block * kRows, m = std::min(kRows, rows - first);
      for (int64_t s = 0; s < shared; s += kDepth) {
        for (int64_t panel = 0; panel < weights.count(); ++panel) {
          Simd().gemm_panel(m, weights.width(panel), std::min(kDepth, shared - s),
                            coef + first * shared + s, shared, 1, weights.at(panel, s),
                            y + first * d + panel * kPanel, d, true);
        }
      }
    }
  });
}

namespace {

// The gradients of the shared neurons' weights: (shared, d).
std::unique_ptr<float[]> SharedGradients(const CscView& view, const GradientFactors& factors,
                                         const ParallelFor& parallel) {
  const int64_t shared = view.shared(), d = factors.d, rows = factors.rows;
  std::unique_ptr<float[]> gradients(new float[shared * d]);
  if (rows == 0) std::fill_n(gradients.get(), shared * d, 0.0f);
  if (rows == 0 || shared == 0) return gradients;
  PackedPanels samples(rows, d);
  parallel(rows, StreamCost(d), [&](int64_t begin, int64_t end) {
    for (int64_t row = begin; row < end; ++row) samples.SetRow(row, factors.x + row * d);
  });
  parallel(Blocks(shared), GemmCost(kBlock * rows * d), [&](int64_t begin, int64_t end) {
    std::vector<float> coef(kDepth * kBlock);  // a block's, away from the other columns
    for (int64_t block = begin; block < end; ++block) {
      const int64_t first = block * kBlock, m = std::min(kBlock, shared - first);
      for (int64_t row = 0; row < rows; row += kDepth) {
        const int64_t depth = std::min(kDepth, rows - row);
        for (int64_t l = 0; l < depth; ++l) {
          std::copy_n(factors.shared_coef + (row + l) * shared + first, m, &coef[l * kBlock]);
        }
        for (int64_t panel = 0; panel < samples.count(); ++panel) {
          Simd().gemm_panel(m, samples.width(panel), depth, coef.data(), 1, kBlock,
                            samples.at(panel, row), &gradients[first * d + panel * kPanel], d,
                            row > 0);
        }
      }
    }
  });
  return gradients;
}

// Follows neurons in ascending order, and finds what the shared ones among them have: `width` of
// the values each.
class SharedCursor {
 public:
  SharedCursor(const CscView& view, int64_t begin, const float* values, int64_t width)
      : places_(view.shared_places),
        next_(std::lower_bound(places_.begin(), places_.end(), begin)),
        values_(values),
        width_(width) {}

  // The values of neuron u, or null if it is not shared; u must not fall between calls.
  const float* ValuesOf(int64_t u) {
    if (next_ == places_.end() || *next_ != u) return nullptr;
    return values_ + (next_++ - places_.begin()) * width_;
  }

 private:
  const IdList& places_;
  const int32_t* next_;
  const float* values_;
  int64_t width_;
};

void NeuronGradient(const CscView& view, int64_t u, const GradientFactors& factors,
                    const float* shared_gradient, float* gradient) {
  const int64_t first = view.splits[u];
  Simd().sum_entries(factors.x, factors.d, view.entry_row + first, view.entry_index + first,
                     factors.coef, view.length(u), gradient);
  if (shared_gradient) Simd().add(shared_gradient, factors.d, gradient);
}

}  // namespace

void RowGradient(const CscView& view, const GradientFactors& factors, float* gradient,
                 const ParallelFor& parallel) {
  const std::unique_ptr<float[]> shared = SharedGradients(view, factors, parallel);
  const int64_t d = factors.d;
  parallel(view.count, NeuronCost(view, d), [&](int64_t begin, int64_t end) {
    SharedCursor cursor(view, begin, shared.get(), d);
    for (int64_t u = begin; u < end; ++u) {
      NeuronGradient(view, u, factors, cursor.ValuesOf(u), gradient + u * d);
    }
  });
}

namespace {

// The sum of each column of the shared coefficients.
std::vector<float> ColumnSums(const CscView& view, const GradientFactors& factors,
                              const ParallelFor& parallel) {
  constexpr int64_t kColumns = 512;
  const int64_t count = view.shared();
  std::vector<float> sums(count, 0.0f);
  parallel(Blocks(count, kColumns), kColumns * factors.rows / 8, [&](int64_t begin, int64_t end) {
    const int64_t first = begin * kColumns, n = std::min(count, end * kColumns) - first;
    for (int64_t row = 0; row < factors.rows; ++row) {
      Simd().add(factors.shared_coef + row * count + first, n, &sums[first]);
    }
  });
  return sums;
}

}  // namespace

void EntrySums(const CscView& view, const GradientFactors& factors, float* sums,
               const ParallelFor& parallel) {
  const std::vector<float> shared = ColumnSums(view, factors, parallel);
  parallel(view.count, 5 + 2 * view.size() / std::max<int64_t>(1, view.count),
           [&](int64_t begin, int64_t end) {
             SharedCursor cursor(view, begin, shared.data(), 1);
             for (int64_t u = begin; u < end; ++u) {
               const float* sum = cursor.ValuesOf(u);
               sums[u] = sum ? *sum : 0.0f;
               for (int64_t e = view.splits[u]; e < view.splits[u + 1]; ++e) {
                 sums[u] += factors.coef[view.entry_index[e]];
               }
             }
           });
}

GroupedRows::GroupedRows(const int32_t* rows, int64_t count) : order_(count) {
  std::iota(order_.begin(), order_.end(), 0);
  std::stable_sort(order_.begin(), order_.end(),
                   [&](int32_t a, int32_t b) { return rows[a] < rows[b]; });
  for (int64_t j = 0; j < count; ++j) {
    if (j > 0 && rows[order_[j]] == rows[order_[j - 1]]) continue;
    unique_.push_back(rows[order_[j]]);
    splits_.push_back(j);
  }
  splits_.push_back(count);
}

void UpdateRowsOf(const CscView& view, const GradientFactors& factors, const RowUpdate& update,
                  const ParallelFor& parallel) {
  const std::unique_ptr<float[]> shared = SharedGradients(view, factors, parallel);
  const int64_t d = update.d();
  parallel(view.count, NeuronCost(view, d) + 3 * StreamCost(d), [&](int64_t begin, int64_t end) {
    std::vector<float> gradient(d);
    SharedCursor cursor(view, begin, shared.get(), d);
    for (int64_t u = begin; u < end; ++u) {
      if (u + kRowsAhead < end) update.Prefetch(view.neurons[u + kRowsAhead]);
      NeuronGradient(view, u, factors, cursor.ValuesOf(u), gradient.data());
      update.MoveRow(view.neurons[u], gradient.data());
    }
  });
}

}  // namespace dslide
