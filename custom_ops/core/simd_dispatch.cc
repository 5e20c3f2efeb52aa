#include <cstdlib>
#include <cstring>
#include <initializer_list>

#include "custom_ops/core/simd.h"

namespace dslide {
namespace {

bool RunsAvx2() {
#if defined(__x86_64__)
  return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma");
#else
  return false;
#endif
}

bool RunsAvx512() {
#if defined(__x86_64__)
  return RunsAvx2() && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512dq") &&
         __builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512vl");
#else
  return false;
#endif
}

struct Choice {
  const SimdKernels* kernels;
  const char* refused;
};

Choice Choose() {
  const SimdKernels* avx2 = RunsAvx2() ? Avx2Kernels() : nullptr;
  const SimdKernels* avx512 = RunsAvx512() ? Avx512Kernels() : nullptr;
  const SimdKernels* best = avx512 ? avx512 : avx2 ? avx2 : PortableKernels();
  const char* wanted = std::getenv("DSLIDE_SIMD");
  if (wanted == nullptr || wanted[0] == '\0') return {best, ""};
  for (const SimdKernels* level : {PortableKernels(), avx2, avx512}) {
    if (level != nullptr && std::strcmp(level->name, wanted) == 0) return {level, ""};
  }
  return {best, wanted};
}

const Choice& Chosen() {
  static const Choice choice = Choose();
  return choice;
}

}  // namespace

const SimdKernels& Simd() { return *Chosen().kernels; }

const char* SimdRequestRefused() { return Chosen().refused; }

}  // namespace dslide
