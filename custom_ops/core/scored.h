// Neurons with their scores, in the order in which searches return them.

#ifndef TF_DSLIDE_CORE_SCORED_H_
#define TF_DSLIDE_CORE_SCORED_H_

#include <cstdint>

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

}  // namespace dslide

#endif  // TF_DSLIDE_CORE_SCORED_H_
