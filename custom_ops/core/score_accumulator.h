// The scores of neurons for one sample: sums of its features' values times their weights.

#ifndef TF_DSLIDE_CORE_SCORE_ACCUMULATOR_H_
#define TF_DSLIDE_CORE_SCORE_ACCUMULATOR_H_

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>
#include <vector>

#include "custom_ops/core/scored.h"
#include "custom_ops/core/sparse_linear.h"

namespace dslide {

// A neuron among others: one whose logit is no number comes last.
inline Scored Ranked(float logit, int32_t neuron) {
  return {std::isnan(logit) ? -std::numeric_limits<float>::infinity() : logit, neuron};
}

// The scores for one sample at a time, and which neurons are active in it. As many scores as there
// are neurons are allocated once a thread, and only the cache lines that were touched are cleared.
class ScoreAccumulator {
 public:
  explicit ScoreAccumulator(int64_t units);
  ~ScoreAccumulator() { Clear(); }
  ScoreAccumulator(const ScoreAccumulator&) = delete;
  ScoreAccumulator& operator=(const ScoreAccumulator&) = delete;

  // Forgets the sample before; whether the weights of the row's features are what they claim to be.
  // They are too many to be checked as a whole in every step.
  bool AddRow(const SparseRows& x, int64_t row, const SparseKernel& kernel);

  // A neuron's logit without its bias.
  float score(int32_t neuron) const { return scores_[neuron]; }
  // Whether a feature has a weight for the neuron.
  bool Has(int32_t neuron) const { return !IsUntouched(scores_[neuron]); }

  // Calls `use(neuron)` for the neurons that have a score, ascending.
  template <typename Use>
  void ForTouched(const Use& use) const {
    for (int64_t i = 0; i < count_; ++i) {
      const int32_t first = touched_lines_[i];
      for (int32_t neuron = first; neuron < EndOfLine(first); ++neuron) {
        if (Has(neuron)) use(neuron);
      }
    }
  }

  // The `count` neurons of the highest logits among those that have a score and are not active, in
  // no order; the lower id among equals, NaN last.
  void Best(const SparseKernel& kernel, int64_t count, std::vector<Scored>* best);

  // Notes where an active neuron stands.
  void Activate(int32_t neuron, int32_t place);
  // Where an active neuron stands.
  int32_t PlaceOf(int32_t neuron) const { return places_[neuron]; }
  // Writes which weights of [begin, end) belong to active neurons to the start of `found`, which
  // grows if it must; how many do.
  int64_t Match(const SparseKernel& kernel, int64_t begin, int64_t end,
                std::vector<int32_t>* found) const;

 private:
  // Scores of one cache line are looked at together.
  static constexpr int64_t kLine = 16;
  // Adding any term to -0 leaves another number, because terms are never -0.
  static constexpr float kUntouched = -0.0f;
  static bool IsUntouched(float score) { return score == 0 && std::signbit(score); }

  // What a thread keeps.
  struct Memory {
    std::vector<float> scores;
    std::vector<uint8_t> touched;  // a line each, in whole words
    std::vector<int32_t> touched_lines;
    std::vector<int32_t> places;
    std::vector<uint64_t> active;  // a bit each: this many stay in the first-level cache
  };
  static Memory& OfThisThread();

  bool IsNeuron(int32_t neuron) const { return neuron >= 0 && neuron < units_; }
  bool IsActive(int32_t neuron) const {
    return (active_[neuron >> 6] >> (neuron & 63) & uint64_t{1}) != 0;
  }
  int32_t EndOfLine(int32_t first) const {
    return static_cast<int32_t>(std::min(first + kLine, units_));
  }
  bool Add(float value, const int32_t* neurons, const float* weights, int64_t count);
  void FindTops(const SparseKernel& kernel);
  float LeastOfTops(int64_t count);
  void ListTouchedLines();
  void Clear();

  // To look these up in the thread's memory costs as much as a term.
  float* scores_;
  uint8_t* touched_;
  int32_t* touched_lines_;  // their first neurons, ascending
  int32_t* places_;
  uint64_t* active_;
  int64_t units_;
  int64_t count_ = 0;  // of touched lines
  std::vector<int32_t> activated_;
  std::vector<float> tops_, group_tops_;
};

}  // namespace dslide

#endif  // TF_DSLIDE_CORE_SCORE_ACCUMULATOR_H_
