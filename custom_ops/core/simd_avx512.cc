#if defined(__AVX512F__) && defined(__AVX512DQ__) && defined(__AVX512BW__) && defined(__AVX512VL__)
#define DSLIDE_SIMD_LANES 16
#define DSLIDE_SIMD_TILE_ROWS 8
#define DSLIDE_SIMD_NAME "avx512"
#define DSLIDE_SIMD_FUNCTION Avx512Kernels
#include "custom_ops/core/simd_loops.inc"
#else
#include "custom_ops/core/simd.h"
namespace dslide {
const SimdKernels* Avx512Kernels() { return nullptr; }
}  // namespace dslide
#endif
