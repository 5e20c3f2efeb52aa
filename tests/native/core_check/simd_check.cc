#include <algorithm>
#include <cmath>
#include <iterator>
#include <limits>

#include "custom_ops/core/simd.h"
#include "tests/native/core_check/check.h"

namespace dslide {
namespace {

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

// What a row of Adam missed, against its definition; a weight that never had a gradient stays.
void CheckAdamMissed() {
  Source source(3);
  const AdamMissed missed = {0.05f, 0.3f, 0.98f, 0.999f};
  for (int64_t n : {1, 7, 8, 16, 33, 100}) {
    for (float epsilon : {0.0f, 1e-3f}) {
      const Floats w = source.Array(n);
      Floats m = source.Array(n), v = source.Array(n);
      for (float& value : v) value = value * value + 0.01f;
      m[0] = v[0] = 0;
      Floats weight = w, momentum = m, velocity = v;
      Simd().adam_missed(weight.data(), momentum.data(), velocity.data(), n, epsilon, missed);
      for (int64_t i = 0; i < n; ++i) {
        const double step = m[i] == 0 ? 0 : 0.05 * m[i] / (std::sqrt(double{v[i]}) + epsilon);
        Check(std::abs(weight[i] - (0.999 * w[i] - step)) < 1e-5 * (1 + std::abs(step)),
              "adam_missed: weight");
        Check(std::abs(momentum[i] - 0.3 * m[i]) < 1e-6, "adam_missed: momentum");
        Check(std::abs(velocity[i] - 0.98 * v[i]) < 1e-6, "adam_missed: velocity");
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
            if (n > kPanel) continue;
            Floats panel(k * kPanel);
            for (int64_t l = 0; l < k; ++l) std::copy_n(&b[l * ldb], n, &panel[l * kPanel]);
            c = before;
            Simd().gemm_panel(m, n, k, a.data(), turned ? 1 : k, turned ? m : 1, panel.data(),
                              c.data(), ldc, accumulate);
            CheckClose(c, exact, bound, "gemm_panel");
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

// Rows of x picked by entries, against a loop; with the places of the entries and without.
void CheckEntries() {
  Source source(24);
  for (int64_t d : {1, 7, 16, 33, 300}) {
    for (int64_t n : {0, 1, 4, 9}) {
      const int64_t rows = 12;
      const Floats x = source.Array(rows * d), w = source.Array(d), coef = source.Array(n);
      const Ints picked = source.Set(rows, n);
      Ints turned;
      for (int64_t j = n; j-- > 0;) turned.push_back(j);
      for (const int32_t* index : std::vector<const int32_t*>{nullptr, turned.data()}) {
        Floats dots(n), sums(d), spread(rows * d, 0.5f);
        Simd().dot_entries(w.data(), x.data(), d, picked.data(), index, n, 0.25f, dots.data());
        Simd().sum_entries(x.data(), d, picked.data(), index, coef.data(), n, sums.data());
        Simd().spread_entries(w.data(), d, picked.data(), index, coef.data(), n, spread.data());
        Doubles dot(n, 0.25), sum(d, 0), all(rows * d, 0.5);
        for (int64_t j = 0; j < n; ++j) {
          const int64_t at = index ? index[j] : j;
          for (int64_t i = 0; i < d; ++i) {
            const double value = x[picked[j] * d + i];
            dot[at] += w[i] * value;
            sum[i] += coef[at] * value;
            all[picked[j] * d + i] += double{coef[at]} * w[i];
          }
        }
        CheckClose(dots, dot, Doubles(n, (d + 2) * (d + 1) * kRounding), "dot_entries");
        CheckClose(sums, sum, Doubles(d, (n + 2) * (n + 1) * kRounding), "sum_entries");
        CheckClose(spread, all, Doubles(rows * d, 4 * kRounding), "spread_entries");
      }
    }
  }
}

// What the hash functions do for a block of vectors.
void CheckBlocks() {
  Source source(25);
  for (int64_t n : {1, 2, 5, 8}) {
    const int64_t dim = 40;
    Floats xt = source.Eighths(dim * kHashBlock), value = source.Eighths(n), sums(kHashBlock);
    const Ints index = source.Set(dim, n);
    Ints winner(kHashBlock), filled(kHashBlock);
    Simd().project(xt.data(), index.data(), value.data(), n, sums.data());
    for (int64_t j = 0; j < n; ++j) xt[index[j] * kHashBlock + 3] = 0;
    Simd().winner(xt.data(), index.data(), n, winner.data(), filled.data());
    for (int lane = 0; lane < kHashBlock; ++lane) {
      float sum = 0;
      int32_t best = 0;
      bool any = false;
      for (int32_t j = 0; j < n; ++j) {
        const float x = xt[index[j] * kHashBlock + lane];
        sum += value[j] * x;
        any = any || x != 0;
        if (x > xt[index[best] * kHashBlock + lane]) best = j;
      }
      Check(lane == 3 || sums[lane] == sum, "project");
      Check(winner[lane] == best && (filled[lane] != 0) == any, "winner");
    }
  }
}

void CheckLevels() {
  const SimdKernels* levels[] = {PortableKernels(), Avx2Kernels(), Avx512Kernels()};
  Check(levels[0] != nullptr, "portable loops are always there");
  Check(std::count(std::begin(levels), std::end(levels), &Simd()) == 1, "the level in use");
  Check(std::string(SimdRequestRefused()).empty(), "the level asked for is in use");
}

const Checks kChecks = {CheckSimd,    CheckAdamMissed, CheckBlockTops, CheckExp,   CheckGemm,
                        CheckColumns, CheckEntries,    CheckBlocks,    CheckLevels};

}  // namespace
}  // namespace dslide
