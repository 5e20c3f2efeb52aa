// How the core asks for threads, so that it needs no thread pool of its own.

#ifndef TF_DSLIDE_CORE_PARALLEL_H_
#define TF_DSLIDE_CORE_PARALLEL_H_

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <functional>

namespace dslide {

// Runs `work(begin, end)` over ranges that cover [0, total) once, possibly in parallel.
// `cost` is the rough number of nanoseconds that one unit takes. No algorithm in the core may let
// its result depend on where the ranges are cut: that is what makes results independent of the
// number of threads.
using ParallelFor = std::function<void(int64_t total, int64_t cost,
                                       const std::function<void(int64_t, int64_t)>& work)>;

// The lowest of the numbers noted by any thread, or -1: errors name the first culprit, whichever
// thread finds one first.
class FirstBad {
 public:
  void Note(int64_t number) {
    int64_t seen = first_.load();
    while ((seen < 0 || number < seen) && !first_.compare_exchange_weak(seen, number)) {
    }
  }
  int64_t first() const { return first_.load(); }

 private:
  std::atomic<int64_t> first_{-1};
};

// A fixed division of [0, total) into `count` nearly equal slabs, for reductions whose order of
// sums must not depend on the number of threads.
class Slabs {
 public:
  Slabs(int64_t total, int64_t count)
      : total_(total), count_(std::max<int64_t>(1, std::min(total, count))) {}
  int64_t count() const { return count_; }
  int64_t begin(int64_t slab) const { return total_ / count_ * slab + Extra(slab); }
  int64_t end(int64_t slab) const { return begin(slab + 1); }

 private:
  int64_t Extra(int64_t slab) const { return std::min(slab, total_ % count_); }
  int64_t total_;
  int64_t count_;
};

}  // namespace dslide

#endif  // TF_DSLIDE_CORE_PARALLEL_H_
