// Steps of the optimizers on a variable that is seen as rows.

#ifndef TF_DSLIDE_CORE_OPTIMIZERS_H_
#define TF_DSLIDE_CORE_OPTIMIZERS_H_

#include <cstdint>
#include <memory>
#include <mutex>
#include <vector>

#include "custom_ops/core/parallel.h"
#include "custom_ops/core/simd.h"

namespace dslide {

// An optimizer's step on a variable with rows of length d.
class RowUpdate {
 public:
  RowUpdate(float* weight, int64_t d, bool unit_rows)
      : weight_(weight), d_(d), unit_rows_(unit_rows) {}
  virtual ~RowUpdate() = default;

  int64_t d() const { return d_; }
  bool unit_rows() const { return unit_rows_; }

  // Makes up for what the rows [row, row + count) missed in earlier steps; before Move.
  virtual void CatchUp(int64_t /*row*/, int64_t /*count*/) const {}

  // Moves the weights [first, first + n), given their gradient.
  virtual void Move(int64_t first, int64_t n, const float* gradient) const = 0;

  // Asks for what a step on a row needs.
  virtual void Prefetch(int64_t row) const = 0;

  // A whole step on a row, given its gradient.
  void MoveRow(int64_t row, const float* gradient) const {
    CatchUp(row, 1);
    Move(row * d_, d_, gradient);
    Finish(row);
  }

  // Brings a row to length 1, if rows are to have that.
  void Finish(int64_t row) const {
    if (unit_rows_) Simd().normalize(weight_ + row * d_, d_);
  }

 protected:
  float* weight_;

 private:
  int64_t d_;
  bool unit_rows_;
};

// A step of Adam: the numbers that it is made of.
struct AdamSettings {
  double rate;
  double decay;  // decoupled, a share of the rate
  double beta_1;
  double beta_2;
  double epsilon;
  int64_t step;  // counts from 1

  // The bias corrections of a step.
  double Correction(double step) const;
};

// What Adam does with rows in steps that bring them no gradient: the moments decay, and the weight
// goes on by what is left of them. After step l the j-th such step moves a weight by
//   rate * c(l + j) * m beta_1^j / (sqrt(v beta_2^j) + epsilon),  c(s) the bias corrections,
// so that `missed` of them come to m / (sqrt(v) + epsilon) times one factor for the whole row. Two
// things are simplified: the rate is the present one, and epsilon shrinks with sqrt(v).
class MissedSteps {
 public:
  // Steps missed up to the last one, `settings.step`.
  explicit MissedSteps(const AdamSettings& settings) : settings_(settings) {}

  // For a row that missed 1 <= missed <= step of them.
  AdamMissed Of(int64_t missed) const;

 private:
  // So many are summed up; longer gaps follow a closed form.
  static constexpr int64_t kListed = 512;

  void List() const;
  AdamMissed Long(int64_t missed) const;
  // The sum of what all steps after `last` would bring.
  double Endless(int64_t last) const;
  double MeanStep() const;
  double ratio() const;

  AdamSettings settings_;
  mutable std::once_flag once_, early_once_;
  mutable std::vector<AdamMissed> listed_;  // by the number missed
  mutable std::vector<double> early_;       // endless sums by the last step
};

// Adam with the variable's two moments and, for each row, the last step that it took part in.
class AdamUpdate : public RowUpdate {
 public:
  // Without `last_step` rows miss nothing: lazy Adam.
  AdamUpdate(float* weight, float* momentum, float* velocity, int32_t* last_step, int64_t d,
             const AdamSettings& settings, bool unit_rows = false);

  void CatchUp(int64_t row, int64_t count) const override;
  void Move(int64_t first, int64_t n, const float* gradient) const override;
  void Prefetch(int64_t row) const override;

  // Brings all rows up to the step, which gives none of them a gradient.
  void CatchUpAll(int64_t rows, const ParallelFor& parallel) const;

 private:
  void Apply(int64_t row, const AdamMissed& missed) const;

  float* momentum_;
  float* velocity_;
  int32_t* last_step_;
  int64_t before_;  // the step before this one
  AdamStep step_;
  MissedSteps missed_;
};

// Adagrad with the variable's sums of squared gradients. Rows without a gradient miss nothing.
class AdagradUpdate : public RowUpdate {
 public:
  AdagradUpdate(float* weight, float* accumulator, int64_t d, const AdagradStep& step,
                bool unit_rows = false)
      : RowUpdate(weight, d, unit_rows), accumulator_(accumulator), step_(step) {}

  void Move(int64_t first, int64_t n, const float* gradient) const override;
  void Prefetch(int64_t row) const override;

 private:
  float* accumulator_;
  AdagradStep step_;
};

// One step on all of `count` weights, given their gradient.
void UpdateAll(const RowUpdate& update, int64_t count, const float* gradient,
               const ParallelFor& parallel);

// One step on the rows named, given their gradients (count, d); rows must differ.
void UpdateRows(const RowUpdate& update, const int32_t* rows, int64_t count, const float* gradient,
                const ParallelFor& parallel);

}  // namespace dslide

#endif  // TF_DSLIDE_CORE_OPTIMIZERS_H_
