#include "custom_ops/core/optimizers.h"

#include <algorithm>
#include <cmath>

#include "custom_ops/core/prefetch.h"

namespace dslide {

double AdamSettings::Correction(double step) const {
  return std::sqrt(1.0 - std::pow(beta_2, step)) / (1.0 - std::pow(beta_1, step));
}

// By how much more the momentum shrinks a step than the root of the velocity.
double MissedSteps::ratio() const { return settings_.beta_1 / std::sqrt(settings_.beta_2); }

namespace {

// Below this a moment is forgotten: what follows would be numbers too small for a float.
constexpr double kForgotten = 1e-30;

AdamMissed Missed(double drift, double keep_1, double keep_2, double keep) {
  auto flushed = [](double factor) {
    return factor < kForgotten ? 0.0f : static_cast<float>(factor);
  };
  return {static_cast<float>(drift), flushed(keep_1), flushed(keep_2), flushed(keep)};
}

}  // namespace

AdamMissed MissedSteps::Of(int64_t missed) const {
  if (missed > kListed) return Long(missed);
  std::call_once(once_, [this] { List(); });
  return listed_[missed];
}

void MissedSteps::List() const {
  const int64_t most = std::min(kListed, settings_.step), first = settings_.step - most;
  std::vector<double> correction(most + 1);
  double power_1 = std::pow(settings_.beta_1, first), power_2 = std::pow(settings_.beta_2, first);
  for (int64_t j = 1; j <= most; ++j) {
    power_1 *= settings_.beta_1;
    power_2 *= settings_.beta_2;
    correction[j] = std::sqrt(1.0 - power_2) / (1.0 - power_1);
  }
  listed_.resize(most + 1);
  double drift = 0.0, keep_1 = 1.0, keep_2 = 1.0, keep = 1.0;
  for (int64_t missed = 1; missed <= most; ++missed) {
    // The first of these steps comes before those of a row that missed one less.
    drift = ratio() * (correction[most - missed + 1] * keep + drift);
    keep_1 *= settings_.beta_1;
    keep_2 *= settings_.beta_2;
    keep *= 1.0 - settings_.rate * settings_.decay;
    listed_[missed] = Missed(settings_.rate * drift, keep_1, keep_2, keep);
  }
}

AdamMissed MissedSteps::Long(int64_t missed) const {
  const double n = static_cast<double>(missed);
  const double sum =
      Endless(settings_.step - missed) - std::pow(ratio(), n) * Endless(settings_.step);
  const double keep = 1.0 - settings_.rate * settings_.decay;
  return Missed(settings_.rate * sum * std::pow(keep, n - MeanStep()),
                std::pow(settings_.beta_1, n), std::pow(settings_.beta_2, n), std::pow(keep, n));
}

// The step about which the terms of an endless sum lie.
double MissedSteps::MeanStep() const { return 1.0 / (1.0 - ratio()); }

double MissedSteps::Endless(int64_t last) const {
  // Later on the bias corrections change so slowly that those of the mean step stand for all.
  auto late = [this](double step) {
    return settings_.Correction(step + MeanStep()) * ratio() / (1.0 - ratio());
  };
  if (last >= kListed) return late(static_cast<double>(last));
  std::call_once(early_once_, [&] {
    early_.resize(kListed);
    double sum = late(kListed);
    for (int64_t step = kListed - 1; step >= 0; --step) {
      sum = early_[step] = ratio() * (settings_.Correction(step + 1.0) + sum);
    }
  });
  return early_[last];
}

namespace {

AdamStep StepOf(const AdamSettings& s) {
  return {static_cast<float>(s.rate * s.Correction(s.step)), static_cast<float>(s.beta_1),
          static_cast<float>(s.beta_2), static_cast<float>(s.epsilon),
          static_cast<float>(s.rate * s.decay)};
}

AdamSettings StepBefore(AdamSettings settings) {
  --settings.step;
  return settings;
}

}  // namespace

AdamUpdate::AdamUpdate(float* weight, float* momentum, float* velocity, int32_t* last_step,
                       int64_t d, const AdamSettings& settings, bool unit_rows)
    : RowUpdate(weight, d, unit_rows),
      momentum_(momentum),
      velocity_(velocity),
      last_step_(last_step),
      before_(settings.step - 1),
      step_(StepOf(settings)),
      missed_(StepBefore(settings)) {}

void AdamUpdate::CatchUp(int64_t row, int64_t count) const {
  if (last_step_ == nullptr) return;
  for (int64_t r = row; r < row + count; ++r) {
    const int64_t missed = before_ - last_step_[r];
    if (missed > 0) Apply(r, missed_.Of(std::min(missed, before_)));
    last_step_[r] = static_cast<int32_t>(before_ + 1);
  }
}

void AdamUpdate::Apply(int64_t row, const AdamMissed& missed) const {
  const int64_t first = row * d();
  Simd().adam_missed(weight_ + first, momentum_ + first, velocity_ + first, d(), step_.epsilon,
                     missed);
}

void AdamUpdate::CatchUpAll(int64_t rows, const ParallelFor& parallel) const {
  if (last_step_ == nullptr) return;
  parallel(rows, 3 * StreamCost(d()), [&](int64_t begin, int64_t end) {
    for (int64_t row = begin; row < end; ++row) {
      if (last_step_[row] >= before_) continue;
      CatchUp(row, 1);
      last_step_[row] = static_cast<int32_t>(before_);
      Finish(row);
    }
  });
}

void AdamUpdate::Move(int64_t first, int64_t n, const float* gradient) const {
  Simd().adam(weight_ + first, momentum_ + first, velocity_ + first, gradient, n, step_);
}

void AdamUpdate::Prefetch(int64_t row) const {
  if (last_step_ != nullptr) dslide::Prefetch(last_step_ + row);
  for (const float* values : {weight_, momentum_, velocity_}) {
    PrefetchRange(values + row * d(), d());
  }
}

void AdagradUpdate::Move(int64_t first, int64_t n, const float* gradient) const {
  Simd().adagrad(weight_ + first, accumulator_ + first, gradient, n, step_);
}

void AdagradUpdate::Prefetch(int64_t row) const {
  for (const float* values : {weight_, accumulator_}) PrefetchRange(values + row * d(), d());
}

void UpdateAll(const RowUpdate& update, int64_t count, const float* gradient,
               const ParallelFor& parallel) {
  if (count == 0) return;
  const int64_t rows = count / update.d();
  parallel(rows, 1 + StreamCost(update.d()) / 8,
           [&](int64_t begin, int64_t end) { update.CatchUp(begin, end - begin); });
  // Whole blocks of vectors: whether a weight is treated in a vector or alone must not depend on
  // where the range is cut, for the two may round differently.
  constexpr int64_t kBlock = 64;
  parallel((count + kBlock - 1) / kBlock, kBlock, [&](int64_t begin, int64_t end) {
    const int64_t first = begin * kBlock, last = std::min(count, end * kBlock);
    update.Move(first, last - first, gradient + first);
  });
  if (!update.unit_rows()) return;
  parallel(rows, StreamCost(update.d()), [&](int64_t begin, int64_t end) {
    for (int64_t row = begin; row < end; ++row) update.Finish(row);
  });
}

void UpdateRows(const RowUpdate& update, const int32_t* rows, int64_t count, const float* gradient,
                const ParallelFor& parallel) {
  const int64_t d = update.d();
  parallel(count, 4 * StreamCost(d), [&](int64_t begin, int64_t end) {
    for (int64_t u = begin; u < end; ++u) {
      if (u + kRowsAhead < end) update.Prefetch(rows[u + kRowsAhead]);
      update.MoveRow(rows[u], gradient + u * d);
    }
  });
}

}  // namespace dslide
