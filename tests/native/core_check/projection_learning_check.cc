#include <algorithm>
#include <cmath>

#include "custom_ops/core/hashing.h"
#include "custom_ops/core/projection_learning.h"
#include "tests/native/core_check/check.h"

namespace dslide {
namespace {

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

const Checks kChecks = {CheckProjections};

}  // namespace
}  // namespace dslide
