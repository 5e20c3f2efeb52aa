#if defined(__AVX2__) && defined(__FMA__)
#define DSLIDE_SIMD_LANES 8
#define DSLIDE_SIMD_TILE_ROWS 6
#define DSLIDE_SIMD_NAME "avx2"
#define DSLIDE_SIMD_FUNCTION Avx2Kernels
#include "custom_ops/core/simd_loops.inc"
#else
#include "custom_ops/core/simd.h"
namespace dslide {
const SimdKernels* Avx2Kernels() { return nullptr; }
}  // namespace dslide
#endif
