#include "custom_ops/core/dense_scan.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <vector>

#include "custom_ops/core/scored.h"
#include "custom_ops/core/simd.h"

namespace dslide {
namespace {

constexpr int64_t kNeurons = 64;  // neurons in a tile: with d = 128 their weights fill 32 KiB
constexpr int64_t kSamples = 64;  // samples in a tile

// The samples in panels of kSamples, each turned so that its samples lie side by side: what the
// product of a tile reads then is contiguous.
class Panels {
 public:
  explicit Panels(const DenseScan& scan) : scan_(scan), data_(scan.rows * scan.d) {
    for (int64_t row = 0; row < scan.rows; ++row) {
      const int64_t first = row / kSamples * kSamples;
      float* panel = data_.data() + first * scan.d;
      for (int64_t i = 0; i < scan.d; ++i) {
        panel[i * Width(first) + row - first] = scan.x[row * scan.d + i];
      }
    }
  }
  int64_t Width(int64_t first) const { return std::min(kSamples, scan_.rows - first); }
  const float* Panel(int64_t first) const { return data_.data() + first * scan_.d; }

 private:
  const DenseScan& scan_;
  std::vector<float> data_;
};

// Fewer samples than this do not fill the vectors of a matrix product.
constexpr int64_t kFewSamples = 16;
constexpr int32_t kCounting[kFewSamples] = {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15};

// Logits of `neurons` units from `unit` on for the panel that begins at `first`: (neurons, width).
void TileLogits(const DenseScan& scan, const Panels& panels, int64_t unit, int64_t neurons,
                int64_t first, float* tile) {
  const int64_t width = panels.Width(first);
  if (width < kFewSamples) {
    for (int64_t i = 0; i < neurons; ++i) {
      Simd().dot_entries(scan.w + (unit + i) * scan.d, scan.x + first * scan.d, scan.d, kCounting,
                         nullptr, width, scan.bias ? scan.bias[unit + i] : 0.0f, tile + i * width);
    }
    return;
  }
  Simd().gemm(neurons, width, scan.d, scan.w + unit * scan.d, scan.d, 1, panels.Panel(first), width,
              tile, width, false);
  if (scan.bias == nullptr) return;
  for (int64_t i = 0; i < neurons; ++i) {
    for (int64_t j = 0; j < width; ++j) tile[i * width + j] += scan.bias[unit + i];
  }
}

// Cuts the units into a fixed number of slabs, to be reduced in order.
Slabs UnitSlabs(const DenseScan& scan, int64_t most) {
  return Slabs(scan.units, std::min(most, (scan.units + kNeurons - 1) / kNeurons));
}

// Calls `use(tile, unit, neurons, first, width)` for all tiles of a slab.
template <typename Use>
void ForTiles(const DenseScan& scan, const Panels& panels, int64_t begin, int64_t end,
              const Use& use) {
  std::vector<float> tile(kNeurons * kSamples);
  for (int64_t unit = begin; unit < end; unit += kNeurons) {
    const int64_t neurons = std::min(kNeurons, end - unit);
    for (int64_t first = 0; first < scan.rows; first += kSamples) {
      TileLogits(scan, panels, unit, neurons, first, tile.data());
      use(tile.data(), unit, neurons, first, panels.Width(first));
    }
  }
}

int64_t SlabCost(const DenseScan& scan, const Slabs& slabs) {
  return 1000 + scan.units / slabs.count() * (scan.d / 4 + scan.rows * (1 + scan.d / 32));
}

constexpr float kLowest = -std::numeric_limits<float>::infinity();

}  // namespace

namespace {

// Calls `use(row, place)` for the labels of the panel's rows among the tile's neurons; `place` is
// where the tile holds the label's logit.
template <typename Use>
void ForLabels(const CsrView& labels, int64_t unit, int64_t neurons, int64_t first, int64_t width,
               const Use& use) {
  for (int64_t j = 0; j < width; ++j) {
    const int64_t row = first + j;
    const int32_t* label = std::lower_bound(labels.begin(row), labels.end(row), unit);
    for (; label != labels.end(row) && *label < unit + neurons; ++label) {
      use(row, (*label - unit) * width + j);
    }
  }
}

}  // namespace

void FullCrossentropy(const DenseScan& scan, const CsrView& labels, const SoftmaxParts& parts,
                      float* loss, const ParallelFor& parallel) {
  const Panels panels(scan);
  const Slabs slabs = UnitSlabs(scan, 64);
  const int64_t rows = scan.rows;
  // A finite start: the difference of two infinities would be NaN.
  std::vector<float> top(slabs.count() * rows, std::numeric_limits<float>::lowest());
  std::vector<float> sum(slabs.count() * rows, 0.0f);
  std::vector<double> label_logits(slabs.count() * rows, 0.0);
  parallel(slabs.count(), SlabCost(scan, slabs), [&](int64_t begin, int64_t end) {
    for (int64_t slab = begin; slab < end; ++slab) {
      ForTiles(scan, panels, slabs.begin(slab), slabs.end(slab),
               [&](const float* tile, int64_t unit, int64_t neurons, int64_t first, int64_t width) {
                 const int64_t at = slab * rows + first;
                 Simd().column_log_sum_exp(tile, neurons, width, width, top.data() + at,
                                           sum.data() + at);
                 ForLabels(labels, unit, neurons, first, width, [&](int64_t row, int64_t place) {
                   label_logits[slab * rows + row] += tile[place];
                 });
               });
    }
  });
  for (int64_t row = 0; row < rows; ++row) {
    float best = kLowest;
    for (int64_t s = 0; s < slabs.count(); ++s) best = std::max(best, top[s * rows + row]);
    double total = 0, labelled = 0;
    for (int64_t s = 0; s < slabs.count(); ++s) {
      total += sum[s * rows + row] * std::exp(static_cast<double>(top[s * rows + row]) - best);
      labelled += label_logits[s * rows + row];
    }
    const int64_t count = labels.length(row);
    parts.top[row] = best;
    parts.log_sum[row] = static_cast<float>(std::log(total));
    parts.label_sum[row] = count == 0 ? 0.0f : static_cast<float>(labelled - count * double{best});
    loss[row] = count == 0 ? 0.0f : static_cast<float>(std::log(total) - (labelled / count - best));
  }
}

namespace {

// The k best so far, as a heap in `best` with the worst of them in front.
void Offer(Scored* best, int64_t k, const Scored& candidate) {
  if (!Before(candidate, best[0])) return;
  std::pop_heap(best, best + k, Before);
  best[k - 1] = candidate;
  std::push_heap(best, best + k, Before);
}

// Places that no score above -infinity took go to the lowest ids left.
void FillPlaces(int64_t k, int32_t* ids) {
  int64_t filled = std::find(ids, ids + k, -1) - ids;
  for (int32_t id = 0; filled < k; ++id) {
    if (std::find(ids, ids + filled, id) == ids + filled) ids[filled++] = id;
  }
}

// Offers the values of a tile that exceed their rows' limits, and raises these.
void OfferTile(const float* tile, int64_t unit, int64_t neurons, int64_t width, int64_t k,
               Scored* best, float* limit) {
  for (int64_t i = 0; i < neurons; ++i) {
    const float* values = tile + i * width;
    if (!Simd().any_above(values, limit, width)) continue;
    for (int64_t j = 0; j < width; ++j) {
      if (!(values[j] > limit[j])) continue;
      Offer(best + j * k, k, {values[j], static_cast<int32_t>(unit + i)});
      limit[j] = best[j * k].score;
    }
  }
}

}  // namespace

void TopK(const DenseScan& scan, int64_t k, int32_t* ids, float* scores,
          const ParallelFor& parallel) {
  const Panels panels(scan);
  const Slabs slabs = UnitSlabs(scan, 64);
  const int64_t size = scan.rows * k;
  std::vector<Scored> best(slabs.count() * size, Scored{kLowest, -1});
  parallel(slabs.count(), SlabCost(scan, slabs), [&](int64_t begin, int64_t end) {
    std::vector<float> limit(scan.rows);
    for (int64_t slab = begin; slab < end; ++slab) {
      std::fill(limit.begin(), limit.end(), kLowest);
      ForTiles(scan, panels, slabs.begin(slab), slabs.end(slab),
               [&](const float* tile, int64_t unit, int64_t neurons, int64_t first, int64_t width) {
                 OfferTile(tile, unit, neurons, width, k, best.data() + slab * size + first * k,
                           limit.data() + first);
               });
    }
  });
  parallel(scan.rows, slabs.count() * k * 20, [&](int64_t begin, int64_t end) {
    for (int64_t row = begin; row < end; ++row) {
      Scored* merged = &best[row * k];  // the first slab's
      for (int64_t slab = 1; slab < slabs.count(); ++slab) {
        for (int64_t j = 0; j < k; ++j) Offer(merged, k, best[slab * size + row * k + j]);
      }
      std::sort_heap(merged, merged + k, Before);
      for (int64_t j = 0; j < k; ++j) {
        ids[row * k + j] = merged[j].id;
        scores[row * k + j] = merged[j].score;
      }
      FillPlaces(k, ids + row * k);
    }
  });
}

void FullCrossentropyGradient(const DenseScan& scan, const CsrView& labels,
                              const SoftmaxTotals& totals, float* x_gradient, float* w_gradient,
                              float* bias_gradient, const ParallelFor& parallel) {
  const Panels panels(scan);
  const Slabs slabs = UnitSlabs(scan, 16);
  std::vector<float> scale(scan.rows);
  for (int64_t row = 0; row < scan.rows; ++row) scale[row] = totals.Scale(row);
  const int64_t d = scan.d, size = scan.rows * d;
  std::vector<float> x_sums(slabs.count() * size, 0.0f);
  std::fill_n(w_gradient, scan.units * d, 0.0f);
  if (bias_gradient) std::fill_n(bias_gradient, scan.units, 0.0f);
  parallel(slabs.count(), 3 * SlabCost(scan, slabs), [&](int64_t begin, int64_t end) {
    for (int64_t slab = begin; slab < end; ++slab) {
      ForTiles(scan, panels, slabs.begin(slab), slabs.end(slab),
               [&](float* tile, int64_t unit, int64_t neurons, int64_t first, int64_t width) {
                 Simd().column_softmax(tile, neurons, width, width, totals.top + first,
                                       &scale[first]);
                 ForLabels(labels, unit, neurons, first, width,
                           [&](int64_t row, int64_t place) { tile[place] -= totals.Target(row); });
                 Simd().gemm(neurons, d, width, tile, width, 1, scan.x + first * d, d,
                             w_gradient + unit * d, d, true);
                 Simd().gemm(width, d, neurons, tile, 1, width, scan.w + unit * d, d,
                             x_sums.data() + slab * size + first * d, d, true);
                 if (bias_gradient == nullptr) return;
                 for (int64_t i = 0; i < neurons; ++i) {
                   for (int64_t j = 0; j < width; ++j) {
                     bias_gradient[unit + i] += tile[i * width + j];
                   }
                 }
               });
    }
  });
  std::fill_n(x_gradient, size, 0.0f);
  for (int64_t slab = 0; slab < slabs.count(); ++slab) {
    Simd().add(x_sums.data() + slab * size, size, x_gradient);
  }
}

}  // namespace dslide
