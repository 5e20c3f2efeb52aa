#include "custom_ops/kernels/huge_pages.h"

#include <sys/mman.h>

namespace dslide {
namespace {

constexpr uintptr_t kPage = uintptr_t{1} << 21;
constexpr int64_t kSmallest = int64_t{16} << 20;

// Since Linux 6.1 pages can be collapsed at once; older headers lack the name.
constexpr int kCollapse = 25;

}  // namespace

void HugePages::Use(int i, const float* data, int64_t count) {
  const int64_t bytes = count * static_cast<int64_t>(sizeof(float));
  if (bytes < kSmallest || seen_[i].exchange(data) == data) return;
  const uintptr_t begin = (reinterpret_cast<uintptr_t>(data) + kPage - 1) / kPage * kPage;
  const uintptr_t end = (reinterpret_cast<uintptr_t>(data) + bytes) / kPage * kPage;
  void* first = reinterpret_cast<void*>(begin);
  // Older systems collapse pages in the background once they were told to.
  if (madvise(first, end - begin, kCollapse) != 0) madvise(first, end - begin, MADV_HUGEPAGE);
}

}  // namespace dslide
