// Neurons with their scores, in the order in which searches return them.

#ifndef TF_DSLIDE_CORE_SCORED_H_
#define TF_DSLIDE_CORE_SCORED_H_

#include <algorithm>
#include <cstdint>
#include <vector>

namespace dslide {

struct Scored {
  float score;
  int32_t id;
};

// Whether a comes before b: by falling score, the lower id among equals, an empty place (-1) last.
inline bool Before(const Scored& a, const Scored& b) {
  if (a.score != b.score) return a.score > b.score;
  return static_cast<uint32_t>(a.id) < static_cast<uint32_t>(b.id);
}

// Leaves the best `count`, in no order.
inline void KeepBest(int64_t count, std::vector<Scored>* scored) {
  if (static_cast<int64_t>(scored->size()) <= count) return;
  // A function by its address would be called for each comparison.
  const auto before = [](const Scored& a, const Scored& b) { return Before(a, b); };
  std::nth_element(scored->begin(), scored->begin() + count, scored->end(), before);
  scored->resize(count);
}

}  // namespace dslide

#endif  // TF_DSLIDE_CORE_SCORED_H_
