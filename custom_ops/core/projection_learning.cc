#include "custom_ops/core/projection_learning.h"

#include <algorithm>
#include <cmath>
#include <functional>
#include <numeric>
#include <vector>

#include "custom_ops/core/random.h"
#include "custom_ops/core/simd.h"

namespace dslide {
namespace {

// Of one step of a table: queries, positives of each query, and other neurons.
constexpr int64_t kQueries = 32;
constexpr int64_t kPositives = 4;
constexpr int64_t kOthers = 256;
// Other neurons that all steps take theirs from.
constexpr int64_t kMostOthers = 2048;
// One neuron of so many is among a query's best.
constexpr int64_t kShareOfBest = 128;

// Rows and columns of a matrix, both ways.
struct Vectors {
  int64_t count = 0;
  int64_t dim = 0;             // with a last coordinate that is 1 in each
  std::vector<float> rows;     // (count, dim)
  std::vector<float> columns;  // (dim, count)
};

// Moves vectors to mean 0 and mean square length `dim`.
struct Scaling {
  std::vector<float> mean;
  float scale = 0;  // 0: the vectors do not differ

  Scaling(const float* x, int64_t count, int64_t dim) : mean(dim) {
    std::vector<double> sum(dim, 0);
    double squares = 0;
    for (int64_t i = 0; i < count; ++i) {
      for (int64_t j = 0; j < dim; ++j) sum[j] += x[i * dim + j];
    }
    for (int64_t j = 0; j < dim; ++j) mean[j] = static_cast<float>(sum[j] / count);
    for (int64_t i = 0; i < count; ++i) {
      for (int64_t j = 0; j < dim; ++j) {
        const double off = x[i * dim + j] - mean[j];
        squares += off * off;
      }
    }
    scale = static_cast<float>(1 / std::sqrt(squares / count));
    if (!(scale - scale == 0)) scale = 0;
  }

  Vectors Apply(const float* x, const std::vector<int64_t>& picked, int64_t dim) const {
    Vectors result;
    result.count = picked.size();
    result.dim = dim + 1;
    result.rows.resize(result.count * result.dim);
    result.columns.resize(result.count * result.dim);
    for (int64_t i = 0; i < result.count; ++i) {
      float* row = result.rows.data() + i * result.dim;
      for (int64_t j = 0; j < dim; ++j) row[j] = (x[picked[i] * dim + j] - mean[j]) * scale;
      row[dim] = 1;
      for (int64_t j = 0; j <= dim; ++j) result.columns[j * result.count + i] = row[j];
    }
    return result;
  }

  // The same signs from scaled vectors, and back. Lengths are free: they leave signs as they are.
  void Enter(float* projection, int64_t dim, bool centre) const {
    double offset = projection[dim], squares = 0;
    for (int64_t j = 0; j < dim; ++j) {
      offset += static_cast<double>(projection[j]) * mean[j];
      projection[j] /= scale;
      squares += static_cast<double>(projection[j]) * projection[j];
    }
    projection[dim] = centre ? 0 : static_cast<float>(offset);
    const float length = static_cast<float>(std::sqrt(dim / squares));
    if (length - length == 0) Simd().scale(projection, dim + 1, length, projection);
  }
  void Leave(float* projection, int64_t dim) const {
    double offset = projection[dim];
    for (int64_t j = 0; j < dim; ++j) {
      projection[j] *= scale;
      offset -= static_cast<double>(projection[j]) * mean[j];
    }
    projection[dim] = static_cast<float>(offset);
  }
};

// What a table learns from. The neurons are `kPositives` of each query, in the order of queries,
// and others drawn by chance.
struct Examples {
  Vectors queries;
  Vectors neurons;
  std::vector<uint8_t> best;  // (queries, neurons): whether a neuron is among a query's best

  int64_t positives() const { return queries.count * kPositives; }
  int64_t others() const { return neurons.count - positives(); }
};

// The logits (queries, neurons).
std::vector<float> LogitsOf(const ProjectionLearning& problem, const ParallelFor& parallel) {
  const int64_t m = problem.query_count, n = problem.neuron_count, d = problem.dim;
  std::vector<float> logits(m * n);
  constexpr int64_t kBlock = 64;
  parallel((n + kBlock - 1) / kBlock, kBlock * m * d / 8, [&](int64_t begin, int64_t end) {
    std::vector<float> columns(d * kBlock);
    for (int64_t block = begin; block < end; ++block) {
      const int64_t first = block * kBlock, count = std::min(kBlock, n - first);
      for (int64_t i = 0; i < count; ++i) {
        const float* row = problem.neurons + (first + i) * d;
        for (int64_t j = 0; j < d; ++j) columns[j * kBlock + i] = row[j];
      }
      float* out = logits.data() + first;
      for (int64_t query = 0; query < m; ++query) {
        std::copy_n(problem.bias + first, count, out + query * n);
      }
      Simd().gemm(m, count, d, problem.queries, d, 1, columns.data(), kBlock, out, n, true);
    }
  });
  return logits;
}

// Some of the best neurons of each query, and the logit from which on a neuron is among them.
struct Best {
  std::vector<int64_t> neurons;  // (queries, kPositives)
  std::vector<float> least;      // (queries)
};

Best BestOf(const ProjectionLearning& problem, const std::vector<float>& logits,
            const ParallelFor& parallel) {
  const int64_t m = problem.query_count, n = problem.neuron_count;
  const int64_t best = std::min(n - 1, std::max<int64_t>(kPositives, n / kShareOfBest));
  Best result = {std::vector<int64_t>(m * kPositives), std::vector<float>(m)};
  parallel(m, n * 10, [&](int64_t begin, int64_t end) {
    std::vector<float> values;
    std::vector<int64_t> found;
    for (int64_t query = begin; query < end; ++query) {
      const float* row = logits.data() + query * n;
      values.assign(row, row + n);
      std::nth_element(values.begin(), values.begin() + best - 1, values.end(),
                       std::greater<float>());
      const float least = result.least[query] = values[best - 1];
      found.clear();
      for (int64_t i = 0; i < n; ++i) {
        if (row[i] >= least) found.push_back(i);
      }
      for (int64_t j = 0; j < kPositives; ++j) {
        result.neurons[query * kPositives + j] =
            found[Below(Mix(problem.seed, query, j), found.size())];
      }
    }
  });
  return result;
}

Examples MakeExamples(const ProjectionLearning& problem, const Scaling& query_scaling,
                      const Scaling& neuron_scaling, const ParallelFor& parallel) {
  const int64_t m = problem.query_count, n = problem.neuron_count;
  const std::vector<float> logits = LogitsOf(problem, parallel);
  Best best = BestOf(problem, logits, parallel);
  std::vector<int64_t> queries(m), order(n);
  std::iota(queries.begin(), queries.end(), 0);
  std::iota(order.begin(), order.end(), 0);
  const int64_t others = std::min(n, kMostOthers);
  for (int64_t j = 0; j < others; ++j) {
    std::swap(order[j], order[j + Below(Mix(~problem.seed, j), n - j)]);
  }
  std::vector<int64_t>& picked = best.neurons;
  picked.insert(picked.end(), order.begin(), order.begin() + others);
  Examples result;
  result.queries = query_scaling.Apply(problem.queries, queries, problem.dim);
  result.neurons = neuron_scaling.Apply(problem.neurons, picked, problem.dim);
  result.best.resize(m * picked.size());
  for (int64_t query = 0; query < m; ++query) {
    for (size_t i = 0; i < picked.size(); ++i) {
      result.best[query * picked.size() + i] = logits[query * n + picked[i]] >= best.least[query];
    }
  }
  return result;
}

// x = tanh(x).
void Tanh(std::vector<float>* x) {
  Simd().scale(x->data(), x->size(), 2, x->data());
  // Beyond this the result is 1 to the last bit, and the exponential is still finite.
  for (float& value : *x) value = std::min(20.0f, std::max(-20.0f, value));
  Simd().exp_sum(x->data(), x->size(), 0, x->data());
  for (float& value : *x) value = 1 - 2 / (value + 1);
}

// gradient *= 1 - y ^ 2, for y = tanh.
void ThroughTanh(const std::vector<float>& y, std::vector<float>* gradient) {
  for (size_t i = 0; i < y.size(); ++i) (*gradient)[i] *= 1 - y[i] * y[i];
}

// One table's projections (bits, dim) with the state of Adam.
class Trained {
 public:
  Trained(float* weights, int64_t size) : w_(weights), m_(size, 0), v_(size, 0), g_(size, 0) {}

  const float* weights() const { return w_; }
  float* gradient() { return g_.data(); }
  void Update(float rate, int64_t step) {
    constexpr float kBeta1 = 0.9f, kBeta2 = 0.99f;
    const AdamStep adam = {static_cast<float>(rate * std::sqrt(1 - std::pow(kBeta2, step)) /
                                              (1 - std::pow(kBeta1, step))),
                           kBeta1, kBeta2, 1e-9f, 0};
    Simd().adam(w_, m_.data(), v_.data(), g_.data(), g_.size(), adam);
  }

 private:
  float* w_;
  std::vector<float> m_, v_, g_;
};

// Learns the projections of one table.
class TableLearner {
 public:
  TableLearner(const Examples& examples, int64_t bits, float* queries, float* neurons)
      : examples_(examples),
        bits_(bits),
        dim_(examples.queries.dim),
        rows_(std::min(kQueries, examples.queries.count)),
        mine_(rows_ * kPositives),
        others_(std::min(kOthers, examples.others())),
        columns_(mine_ + others_),
        queries_(queries, bits * dim_),
        neurons_(neurons, bits * dim_),
        q_(bits * rows_),
        dq_(bits * rows_),
        p_(bits * columns_),
        dp_(bits * columns_),
        likeness_(rows_ * columns_),
        turned_(columns_ * rows_) {}

  void Step(uint64_t key, float rate, int64_t step) {
    row_ = Below(Mix(key, 0), examples_.queries.count - rows_ + 1);
    other_ = examples_.positives() + Below(Mix(key, 1), examples_.others() - others_ + 1);
    Forward();
    for (int64_t i = 0; i < rows_; ++i) SoftmaxGradient(i);
    Backward();
    queries_.Update(rate, step);
    neurons_.Update(rate, step);
  }

 private:
  // Relaxed bits, (bits, rows) and (bits, columns), and the likeness (rows, columns).
  void Forward() {
    Project(queries_, examples_.queries, row_, rows_, q_.data(), rows_);
    Project(neurons_, examples_.neurons, row_ * kPositives, mine_, p_.data(), columns_);
    Project(neurons_, examples_.neurons, other_, others_, p_.data() + mine_, columns_);
    Tanh(&q_);
    Tanh(&p_);
    Simd().gemm(rows_, columns_, bits_, q_.data(), 1, rows_, p_.data(), columns_, likeness_.data(),
                columns_, false);
  }

  void Project(const Trained& projections, const Vectors& vectors, int64_t first, int64_t count,
               float* out, int64_t stride) const {
    Simd().gemm(bits_, count, dim_, projections.weights(), dim_, 1, vectors.columns.data() + first,
                vectors.count, out, stride, false);
  }

  // Replaces a row of the likeness by the loss's gradient with respect to it.
  void SoftmaxGradient(int64_t i) {
    float* row = likeness_.data() + i * columns_;
    const uint8_t* best = examples_.best.data() + (row_ + i) * examples_.neurons.count;
    const uint8_t* mine = best + row_ * kPositives;
    const uint8_t* other = best + other_;
    const float sum = Simd().exp_sum(row, columns_, Simd().max(row, columns_), row);
    Simd().scale(row, columns_, 1 / (sum * rows_), row);
    const int64_t count = std::accumulate(mine, mine + mine_, int64_t{0}) +
                          std::accumulate(other, other + others_, int64_t{0});
    // At least the query's own positives.
    const float target = 1.0f / (count * rows_);
    for (int64_t j = 0; j < mine_; ++j) row[j] -= target * mine[j];
    for (int64_t j = 0; j < others_; ++j) row[mine_ + j] -= target * other[j];
  }

  void Backward() {
    for (int64_t i = 0; i < rows_; ++i) {
      for (int64_t j = 0; j < columns_; ++j) turned_[j * rows_ + i] = likeness_[i * columns_ + j];
    }
    Simd().gemm(bits_, rows_, columns_, p_.data(), columns_, 1, turned_.data(), rows_, dq_.data(),
                rows_, false);
    Simd().gemm(bits_, columns_, rows_, q_.data(), rows_, 1, likeness_.data(), columns_, dp_.data(),
                columns_, false);
    ThroughTanh(q_, &dq_);
    ThroughTanh(p_, &dp_);
    const float* x = examples_.queries.rows.data() + row_ * dim_;
    const float* n = examples_.neurons.rows.data();
    Simd().gemm(bits_, dim_, rows_, dq_.data(), rows_, 1, x, dim_, queries_.gradient(), dim_,
                false);
    Simd().gemm(bits_, dim_, mine_, dp_.data(), columns_, 1, n + row_ * kPositives * dim_, dim_,
                neurons_.gradient(), dim_, false);
    Simd().gemm(bits_, dim_, others_, dp_.data() + mine_, columns_, 1, n + other_ * dim_, dim_,
                neurons_.gradient(), dim_, true);
  }

  const Examples& examples_;
  const int64_t bits_, dim_, rows_, mine_, others_, columns_;
  Trained queries_, neurons_;
  std::vector<float> q_, dq_, p_, dp_, likeness_, turned_;
  int64_t row_ = 0;    // first query of this step
  int64_t other_ = 0;  // first of the other neurons of this step
};

}  // namespace

void LearnProjections(const ProjectionLearning& problem, float* query_projections,
                      float* neuron_projections, const ParallelFor& parallel) {
  if (problem.query_count == 0 || problem.neuron_count < 2) return;
  const int64_t d = problem.dim;
  if (!Simd().all_finite(problem.queries, problem.query_count * d) ||
      !Simd().all_finite(problem.neurons, problem.neuron_count * d) ||
      !Simd().all_finite(problem.bias, problem.neuron_count)) {
    return;
  }
  const Scaling queries(problem.queries, problem.query_count, d);
  const Scaling neurons(problem.neurons, problem.neuron_count, d);
  if (queries.scale == 0 || neurons.scale == 0) return;
  const Examples examples = MakeExamples(problem, queries, neurons, parallel);
  const int64_t size = problem.bits * (d + 1);
  parallel(problem.tables, problem.steps * size * 200, [&](int64_t begin, int64_t end) {
    for (int64_t table = begin; table < end; ++table) {
      float* q = query_projections + table * size;
      float* p = neuron_projections + table * size;
      for (int64_t bit = 0; bit < problem.bits; ++bit) {
        queries.Enter(q + bit * (d + 1), d, problem.centre);
        neurons.Enter(p + bit * (d + 1), d, problem.centre);
      }
      TableLearner learner(examples, problem.bits, q, p);
      for (int64_t step = 1; step <= problem.steps; ++step) {
        learner.Step(Mix(problem.seed, table, step), problem.learning_rate, step);
      }
      for (int64_t bit = 0; bit < problem.bits; ++bit) {
        queries.Leave(q + bit * (d + 1), d);
        neurons.Leave(p + bit * (d + 1), d);
      }
    }
  });
}

}  // namespace dslide
