// Counter-based random numbers: the value depends on the key alone, never on the order of calls.

#ifndef TF_DSLIDE_CORE_RANDOM_H_
#define TF_DSLIDE_CORE_RANDOM_H_

#include <cstdint>

namespace dslide {

// The finaliser of splitmix64: a bijection of 64-bit words with full avalanche.
inline uint64_t Mix(uint64_t x) {
  x += 0x9e3779b97f4a7c15ull;
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9ull;
  x = (x ^ (x >> 27)) * 0x94d049bb133111ebull;
  return x ^ (x >> 31);
}

inline uint64_t Mix(uint64_t a, uint64_t b) { return Mix(Mix(a) ^ b); }
inline uint64_t Mix(uint64_t a, uint64_t b, uint64_t c) { return Mix(Mix(a, b) ^ c); }

// A uniform integer in [0, n), n > 0, by multiplication of the high halves.
inline uint64_t Below(uint64_t random, uint64_t n) {
  return static_cast<uint64_t>((static_cast<unsigned __int128>(random) * n) >> 64);
}

// A uniform double in [0, 1).
inline double Unit(uint64_t random) { return static_cast<double>(random >> 11) * 0x1.0p-53; }

}  // namespace dslide

#endif  // TF_DSLIDE_CORE_RANDOM_H_
