// Asks for memory before it is used: for rows that lie apart, which the hardware does not foresee.

#ifndef TF_DSLIDE_CORE_PREFETCH_H_
#define TF_DSLIDE_CORE_PREFETCH_H_

#include <cstdint>

namespace dslide {

inline void Prefetch(const void* address) {
  __builtin_prefetch(address);
  // GCC takes a function that does nothing but prefetch for one without effect, and drops the call;
  // not one with this in it.
  asm volatile("");
}

// Rows of a matrix that are asked for ahead of use.
constexpr int64_t kRowsAhead = 6;

// Rough nanoseconds to stream a row of d floats and to use it once.
inline int64_t StreamCost(int64_t d) { return 20 + d / 4; }

// All cache lines of `count` values.
template <typename T>
void PrefetchRange(const T* values, int64_t count) {
  constexpr int64_t kLine = 64 / sizeof(T);
  for (int64_t i = 0; i < count; i += kLine) Prefetch(values + i);
  if (count > 0) Prefetch(values + count - 1);
}

}  // namespace dslide

#endif  // TF_DSLIDE_CORE_PREFETCH_H_
