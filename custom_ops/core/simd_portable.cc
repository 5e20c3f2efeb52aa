#define DSLIDE_SIMD_LANES 4
#define DSLIDE_SIMD_TILE_ROWS 4
#define DSLIDE_SIMD_NAME "portable"
#define DSLIDE_SIMD_FUNCTION PortableKernels
#include "custom_ops/core/simd_loops.inc"
