// What has no file of its own: the small headers.

#include <algorithm>

#include "custom_ops/core/packed_panels.h"
#include "custom_ops/core/parallel.h"
#include "custom_ops/core/prefetch.h"
#include "custom_ops/core/random.h"
#include "custom_ops/core/scored.h"
#include "tests/native/core_check/check.h"

namespace dslide {
namespace {

void CheckSlabs() {
  for (int64_t total : {0, 1, 7, 16, 1000}) {
    for (int64_t count : {1, 3, 16, 64}) {
      const Slabs slabs(total, count);
      Check(slabs.begin(0) == 0 && slabs.end(slabs.count() - 1) == total, "ends of slabs");
      for (int64_t s = 0; s < slabs.count(); ++s) {
        const int64_t length = slabs.end(s) - slabs.begin(s);
        Check(length == total / slabs.count() || length == total / slabs.count() + 1, "slab");
      }
    }
  }
}

void CheckFirstBad() {
  FirstBad bad;
  Check(bad.first() == -1, "nothing is bad");
  FourThreads(500, 1, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) {
      if (i % 100 == 37) bad.Note(i);
    }
  });
  Check(bad.first() == 37, "the first bad number");
}

void CheckStreamCost() {
  Check(StreamCost(0) > 0 && StreamCost(400) > StreamCost(40), "longer rows take longer");
}

void CheckRandom() {
  Check(Mix(0) == 0xe220a8397b1dcdafull, "splitmix64");
  Check(Mix(1, 2) == Mix(Mix(1) ^ 2) && Mix(1, 2, 3) == Mix(Mix(1, 2) ^ 3), "Mix of several");
  for (uint64_t word : {uint64_t{0}, uint64_t{1} << 63, ~uint64_t{0}}) {
    Check(Below(word, 10) == (word == 0 ? 0 : word == ~uint64_t{0} ? 9 : 5), "Below");
    Check(Unit(word) >= 0 && Unit(word) < 1, "Unit");
  }
}

void CheckScored() {
  Check(Before({2, 5}, {1, 0}) && !Before({1, 0}, {2, 5}), "the higher score first");
  Check(Before({1, 3}, {1, 5}) && !Before({1, 3}, {1, 3}), "the lower id first");
  Check(Before({1, 3}, {1, -1}), "an empty place last");
  Source source(22);
  std::vector<Scored> all;
  for (int32_t id = 0; id < 100; ++id) all.push_back({static_cast<float>(source.Integer(9)), id});
  std::vector<Scored> sorted = all;
  std::sort(sorted.begin(), sorted.end(), Before);
  for (size_t count : {0, 1, 40, 100, 200}) {
    std::vector<Scored> best = all;
    KeepBest(count, &best);
    std::sort(best.begin(), best.end(), Before);
    Check(best.size() == std::min<size_t>(count, 100), "KeepBest: size");
    for (size_t i = 0; i < best.size(); ++i) Check(best[i].id == sorted[i].id, "KeepBest");
  }
}

void CheckPackedPanels() {
  Source source(23);
  for (int64_t k : {1, 5}) {
    for (int64_t n : {1, 31, 32, 33, 100}) {
      const Floats matrix = source.Array(k * n), turned = source.Array(n * k);
      PackedPanels rows(k, n), columns(k, n);
      for (int64_t l = 0; l < k; ++l) rows.SetRow(l, &matrix[l * n]);
      for (int64_t panel = 0; panel < columns.count(); ++panel) {
        columns.SetColumns(panel, [&](int64_t j) { return &turned[j * k]; });
      }
      for (int64_t j = 0; j < n; ++j) {
        const int64_t panel = j / kPanel;
        Check(rows.width(panel) == std::min<int64_t>(kPanel, n - panel * kPanel), "width");
        for (int64_t l = 0; l < k; ++l) {
          Check(rows.at(panel, l)[j % kPanel] == matrix[l * n + j], "SetRow");
          Check(columns.at(panel, l)[j % kPanel] == turned[j * k + l], "SetColumns");
        }
      }
    }
  }
}

// Asks for memory that is there, and for some that is not: neither is an error.
void CheckPrefetch() {
  const Floats values(100);
  for (int64_t count : {0, 1, 16, 100, 1000}) PrefetchRange(values.data(), count);
  Prefetch(values.data());
}

const Checks kChecks = {CheckSlabs,  CheckStreamCost,   CheckFirstBad, CheckRandom,
                        CheckScored, CheckPackedPanels, CheckPrefetch};

}  // namespace
}  // namespace dslide
