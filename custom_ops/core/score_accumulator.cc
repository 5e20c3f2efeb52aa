#include "custom_ops/core/score_accumulator.h"

#include <algorithm>
#include <functional>

#include "custom_ops/core/prefetch.h"
#include "custom_ops/core/simd.h"

namespace dslide {
namespace {

// Groups of lines that are compared, for each neuron wanted.
constexpr int64_t kGroupsForEach = 6;
// Weights to fetch ahead.
constexpr int64_t kAhead = 96;

void PrefetchFirst(const SparseKernel& kernel, int32_t feature) {
  if (!kernel.Within(feature)) return;
  const CsrView& neurons = kernel.neurons;
  const int64_t count = std::min(kAhead, neurons.length(feature));
  PrefetchRange(neurons.begin(feature), count);
  PrefetchRange(kernel.weights + neurons.splits[feature], count);
}

// Bit i of the result is flag i, each a byte of 0 or 1.
uint64_t BitsOfFlags(const uint8_t* flags) {
  uint64_t bits = 0;
  for (int i = 0; i < 64; i += 8) {
    uint64_t eight = 0;
    for (int j = 0; j < 8; ++j) eight |= uint64_t{flags[i + j]} << (8 * j);
    // The product brings flag j from bit 8 j to bit 56 + j.
    bits |= (eight * 0x0102040810204080u) >> 56 << i;
  }
  return bits;
}

}  // namespace

ScoreAccumulator::Memory& ScoreAccumulator::OfThisThread() {
  static thread_local Memory memory;
  return memory;
}

ScoreAccumulator::ScoreAccumulator(int64_t units) : units_(units) {
  Memory& memory = OfThisThread();
  const int64_t lines = (units + kLine - 1) / kLine;
  if (static_cast<int64_t>(memory.scores.size()) < lines * kLine) {
    memory.scores.resize(lines * kLine, kUntouched);
    memory.touched.resize((lines + 63) / 64 * 64);
    memory.touched_lines.resize(memory.touched.size());
    // As many as there are scores: other layers may have more units in as many lines.
    memory.places.resize(memory.scores.size());
    memory.active.resize((memory.scores.size() + 63) / 64);
  }
  scores_ = memory.scores.data();
  touched_ = memory.touched.data();
  touched_lines_ = memory.touched_lines.data();
  places_ = memory.places.data();
  active_ = memory.active.data();
}

bool ScoreAccumulator::AddRow(const SparseRows& x, int64_t row, const SparseKernel& kernel) {
  Clear();
  bool sound = true;
  const int64_t end = x.ids.splits[row + 1];
  for (int64_t e = x.ids.splits[row]; e < end && sound; ++e) {
    // The processor foresees those of a feature, but not the next one's.
    if (e + 1 < end) PrefetchFirst(kernel, x.ids.ids[e + 1]);
    const int32_t feature = x.ids.ids[e];
    const CsrView& neurons = kernel.neurons;
    sound = kernel.Within(feature) &&
            Add(x.values[e], neurons.begin(feature), kernel.weights + neurons.splits[feature],
                neurons.length(feature));
  }
  ListTouchedLines();
  return sound;
}

bool ScoreAccumulator::Add(float value, const int32_t* neurons, const float* weights,
                           int64_t count) {
  // In variables of their own: a write to a flag might change members, as far as compilers know.
  float* const scores = scores_;
  uint8_t* const touched = touched_;
  // All reads of some scores, then all writes: mixed, the processor has to find out which depend on
  // which, and takes three times as long. The neurons of a feature are distinct.
  constexpr int kTogether = 8;
  int64_t i = 0;
  for (; i + kTogether <= count; i += kTogether) {
    Prefetch(neurons + i + kAhead);
    Prefetch(weights + i + kAhead);
    int32_t neuron[kTogether];
    float sum[kTogether];
    for (int j = 0; j < kTogether; ++j) {
      neuron[j] = neurons[i + j];
      if (!IsNeuron(neuron[j])) return false;
      sum[j] = scores[neuron[j]] + (value * weights[i + j] + 0.0f);
    }
    for (int j = 0; j < kTogether; ++j) scores[neuron[j]] = sum[j];
    for (int j = 0; j < kTogether; ++j) touched[neuron[j] / kLine] = 1;
  }
  for (; i < count; ++i) {
    if (!IsNeuron(neurons[i])) return false;
    scores[neurons[i]] += value * weights[i] + 0.0f;
    touched[neurons[i] / kLine] = 1;
  }
  return true;
}

void ScoreAccumulator::ListTouchedLines() {
  const int64_t lines = (units_ + kLine - 1) / kLine;
  for (int64_t begin = 0; begin < lines; begin += 64) {
    // Bit by bit: a branch for each line would be anybody's guess.
    for (uint64_t bits = BitsOfFlags(touched_ + begin); bits != 0; bits &= bits - 1) {
      touched_lines_[count_++] = static_cast<int32_t>((begin + __builtin_ctzll(bits)) * kLine);
    }
  }
}

void ScoreAccumulator::Clear() {
  for (int64_t i = 0; i < count_; ++i) {
    const int32_t first = touched_lines_[i];
    std::fill_n(scores_ + first, kLine, kUntouched);
    touched_[first / kLine] = 0;
  }
  count_ = 0;
  for (int32_t neuron : activated_) active_[neuron >> 6] = 0;
  activated_.clear();
}

void ScoreAccumulator::Best(const SparseKernel& kernel, int64_t count, std::vector<Scored>* best) {
  best->clear();
  if (count == 0) return;
  FindTops(kernel);
  // So many lines hold one of the best each, if all active neurons are among the best as well.
  const float least = LeastOfTops(count + static_cast<int64_t>(activated_.size()));
  for (int64_t i = 0; i < count_; ++i) {
    if (tops_[i] < least) continue;
    const int32_t end = EndOfLine(touched_lines_[i]);
    for (int32_t neuron = touched_lines_[i]; neuron < end; ++neuron) {
      const float logit = scores_[neuron] + kernel.bias_of(neuron);
      if (logit < least || !Has(neuron) || IsActive(neuron)) continue;
      best->push_back(Ranked(logit, neuron));
    }
  }
  KeepBest(count, best);
}

// The largest logit in each touched line, NaN being none.
void ScoreAccumulator::FindTops(const SparseKernel& kernel) {
  tops_.resize(count_);
  const bool cut = count_ > 0 && touched_lines_[count_ - 1] + kLine > units_;
  Simd().block_tops(scores_, kernel.bias, touched_lines_, count_ - cut, tops_.data());
  if (!cut) return;
  float top = -std::numeric_limits<float>::infinity();
  for (int32_t neuron = touched_lines_[count_ - 1]; neuron < units_; ++neuron) {
    const float logit = scores_[neuron] + kernel.bias_of(neuron);
    if (Has(neuron) && logit > top) top = logit;
  }
  tops_.back() = top;
}

// A logit that at least `count` lines reach, minus infinity if there are no more lines. Groups of
// lines are compared rather than lines: a few more lines are then looked at, but far less is
// sorted.
float ScoreAccumulator::LeastOfTops(int64_t count) {
  if (count >= count_) return -std::numeric_limits<float>::infinity();
  const int64_t groups = std::min(count_, kGroupsForEach * count);
  group_tops_.assign(tops_.begin(), tops_.begin() + groups);
  for (int64_t begin = groups; begin < count_; begin += groups) {
    const int64_t together = std::min(groups, count_ - begin);
    for (int64_t i = 0; i < together; ++i) {
      group_tops_[i] = std::max(group_tops_[i], tops_[begin + i]);
    }
  }
  const auto least = group_tops_.begin() + count - 1;
  std::nth_element(group_tops_.begin(), least, group_tops_.end(), std::greater<float>());
  return *least;
}

void ScoreAccumulator::Activate(int32_t neuron, int32_t place) {
  active_[neuron >> 6] |= uint64_t{1} << (neuron & 63);
  places_[neuron] = place;
  activated_.push_back(neuron);
}

int64_t ScoreAccumulator::Match(const SparseKernel& kernel, int64_t begin, int64_t end,
                                std::vector<int32_t>* found) const {
  if (static_cast<int64_t>(found->size()) < end - begin) found->resize(end - begin);
  const int32_t* const neurons = kernel.neurons.ids;
  int32_t* next = found->data();
  for (int64_t q = begin; q < end; q += 64) {
    const int64_t together = std::min<int64_t>(64, end - q);
    uint64_t matches = 0;
    for (int64_t j = 0; j < together; ++j) matches |= uint64_t{IsActive(neurons[q + j])} << j;
    for (; matches != 0; matches &= matches - 1) {
      *next++ = static_cast<int32_t>(q + __builtin_ctzll(matches));
    }
  }
  return next - found->data();
}

}  // namespace dslide
