// Runs every function of the core on odd shapes, with four threads and with one, against plain
// loops in double precision. Includes nothing but the core, so that sanitizers see all that runs.
// Ends with 1 and one line for each failure.

#include "tests/native/core_check/check.h"

#include <algorithm>
#include <atomic>
#include <cmath>
#include <condition_variable>
#include <cstdio>
#include <mutex>
#include <set>
#include <thread>

#include "custom_ops/core/simd.h"

namespace dslide {
namespace {

std::atomic<int64_t> checks{0}, failures{0};

std::vector<void (*)()>& AllChecks() {
  static std::vector<void (*)()> all;
  return all;
}

// Four threads that wait for work.
class Workers {
 public:
  Workers() {
    for (int t = 0; t < 4; ++t) threads_.emplace_back([this] { Wait(); });
  }
  ~Workers() {
    Give(nullptr);
    for (std::thread& thread : threads_) thread.join();
  }

  // Runs `work` once in each thread, and waits for the end.
  void Run(const std::function<void()>& work) {
    Give(&work);
    std::unique_lock<std::mutex> lock(mutex_);
    changed_.wait(lock, [&] { return running_ == 0; });
  }

 private:
  void Give(const std::function<void()>* work) {
    const std::lock_guard<std::mutex> lock(mutex_);
    work_ = work;
    running_ = threads_.size();
    ++round_;
    changed_.notify_all();
  }

  void Wait() {
    for (int64_t round = 1;; ++round) {
      std::unique_lock<std::mutex> lock(mutex_);
      changed_.wait(lock, [&] { return round_ == round; });
      const std::function<void()>* work = work_;
      lock.unlock();
      if (work == nullptr) return;
      (*work)();
      lock.lock();
      if (--running_ == 0) changed_.notify_all();
    }
  }

  std::mutex mutex_;
  std::condition_variable changed_;
  const std::function<void()>* work_ = nullptr;
  int64_t round_ = 0;
  size_t running_ = 0;
  std::vector<std::thread> threads_;
};

}  // namespace

Checks::Checks(std::initializer_list<void (*)()> checks) {
  AllChecks().insert(AllChecks().end(), checks);
}

What::operator std::string() const {
  if (shape == nullptr) return text;
  return std::string(text) + " rows " + std::to_string(shape->rows) + " units " +
         std::to_string(shape->units) + " d " + std::to_string(shape->d);
}

void Check(bool holds, const What& what) {
  ++checks;
  if (holds) return;
  ++failures;
  std::printf("FAILED: %s\n", std::string(what).c_str());
}

void CheckClose(const Floats& actual, const Doubles& expected, const Doubles& bound,
                const What& what) {
  bool holds = actual.size() == expected.size();
  for (size_t i = 0; holds && i < actual.size(); ++i) {
    holds = std::abs(actual[i] - expected[i]) <= bound[i];
    if (!holds) {
      std::printf("%s: %g at %zu, expected %g within %g\n", std::string(what).c_str(), actual[i], i,
                  expected[i], bound[i]);
    }
  }
  Check(holds, what);
}

void Alone(int64_t total, int64_t, const std::function<void(int64_t, int64_t)>& work) {
  if (total > 0) work(0, total);
}

void FourThreads(int64_t total, int64_t, const std::function<void(int64_t, int64_t)>& work) {
  static Workers workers;
  if (total <= 0) return;
  Longs borders = {0};
  for (int64_t length = 1; borders.back() < total; length = length * 2 % 37 + 1) {
    borders.push_back(std::min(total, borders.back() + length * (1 + total / 100)));
  }
  // Relaxed: the counter must not order what the threads do, or it would hide races.
  std::atomic<size_t> next{0};
  const auto take = [&] { return next.fetch_add(1, std::memory_order_relaxed); };
  workers.Run([&] {
    for (size_t i = take(); i + 1 < borders.size(); i = take()) work(borders[i], borders[i + 1]);
  });
}

const std::vector<ParallelFor> kPools = {Alone, FourThreads};

const std::vector<Shape> kShapes = {
    {0, 5, 3},    {1, 1, 1},   {1, 64, 7},    {63, 65, 8},    {64, 63, 9},
    {65, 64, 31}, {7, 129, 1}, {130, 70, 33}, {33, 4099, 16}, {66, 300, 200},
};

Floats Source::Array(int64_t size) {
  Floats result(size);
  for (float& value : result) value = Float();
  return result;
}

Floats Source::Eighths(int64_t size) {
  Floats result(size);
  for (float& value : result) value = static_cast<float>(Integer(17) - 8) / 8;
  return result;
}

Csr Source::Sets(int64_t rows, int64_t units, int64_t most) {
  Csr result;
  result.splits = {0};
  for (int64_t row = 0; row < rows; ++row) {
    std::set<int32_t> ids;
    for (int64_t j = Integer(most + 1); j > 0; --j) ids.insert(Integer(units));
    result.ids.insert(result.ids.end(), ids.begin(), ids.end());
    result.splits.push_back(result.ids.size());
  }
  result.ids.shrink_to_fit();
  return result;
}

Ints Source::Set(int64_t units, int64_t count) {
  return SampleNeurons(units, count, {}, Distribution::kUniform, Word()).ids;
}

namespace {

int Main() {
  for (void (*check)() : AllChecks()) check();
  std::printf("%s: %lld checks, %lld failures\n", Simd().name,
              static_cast<long long>(checks.load()), static_cast<long long>(failures.load()));
  return failures == 0 ? 0 : 1;
}

}  // namespace
}  // namespace dslide

int main() { return dslide::Main(); }
