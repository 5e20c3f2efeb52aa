// What this machine can do at best: memory bandwidth, random rows, multiply-adds.
//
// limits MEGABYTES ROW_BYTES REPEATS THREADS... prints one line of JSON for each number of threads:
// medians of the repeats. Rates and times are those of all threads together. `limits.py` compiles
// and runs it.

#include <sys/mman.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <functional>
#include <random>
#include <thread>
#include <vector>

namespace {

#if defined(__AVX512F__)
constexpr int kVectorBytes = 64;
#elif defined(__AVX__)
constexpr int kVectorBytes = 32;
#else
constexpr int kVectorBytes = 16;
#endif
using Vec = float __attribute__((vector_size(kVectorBytes), may_alias));
constexpr int kLanes = kVectorBytes / sizeof(float);
constexpr int kVecsPerLine = 64 / kVectorBytes;

// Independent sums: enough to hide the latency of a multiply-add, few enough for the registers.
constexpr int kSums = 10;

// What loops compute goes here, so that the compiler cannot leave them out.
std::atomic<float> sink{0.0f};

void Keep(const Vec& values) {
  float sum = 0;
  for (int lane = 0; lane < kLanes; ++lane) sum += values[lane];
  sink.store(sum, std::memory_order_relaxed);
}

// Cache lines of 1.0f in large pages, as those of the library's weights are.
class Lines {
 public:
  explicit Lines(int64_t count) {
    constexpr int64_t kPage = int64_t{1} << 21;
    const int64_t bytes = (count * 64 + kPage - 1) / kPage * kPage;
    data_ = static_cast<Vec*>(std::aligned_alloc(kPage, bytes));
    if (data_ == nullptr) {
      std::fprintf(stderr, "limits: no memory for %lld bytes\n", static_cast<long long>(bytes));
      std::exit(1);
    }
    madvise(data_, bytes, MADV_HUGEPAGE);
    std::fill_n(reinterpret_cast<float*>(data_), bytes / sizeof(float), 1.0f);
  }
  Lines(const Lines&) = delete;
  Lines& operator=(const Lines&) = delete;
  ~Lines() { std::free(data_); }

  Vec* at(int64_t line) { return data_ + line * kVecsPerLine; }

 private:
  Vec* data_;
};

Vec SumLines(const Vec* line, int64_t count) {
  constexpr int kUnrolled = 8;
  Vec sum[kUnrolled] = {};
  const int64_t vecs = count * kVecsPerLine;
  int64_t i = 0;
  for (; i + kUnrolled <= vecs; i += kUnrolled) {
    for (int k = 0; k < kUnrolled; ++k) sum[k] += line[i + k];
  }
  for (; i < vecs; ++i) sum[0] += line[i];
  for (int k = 1; k < kUnrolled; ++k) sum[0] += sum[k];
  return sum[0];
}

// The values stay near 1, far from the slow denormal numbers.
void UpdateLines(Vec* line, int64_t count) {
  for (int64_t i = 0; i < count * kVecsPerLine; ++i) line[i] = line[i] * 0.75f + 0.25f;
}

void PrefetchRow(const Vec* row, int64_t lines) {
  for (int64_t i = 0; i < lines; ++i) __builtin_prefetch(row + i * kVecsPerLine);
}

// Runs `work(thread)` in so many threads and returns the seconds that the slowest takes.
double Seconds(int threads, const std::function<void(int)>& work) {
  std::atomic<int> waiting{0};
  std::atomic<bool> started{false};
  std::vector<std::thread> pool;
  for (int thread = 0; thread < threads; ++thread) {
    pool.emplace_back([&, thread] {
      ++waiting;
      while (!started) std::this_thread::yield();
      work(thread);
    });
  }
  while (waiting < threads) std::this_thread::yield();
  const auto start = std::chrono::steady_clock::now();
  started = true;
  for (std::thread& thread : pool) thread.join();
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
}

class Benchmark {
 public:
  Benchmark(int64_t bytes, int64_t row_bytes, int repeats)
      : row_lines_((row_bytes + 63) / 64),
        order_(std::max<int64_t>(1, bytes / (row_lines_ * 64))),
        lines_(rows() * row_lines_),
        repeats_(repeats) {
    for (int64_t row = 0; row < rows(); ++row) order_[row] = static_cast<int32_t>(row);
    std::shuffle(order_.begin(), order_.end(), std::mt19937_64(0));
  }

  void Print(int threads) {
    const double gigabytes = static_cast<double>(rows() * row_lines_) * 64e-9;
    const double read = Median(threads, [&](int64_t begin, int64_t end) {
      Keep(SumLines(lines_.at(begin * row_lines_), (end - begin) * row_lines_));
    });
    const double update = Median(threads, [&](int64_t begin, int64_t end) {
      UpdateLines(lines_.at(begin * row_lines_), (end - begin) * row_lines_);
    });
    const double read_rows = Median(threads, [&](int64_t begin, int64_t end) {
      Vec sum = {};
      ForRandomRows(begin, end, [&](Vec* row) { sum += SumLines(row, row_lines_); });
      Keep(sum);
    });
    const double update_rows = Median(threads, [&](int64_t begin, int64_t end) {
      ForRandomRows(begin, end, [&](Vec* row) { UpdateLines(row, row_lines_); });
    });
    std::printf(
        "{\"threads\": %d, \"row_bytes\": %lld, \"read_gb_per_second\": %.6g, "
        "\"update_gb_per_second\": %.6g, \"row_read_ns\": %.6g, \"row_update_ns\": %.6g, "
        "\"gflop_per_second\": %.6g}\n",
        threads, static_cast<long long>(row_lines_ * 64), gigabytes / read, 2 * gigabytes / update,
        read_rows * 1e9 / rows(), update_rows * 1e9 / rows(), MultiplyAdds(threads));
  }

 private:
  int64_t rows() const { return static_cast<int64_t>(order_.size()); }

  // The median of the seconds for all rows, of which each thread gets an equal part.
  double Median(int threads, const std::function<void(int64_t, int64_t)>& part) {
    std::vector<double> seconds(repeats_);
    for (double& value : seconds) {
      value = Seconds(threads, [&](int thread) {
        part(rows() * thread / threads, rows() * (thread + 1) / threads);
      });
    }
    std::nth_element(seconds.begin(), seconds.begin() + repeats_ / 2, seconds.end());
    return seconds[repeats_ / 2];
  }

  template <typename Use>
  void ForRandomRows(int64_t begin, int64_t end, const Use& use) {
    constexpr int64_t kAhead = 16;
    for (int64_t j = begin; j < end; ++j) {
      if (j + kAhead < end) PrefetchRow(lines_.at(order_[j + kAhead] * row_lines_), row_lines_);
      use(lines_.at(order_[j] * row_lines_));
    }
  }

  // GFLOP/s of multiply-adds between registers.
  double MultiplyAdds(int threads) {
    // As long as the other measurements, so that a tiny array makes all of them short.
    const int64_t rounds = std::max<int64_t>(1000, rows() * row_lines_);
    const double seconds = Median(threads, [&](int64_t, int64_t) {
      Vec sum[kSums], factor = Vec{} + 0.75f, term = Vec{} + 0.25f;
      for (int k = 0; k < kSums; ++k) sum[k] = Vec{} + static_cast<float>(k);
      for (int64_t round = 0; round < rounds; ++round) {
        for (int k = 0; k < kSums; ++k) sum[k] = sum[k] * factor + term;
      }
      for (int k = 0; k < kSums; ++k) Keep(sum[k]);
    });
    return 2e-9 * kSums * kLanes * static_cast<double>(rounds) * threads / seconds;
  }

  int64_t row_lines_;
  std::vector<int32_t> order_;
  Lines lines_;
  int repeats_;
};

}  // namespace

int main(int argc, char** argv) {
  std::vector<int64_t> numbers;
  for (int i = 1; i < argc; ++i) numbers.push_back(std::atoll(argv[i]));
  if (numbers.size() < 4 || *std::min_element(numbers.begin(), numbers.end()) < 1) {
    std::fprintf(stderr, "usage: limits MEGABYTES ROW_BYTES REPEATS THREADS...; all at least 1\n");
    return 2;
  }
  Benchmark benchmark(numbers[0] * 1000000, numbers[1], static_cast<int>(numbers[2]));
  for (size_t i = 3; i < numbers.size(); ++i) benchmark.Print(static_cast<int>(numbers[i]));
  return 0;
}
