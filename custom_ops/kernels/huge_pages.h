// Large pages for weights and hash tables: rows picked here and there from gigabytes otherwise cost
// a walk through the page tables each, which takes longer than reading the row. Blocks under 16 MB
// stay as they are, and so do all where the system has no large pages to give: it is only a matter
// of speed.

#ifndef TF_DSLIDE_KERNELS_HUGE_PAGES_H_
#define TF_DSLIDE_KERNELS_HUGE_PAGES_H_

#include <array>
#include <atomic>
#include <cstdint>

namespace dslide {

// Lets the system back memory that nobody wrote to yet with large pages.
void UseHugePages(const void* data, int64_t bytes);

// Remembers up to four blocks of memory, so that each is moved to large pages once.
class HugePages {
 public:
  // Asks the system to move block number `i` to large pages.
  void Use(int i, const float* data, int64_t count);

 private:
  std::array<std::atomic<const float*>, 4> seen_{};
};

}  // namespace dslide

#endif  // TF_DSLIDE_KERNELS_HUGE_PAGES_H_
