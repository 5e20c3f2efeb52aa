#include "custom_ops/kernels/huge_pages.h"

#include <sys/mman.h>

namespace dslide {
namespace {

constexpr uintptr_t kPage = uintptr_t{1} << 21;
constexpr int64_t kSmallest = int64_t{16} << 20;

// Since Linux 6.1 pages can be collapsed at once; older headers lack the name.
constexpr int kCollapse = 25;

// The whole large pages in a block, none if it is small.
struct Pages {
  Pages(const void* data, int64_t bytes)
      : begin((reinterpret_cast<uintptr_t>(data) + kPage - 1) / kPage * kPage),
        end(bytes < kSmallest ? begin
                              : (reinterpret_cast<uintptr_t>(data) + bytes) / kPage * kPage) {}
  bool empty() const { return begin >= end; }
  int Advise(int advice) const {
    return madvise(reinterpret_cast<void*>(begin), end - begin, advice);
  }
  uintptr_t begin;
  uintptr_t end;
};

}  // namespace

void UseHugePages(const void* data, int64_t bytes) {
  const Pages pages(data, bytes);
  if (!pages.empty()) pages.Advise(MADV_HUGEPAGE);
}

void HugePages::Use(int i, const float* data, int64_t count) {
  const Pages pages(data, count * static_cast<int64_t>(sizeof(float)));
  if (pages.empty() || seen_[i].exchange(data) == data) return;
  // Older systems collapse pages in the background once they were told to.
  if (pages.Advise(kCollapse) != 0) pages.Advise(MADV_HUGEPAGE);
}

}  // namespace dslide
