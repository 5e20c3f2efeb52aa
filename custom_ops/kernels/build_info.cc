// What the loader asks of the library besides its ops.

#include "custom_ops/core/simd.h"

extern "C" {

__attribute__((visibility("default"))) const char* dslide_simd_level() {
  return dslide::Simd().name;
}

__attribute__((visibility("default"))) const char* dslide_simd_request_refused() {
  return dslide::SimdRequestRefused();
}
}
