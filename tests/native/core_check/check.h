// What all checks of the core share. Arrays have exactly the size that the core may touch:
// AddressSanitizer finds the first float past the end.

#ifndef TF_DSLIDE_TESTS_CORE_CHECK_CHECK_H_
#define TF_DSLIDE_TESTS_CORE_CHECK_CHECK_H_

#include <cstdint>
#include <cstring>
#include <functional>
#include <string>
#include <vector>

#include "custom_ops/core/active_set.h"
#include "custom_ops/core/parallel.h"
#include "custom_ops/core/random.h"

namespace dslide {

using Floats = std::vector<float>;
using Doubles = std::vector<double>;
using Ints = std::vector<int32_t>;
using Longs = std::vector<int64_t>;

// Each file lists its checks in one of these; `main` runs them all.
struct Checks {
  Checks(std::initializer_list<void (*)()> checks);
};

struct Shape;

// What a check is about: made for each of millions, so a text only if it fails.
struct What {
  What(const char* text, const Shape* shape = nullptr) : text(text), shape(shape) {}
  What(const std::string& text) : What(text.c_str()) {}
  operator std::string() const;

  const char* text;
  const Shape* shape;
};

void Check(bool holds, const What& what);

// One rounding of a float, relative.
constexpr double kRounding = 1.0 / (1 << 24);

// |actual - expected| <= bound at every place.
void CheckClose(const Floats& actual, const Doubles& expected, const Doubles& bound,
                const What& what);

template <typename T>
void CheckSame(const std::vector<T>& one, const std::vector<T>& two, const What& what) {
  Check(one.size() == two.size() &&
            (one.empty() || std::memcmp(one.data(), two.data(), one.size() * sizeof(T)) == 0),
        what);
}

// Checks that all results of a list are those that the first pool gave.
template <typename T>
void CheckSameByThreads(const std::vector<T>& all, std::vector<T>* first, const What& what) {
  if (first->empty()) *first = all;
  for (size_t i = 0; i < all.size(); ++i) {
    CheckSame((*first)[i], all[i], std::string(what) + " " + std::to_string(i) + " by threads");
  }
}

void Alone(int64_t total, int64_t cost, const std::function<void(int64_t, int64_t)>& work);

// Ranges of uneven length, taken by whichever of four threads is free. The threads stay, and with
// them what the core keeps for each.
void FourThreads(int64_t total, int64_t cost, const std::function<void(int64_t, int64_t)>& work);

extern const std::vector<ParallelFor> kPools;

class Source {
 public:
  explicit Source(uint64_t seed) : seed_(seed) {}
  uint64_t Word() { return Mix(seed_, count_++); }
  int64_t Integer(int64_t n) { return Below(Word(), n); }
  // In [-1, 1), and now and then 0.
  float Float() { return Integer(8) == 0 ? 0.0f : static_cast<float>(2 * Unit(Word()) - 1); }
  Floats Array(int64_t size);
  // Multiples of 1/8 in [-1, 1]: sums of some products of them are exact.
  Floats Eighths(int64_t size);
  // Rows of at most `most` distinct ascending ids.
  Csr Sets(int64_t rows, int64_t units, int64_t most);
  // `count` distinct ascending ids.
  Ints Set(int64_t units, int64_t count);

 private:
  uint64_t seed_;
  uint64_t count_ = 0;
};

inline IdList List(const Ints& ids) { return {ids.data(), static_cast<int64_t>(ids.size())}; }

struct Shape {
  int64_t rows, units, d;
  What Name(const char* what) const { return {what, this}; }
};

extern const std::vector<Shape> kShapes;

}  // namespace dslide

#endif  // TF_DSLIDE_TESTS_CORE_CHECK_CHECK_H_
