#include "custom_ops/core/dense_scan.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <vector>

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

// Logits of `neurons` units from `unit` on for the panel that begins at `first`: (neurons, width).
void TileLogits(const DenseScan& scan, const Panels& panels, int64_t unit, int64_t neurons,
                int64_t first, float* tile) {
  const int64_t width = panels.Width(first);
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

void LogSumExp(const DenseScan& scan, const LogSums& sums, const ParallelFor& parallel) {
  const Panels panels(scan);
  const Slabs slabs = UnitSlabs(scan, 64);
  // A finite start: the difference of two infinities would be NaN.
  std::vector<float> top(slabs.count() * scan.rows, std::numeric_limits<float>::lowest());
  std::vector<float> sum(slabs.count() * scan.rows, 0.0f);
  parallel(slabs.count(), SlabCost(scan, slabs), [&](int64_t begin, int64_t end) {
    for (int64_t slab = begin; slab < end; ++slab) {
      ForTiles(scan, panels, slabs.begin(slab), slabs.end(slab),
               [&](const float* tile, int64_t, int64_t neurons, int64_t first, int64_t width) {
                 const int64_t at = slab * scan.rows + first;
                 Simd().column_log_sum_exp(tile, neurons, width, width, &top[at], &sum[at]);
               });
    }
  });
  for (int64_t row = 0; row < scan.rows; ++row) {
    float best = kLowest;
    for (int64_t s = 0; s < slabs.count(); ++s) best = std::max(best, top[s * scan.rows + row]);
    double total = 0;
    for (int64_t s = 0; s < slabs.count(); ++s) {
      total +=
          sum[s * scan.rows + row] * std::exp(static_cast<double>(top[s * scan.rows + row]) - best);
    }
    sums.top[row] = best;
    sums.log_sum[row] = static_cast<float>(std::log(total));
  }
}

namespace {

// The k best of a row so far, falling; ids come in rising order, so equals stay behind.
class BestList {
 public:
  BestList(int64_t k, int32_t* ids, float* scores) : k_(k), ids_(ids), scores_(scores) {}

  void Offer(int32_t id, float score) {
    if (!(score > scores_[k_ - 1])) return;
    int64_t place = k_ - 1;
    for (; place > 0 && score > scores_[place - 1]; --place) {
      scores_[place] = scores_[place - 1];
      ids_[place] = ids_[place - 1];
    }
    scores_[place] = score;
    ids_[place] = id;
  }

 private:
  int64_t k_;
  int32_t* ids_;
  float* scores_;
};

// Places that no score above -infinity took go to the lowest ids left.
void FillPlaces(int64_t k, int32_t* ids) {
  int64_t filled = std::find(ids, ids + k, -1) - ids;
  for (int32_t id = 0; filled < k; ++id) {
    if (std::find(ids, ids + filled, id) == ids + filled) ids[filled++] = id;
  }
}

}  // namespace

void TopK(const DenseScan& scan, int64_t k, int32_t* ids, float* scores,
          const ParallelFor& parallel) {
  const Panels panels(scan);
  const Slabs slabs = UnitSlabs(scan, 64);
  const int64_t size = scan.rows * k;
  std::vector<int32_t> slab_ids(slabs.count() * size, -1);
  std::vector<float> slab_scores(slabs.count() * size, kLowest);
  parallel(slabs.count(), SlabCost(scan, slabs), [&](int64_t begin, int64_t end) {
    std::vector<float> limit(scan.rows);
    for (int64_t slab = begin; slab < end; ++slab) {
      std::fill(limit.begin(), limit.end(), kLowest);
      ForTiles(scan, panels, slabs.begin(slab), slabs.end(slab),
               [&](const float* tile, int64_t unit, int64_t neurons, int64_t first, int64_t width) {
                 for (int64_t i = 0; i < neurons; ++i) {
                   const float* row = tile + i * width;
                   if (!Simd().any_above(row, &limit[first], width)) continue;
                   for (int64_t j = 0; j < width; ++j) {
                     if (!(row[j] > limit[first + j])) continue;
                     const int64_t at = slab * size + (first + j) * k;
                     BestList(k, &slab_ids[at], &slab_scores[at])
                         .Offer(static_cast<int32_t>(unit + i), row[j]);
                     limit[first + j] = slab_scores[at + k - 1];
                   }
                 }
               });
    }
  });
  std::fill_n(ids, size, -1);
  std::fill_n(scores, size, kLowest);
  parallel(scan.rows, slabs.count() * k * 4, [&](int64_t begin, int64_t end) {
    for (int64_t row = begin; row < end; ++row) {
      BestList best(k, ids + row * k, scores + row * k);
      for (int64_t slab = 0; slab < slabs.count(); ++slab) {
        const int64_t at = slab * size + row * k;
        for (int64_t j = 0; j < k; ++j) best.Offer(slab_ids[at + j], slab_scores[at + j]);
      }
      FillPlaces(k, ids + row * k);
    }
  });
}

void FullCrossentropy(const DenseScan& scan, const CsrView& labels, const LogSums& sums,
                      float* loss, const ParallelFor& parallel) {
  parallel(scan.rows, 100 + scan.d, [&](int64_t begin, int64_t end) {
    for (int64_t row = begin; row < end; ++row) {
      loss[row] = 0;
      if (labels.length(row) == 0) continue;
      double sum = 0;
      const int32_t zero = 0;
      for (const int32_t* label = labels.begin(row); label != labels.end(row); ++label) {
        float logit;
        Simd().dot_entries(scan.w + *label * scan.d, scan.x + row * scan.d, scan.d, &zero, nullptr,
                           1, scan.bias ? scan.bias[*label] : 0.0f, &logit);
        sum += static_cast<double>(logit) - sums.top[row];
      }
      loss[row] = static_cast<float>(sums.log_sum[row] - sum / labels.length(row));
    }
  });
}

namespace {

// upstream of the rows that have labels; a row without labels has no gradient.
std::vector<float> Weights(const CsrView& labels, const float* upstream) {
  std::vector<float> weight(upstream, upstream + labels.rows);
  for (int64_t row = 0; row < labels.rows; ++row) {
    if (labels.length(row) == 0) weight[row] = 0;
  }
  return weight;
}

// What turns exp(logit - top) into a probability times the row's weight.
std::vector<float> Normalisers(const std::vector<float>& weight, const float* log_sum) {
  std::vector<float> scale(weight.size());
  for (size_t row = 0; row < scale.size(); ++row) {
    scale[row] = static_cast<float>(weight[row] * std::exp(-static_cast<double>(log_sum[row])));
  }
  return scale;
}

// Takes the targets away from a tile of probabilities.
void SubtractTargets(const CsrView& labels, const float* weight, int64_t unit, int64_t neurons,
                     int64_t first, int64_t width, float* tile) {
  for (int64_t j = 0; j < width; ++j) {
    const int64_t row = first + j;
    const int32_t* label = std::lower_bound(labels.begin(row), labels.end(row), unit);
    for (; label != labels.end(row) && *label < unit + neurons; ++label) {
      tile[(*label - unit) * width + j] -= weight[row] / labels.length(row);
    }
  }
}

}  // namespace

void FullCrossentropyGradient(const DenseScan& scan, const CsrView& labels, const LogSums& sums,
                              const float* upstream, float* x_gradient, float* w_gradient,
                              float* bias_gradient, const ParallelFor& parallel) {
  const Panels panels(scan);
  const Slabs slabs = UnitSlabs(scan, 16);
  const std::vector<float> weight = Weights(labels, upstream);
  const std::vector<float> scale = Normalisers(weight, sums.log_sum);
  const int64_t d = scan.d, size = scan.rows * d;
  std::vector<float> x_sums(slabs.count() * size, 0.0f);
  std::fill_n(w_gradient, scan.units * d, 0.0f);
  if (bias_gradient) std::fill_n(bias_gradient, scan.units, 0.0f);
  parallel(slabs.count(), 3 * SlabCost(scan, slabs), [&](int64_t begin, int64_t end) {
    for (int64_t slab = begin; slab < end; ++slab) {
      ForTiles(scan, panels, slabs.begin(slab), slabs.end(slab),
               [&](float* tile, int64_t unit, int64_t neurons, int64_t first, int64_t width) {
                 Simd().column_softmax(tile, neurons, width, width, sums.top + first,
                                       &scale[first]);
                 SubtractTargets(labels, weight.data(), unit, neurons, first, width, tile);
                 Simd().gemm(neurons, d, width, tile, width, 1, scan.x + first * d, d,
                             w_gradient + unit * d, d, true);
                 Simd().gemm(width, d, neurons, tile, 1, width, scan.w + unit * d, d,
                             &x_sums[slab * size + first * d], d, true);
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
    Simd().add(&x_sums[slab * size], size, x_gradient);
  }
}

}  // namespace dslide
