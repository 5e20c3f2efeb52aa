#include <algorithm>
#include <cmath>
#include <limits>

#include "custom_ops/core/score_accumulator.h"
#include "tests/native/core_check/check.h"
#include "tests/native/core_check/linear.h"

namespace dslide {
namespace {

constexpr float kNaN = std::numeric_limits<float>::quiet_NaN();

void CheckBest(ScoreAccumulator* scores, const Linear& linear, int64_t row, const Ints& active) {
  Floats logits = linear.Logits(row);
  for (float& logit : logits) logit = Ranked(logit, 0).score;
  Ints others;
  const Ints touched = linear.Touched(row);
  std::set_difference(touched.begin(), touched.end(), active.begin(), active.end(),
                      std::back_inserter(others));
  for (int64_t count : {0, 1, 5, 1000}) {
    std::vector<Scored> best;
    scores->Best(linear.Kernel(), count, &best);
    std::sort(best.begin(), best.end(), Before);
    Ints ids;
    for (const Scored& s : best) {
      ids.push_back(s.id);
      Check(s.score == logits[s.id], "score of one of the best");
    }
    CheckSame(ids, BestOf(others, logits, count), "ScoreAccumulator::Best");
  }
}

void CheckMatch(const ScoreAccumulator& scores, const Linear& linear, const Ints& active) {
  const int64_t size = linear.neurons.ids.size();
  Ints found;
  for (int64_t begin : {int64_t{0}, size / 3}) {
    const int64_t end = size - size / 5, count = scores.Match(linear.Kernel(), begin, end, &found);
    Ints expected;
    for (int64_t q = begin; q < end; ++q) {
      if (std::binary_search(active.begin(), active.end(), linear.neurons.ids[q])) {
        expected.push_back(q);
      }
    }
    CheckSame(Ints(found.begin(), found.begin() + count), expected, "ScoreAccumulator::Match");
  }
}

void CheckRow(ScoreAccumulator* scores, const Linear& linear, int64_t row) {
  Check(scores->AddRow(linear.Samples(), row, linear.Kernel()), "ScoreAccumulator::AddRow");
  const Floats logits = linear.Logits(row);
  const Ints touched = linear.Touched(row);
  Ints listed;
  scores->ForTouched([&](int32_t neuron) { listed.push_back(neuron); });
  CheckSame(listed, touched, "ScoreAccumulator::ForTouched");
  for (int32_t u = 0; u < linear.units; ++u) {
    const float logit = scores->score(u) + linear.BiasOf(u);
    Check(logit == logits[u] || (std::isnan(logit) && std::isnan(logits[u])), "a neuron's score");
    Check(linear.Kernel().bias_of(u) == linear.BiasOf(u), "bias of a neuron");
    Check(scores->Has(u) == std::binary_search(touched.begin(), touched.end(), u), "a score");
  }
  CheckBest(scores, linear, row, {});
  Ints active;
  for (int32_t u = row % 2; u < linear.units; u += 3) active.push_back(u);
  for (size_t j = 0; j < active.size(); ++j) scores->Activate(active[j], 5 + j);
  for (size_t j = 0; j < active.size(); ++j) {
    Check(scores->PlaceOf(active[j]) == static_cast<int32_t>(5 + j), "place of an active neuron");
  }
  CheckBest(scores, linear, row, active);
  CheckMatch(*scores, linear, active);
}

// Sizes that rise and fall: a thread keeps its memory, which must suffice and be clean.
void CheckScores() {
  for (int64_t units : {17, 31, 1, 5, 16, 1000, 40}) {
    for (bool use_bias : {true, false}) {
      Linear linear(9, 20, units, units, use_bias);
      for (bool broken : {false, true}) {
        if (broken) {
          for (size_t q = 0; q < linear.weights.size(); q += 7) linear.weights[q] = kNaN;
        }
        ScoreAccumulator scores(units);
        for (int64_t row = 0; row < linear.rows; ++row) CheckRow(&scores, linear, row);
      }
      if (linear.neurons.ids.empty()) continue;
      linear.neurons.ids.assign(linear.neurons.ids.size(), static_cast<int32_t>(units));
      ScoreAccumulator scores(units);
      for (int64_t row = 0; row < linear.rows; ++row) {
        Check(linear.Kernel().Within(19), "weights of the last feature");
        Check(scores.AddRow(linear.Samples(), row, linear.Kernel()) == linear.Touched(row).empty(),
              "neurons out of range are noticed");
      }
    }
  }
}

void CheckRanked() {
  Check(Ranked(2, 7).score == 2 && Ranked(2, 7).id == 7, "Ranked");
  Check(Ranked(kNaN, 7).score == -std::numeric_limits<float>::infinity(), "NaN comes last");
}

const Checks kChecks = {CheckScores, CheckRanked};

}  // namespace
}  // namespace dslide
