#include <algorithm>
#include <cmath>
#include <set>
#include <utility>

#include "custom_ops/core/optimizers.h"
#include "custom_ops/core/simd.h"
#include "custom_ops/core/sparse_products.h"
#include "tests/native/core_check/check.h"
#include "tests/native/core_check/layer.h"

namespace dslide {
namespace {

// Adam.
const AdamSettings kSettings = {0.01, 0.3, 0.9f, 0.99f, 1e-3f, 30};
const AdamStep kStep = {static_cast<float>(kSettings.rate * kSettings.Correction(30)), 0.9f, 0.99f,
                        1e-3f, 0.003f};

struct Moments {
  Floats weight, momentum, velocity;

  Moments(int64_t size, Source* source)
      : weight(source->Array(size)), momentum(source->Array(size)), velocity(source->Array(size)) {
    for (float& value : velocity) value *= value;
  }
  AdamUpdate Update(int64_t d) {
    return {weight.data(), momentum.data(), velocity.data(), nullptr, d, kSettings};
  }
  AdamUpdate Update(int64_t d, Ints* last_step) {
    return {weight.data(), momentum.data(), velocity.data(), last_step->data(), d, kSettings};
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
    Moments loop = start;
    Simd().adam(loop.weight.data(), loop.momentum.data(), loop.velocity.data(), gradient.data(), n,
                kStep);
    CheckAdamIsSame(one, loop, "DenseAdam by one loop");
    CheckStep(start, one, Doubles(gradient.begin(), gradient.end()), Doubles(n, 0), "DenseAdam");
  }
}

// The factors of missed steps against the steps themselves, with the momentum 1 and the velocity 1.
void CheckMissedSteps() {
  for (double beta_1 : {0.0, 0.5, 0.9}) {
    for (double decay : {0.0, 0.1}) {
      const int64_t last = 1400;
      const MissedSteps missed({0.01, decay, beta_1, 0.999, 0.0, last});
      for (int64_t n : {1, 2, 100, 511, 512, 513, 1000, 1399}) {
        double drift = 0, keep = 1;
        for (int64_t j = 1; j <= n; ++j) {
          const int64_t step = last - n + j;
          const double correction =
              std::sqrt(1 - std::pow(0.999, step)) / (1 - std::pow(beta_1, step));
          keep *= 1 - 0.01 * decay;
          drift = drift * (1 - 0.01 * decay) +
                  0.01 * correction * std::pow(beta_1, j) / std::sqrt(std::pow(0.999, j));
        }
        const AdamMissed got = missed.Of(n);
        const std::string what = "MissedSteps::Of " + std::to_string(n);
        CheckClose({got.drift, got.keep, got.keep_2}, {drift, keep, std::pow(0.999, n)},
                   {1e-3 * drift, 1e-5, 1e-5}, what);
        Check(std::abs(got.keep_1 - std::pow(beta_1, n)) < 1e-6, what);
      }
    }
  }
}

// Rows that are behind: in one sweep or in two, on one thread or on four.
void CheckCatchingUp() {
  Source source(27);
  const int64_t rows = 50, d = 37;
  const Moments start(rows * d, &source);
  const Floats gradient = source.Array(rows * d);
  Ints last(rows), all(rows);
  for (int64_t row = 0; row < rows; ++row) {
    last[row] = source.Integer(30);
    all[row] = static_cast<int32_t>(row);
  }
  Moments apart = start;
  Ints apart_last = last;
  apart.Update(d, &apart_last).CatchUpAll(rows, Alone);
  Check(apart_last == Ints(rows, 29), "AdamUpdate::CatchUpAll: last_step");
  for (int64_t i = 0; i < rows * d; ++i) {
    const int64_t missed = 29 - last[i / d];
    const double left = std::pow(0.9, missed) * start.momentum[i];
    Check(std::abs(apart.momentum[i] - left) < 1e-5, "AdamUpdate::CatchUpAll: momentum");
    Check(missed > 0 || apart.weight[i] == start.weight[i], "AdamUpdate::CatchUpAll: weight");
  }
  UpdateAll(apart.Update(d, &apart_last), rows * d, gradient.data(), Alone);
  for (const ParallelFor& pool : kPools) {
    Moments dense = start, by_row = start, brought = start, one_by_one = start;
    Ints dense_last = last, row_last = last, brought_last = last, one_last = last;
    UpdateAll(dense.Update(d, &dense_last), rows * d, gradient.data(), pool);
    UpdateRows(by_row.Update(d, &row_last), all.data(), rows, gradient.data(), pool);
    brought.Update(d, &brought_last).CatchUpAll(rows, pool);
    UpdateAll(brought.Update(d, &brought_last), rows * d, gradient.data(), pool);
    const AdamUpdate update = one_by_one.Update(d, &one_last);
    update.CatchUp(0, 3);
    for (int64_t row = 0; row < rows; ++row) update.MoveRow(row, &gradient[row * d]);
    for (const Moments* other : {&dense, &by_row, &brought, &one_by_one}) {
      // A row alone, or all as one array: some weights are treated in a vector or not.
      for (int64_t i = 0; i < rows * d; ++i) {
        Check(std::abs(other->weight[i] - apart.weight[i]) < 1e-5 * (1 + std::abs(apart.weight[i])),
              "late rows: weight");
        Check(std::abs(other->momentum[i] - apart.momentum[i]) < 1e-6, "late rows: momentum");
      }
    }
    for (const Ints& steps : {apart_last, dense_last, row_last, brought_last, one_last}) {
      Check(steps == Ints(rows, 30), "late rows: last_step");
    }
  }
}

void CheckRowAdam(const Shape& shape, const Layer& layer, Source* source) {
  const int64_t d = shape.d;
  const View view(layer, shape.units, Alone);
  const GradientFactors factors = layer.factors(shape);
  const int64_t count = view.neurons.size();
  const Moments start(shape.units * d, source);
  Floats gradient(count * d);
  RowGradient(view.view(), factors, gradient.data(), Alone);
  Moments apart = start;
  UpdateRows(apart.Update(d), view.neurons.data(), count, gradient.data(), Alone);
  for (const ParallelFor& pool : kPools) {
    Moments threads = start, fused = start;
    UpdateRows(threads.Update(d), view.neurons.data(), count, gradient.data(), pool);
    CheckAdamIsSame(apart, threads, shape.Name("RowAdam by threads"));
    UpdateRowsOf(view.view(), factors, fused.Update(d), pool);
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
  const GradientFactors factors = layer.factors(shape);
  const int64_t count = view.neurons.size();
  Floats weight = source->Array(shape.units * d), sums = source->Array(shape.units * d);
  for (float& sum : sums) sum *= sum;
  Floats gradient(count * d);
  RowGradient(view.view(), factors, gradient.data(), Alone);
  const AdagradStep step = {0.05f, 1e-3f, 0.002f};
  for (bool unit_rows : {false, true}) {
    Floats w = weight, v = sums, w_fused = weight, v_fused = sums;
    UpdateRows(AdagradUpdate(w.data(), v.data(), d, step, unit_rows), view.neurons.data(), count,
               gradient.data(), FourThreads);
    UpdateRowsOf(view.view(), factors,
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

// All weights at once, against the loops of rows that they are made of.
void CheckDenseAdagrad() {
  Source source(26);
  const AdagradStep step = {0.05f, 1e-3f, 0.002f};
  const int64_t rows = 30, d = 33;
  const Floats gradient = source.Array(rows * d), start = source.Array(rows * d);
  for (bool unit_rows : {false, true}) {
    for (const ParallelFor& pool : kPools) {
      Floats w = start, v(rows * d, 0.5f), expected = start, sums = v;
      UpdateAll(AdagradUpdate(w.data(), v.data(), d, step, unit_rows), rows * d, gradient.data(),
                pool);
      Simd().adagrad(expected.data(), sums.data(), gradient.data(), rows * d, step);
      const Floats before_scaling = expected;
      for (int64_t row = 0; unit_rows && row < rows; ++row) {
        Simd().normalize(&expected[row * d], d);
        double squares = 0;
        for (int64_t i = 0; i < d; ++i) squares += double{w[row * d + i]} * w[row * d + i];
        Check(std::abs(squares - 1) < 8 * kRounding, "length of a row");
      }
      CheckSame(w, expected, "DenseAdagrad: weight");
      CheckSame(v, sums, "DenseAdagrad: accumulator");
      Floats moved = start, moved_sums(rows * d, 0.5f);
      const AdagradUpdate adagrad(moved.data(), moved_sums.data(), d, step, unit_rows);
      const RowUpdate& update = adagrad;
      update.Move(0, rows * d, gradient.data());
      CheckSame(moved, before_scaling, "AdagradUpdate::Move");
      for (int64_t row = 0; row < rows; ++row) update.Finish(row);
      CheckSame(moved, expected, "RowUpdate::Finish");
      Check(update.d() == d && update.unit_rows() == unit_rows, "RowUpdate");
    }
  }
  Floats zeros(5);
  Simd().normalize(zeros.data(), 5);
  CheckSame(zeros, Floats(5), "zeros have no direction");
}

void CheckGroupedRows() {
  Source source(21);
  for (int64_t count : {0, 1, 5, 100}) {
    Ints rows(count);
    for (int32_t& row : rows) row = source.Integer(13);
    const GroupedRows groups(rows.data(), count);
    const CscView view = groups.view();
    Check(view.size() == count, "entries of grouped rows");
    for (int64_t u = 1; u < view.count; ++u) {
      Check(view.neurons[u - 1] < view.neurons[u], "grouped rows ascend");
    }
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

void CheckRowUpdates() {
  ForLayers(34, [](const Shape& shape, const Layer& layer, Source* source) {
    CheckRowAdam(shape, layer, source);
    CheckAdagrad(shape, layer, source);
  });
}

const Checks kChecks = {CheckDenseAdam,   CheckDenseAdagrad, CheckGroupedRows,
                        CheckMissedSteps, CheckCatchingUp,   CheckRowUpdates};

}  // namespace
}  // namespace dslide
