// Projections whose signs are a hash, trained so that a query and the neurons that score high for
// it get the same code.

#ifndef TF_DSLIDE_CORE_PROJECTION_LEARNING_H_
#define TF_DSLIDE_CORE_PROJECTION_LEARNING_H_

#include <cstdint>

#include "custom_ops/core/parallel.h"

namespace dslide {

struct ProjectionLearning {
  int64_t dim;
  int64_t bits;
  int64_t tables;
  const float* queries;  // (query_count, dim)
  int64_t query_count;
  const float* neurons;  // (neuron_count, dim)
  const float* bias;     // (neuron_count)
  int64_t neuron_count;
  bool centre;  // begin with offsets that put the mean of queries and neurons on each border
  int64_t steps;
  float learning_rate;
  uint64_t seed;
};

// Trains the projections (tables * bits, dim + 1) of queries and of neurons, in place; the last
// column is an offset. Bit k of a code is the sign of projection k, relaxed to its tanh. A query's
// likeness to a neuron in one table is the sum of the products of their relaxed bits; the loss of
// a table is the cross-entropy of the softmax of this likeness over a sample of neurons against
// the uniform distribution over those of them that are among the query's best. The tables learn
// apart from each other, each on samples of its own, by Adam.
//
// A neuron is among the best of a query if its inner product and bias are in the highest 1/128.
// Leaves the projections as they are where there is nothing to learn from: no queries, fewer than
// two neurons, all of them equal, or values that are not finite. Takes about
// steps * tables * bits * (dim * 800 + 40,000) multiplications, and
// query_count * neuron_count * (dim multiplications and 4 bytes).
void LearnProjections(const ProjectionLearning& problem, float* query_projections,
                      float* neuron_projections, const ParallelFor& parallel);

}  // namespace dslide

#endif  // TF_DSLIDE_CORE_PROJECTION_LEARNING_H_
