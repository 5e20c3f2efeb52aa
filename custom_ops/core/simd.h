// The innermost loops, compiled once for each instruction set and chosen at run time.

#ifndef TF_DSLIDE_CORE_SIMD_H_
#define TF_DSLIDE_CORE_SIMD_H_

#include <cstdint>

namespace dslide {

// Samples (or neurons) that the hash functions treat side by side, one a vector lane.
constexpr int kHashBlock = 32;

// Columns of a panel of a matrix, see packed_panels.h.
constexpr int kPanel = 32;

// One step of Adam, with the bias corrections folded into `rate`.
struct AdamStep {
  float rate;  // learning rate * sqrt(1 - beta_2^t) / (1 - beta_1^t)
  float beta_1;
  float beta_2;
  float epsilon;
  float decay;  // learning rate * decoupled weight decay
};

// Factors of what Adam does with a row in steps that bring it no gradient, see optimizers.h.
struct AdamMissed {
  float drift;   // how far the weight moves, times momentum / (root of the velocity + epsilon)
  float keep_1;  // what is left of the momentum
  float keep_2;  // and of the velocity
  float keep;    // and of the weight
};

// One step of Adagrad.
struct AdagradStep {
  float rate;
  float epsilon;
  float decay;  // learning rate * decoupled weight decay
};

// Entries of one neuron are (row, index) pairs: `row` numbers the sample, `index` the place in the
// arrays that run over all entries. A null `index` stands for 0, 1, 2, ...
struct SimdKernels {
  const char* name;

  // out[index[j]] = bias + <w, x[rows[j]]> for j in [0, n); x has rows of length d.
  void (*dot_entries)(const float* w, const float* x, int64_t d, const int32_t* rows,
                      const int32_t* index, int64_t n, float bias, float* out);

  // y[0, d) = sum over j of coef[index[j]] * x[rows[j]].
  void (*sum_entries)(const float* x, int64_t d, const int32_t* rows, const int32_t* index,
                      const float* coef, int64_t n, float* y);

  // y[rows[j]] += coef[index[j]] * w for j in [0, n).
  void (*spread_entries)(const float* w, int64_t d, const int32_t* rows, const int32_t* index,
                         const float* coef, int64_t n, float* y);

  // One step of Adam on n consecutive weights.
  void (*adam)(float* w, float* m, float* v, const float* g, int64_t n, const AdamStep& step);

  // What n consecutive weights of a row missed.
  void (*adam_missed)(float* w, float* m, float* v, int64_t n, float epsilon,
                      const AdamMissed& missed);

  // One step of Adagrad on n consecutive weights; v holds the sums of squared gradients.
  void (*adagrad)(float* w, float* v, const float* g, int64_t n, const AdagradStep& step);

  // Scales n values to length 1; zeros stay.
  void (*normalize)(float* w, int64_t n);

  // The largest of n > 0 values.
  float (*max)(const float* x, int64_t n);

  // Sum of exp(x - shift); the exponentials go to `out` too.
  float (*exp_sum)(const float* x, int64_t n, float shift, float* out);

  // y += x over n values.
  void (*add)(const float* x, int64_t n, float* y);

  // y = x * scale over n values; x may be y.
  void (*scale)(const float* x, int64_t n, float scale, float* y);

  // Whether none of n values is NaN or infinite.
  bool (*all_finite)(const float* x, int64_t n);

  // c (m, n) = [c +] a (m, k) * b (k, n). Element (i, l) of a is a[i * row_stride + l * k_stride];
  // rows of b and c lie ldb and ldc apart.
  void (*gemm)(int64_t m, int64_t n, int64_t k, const float* a, int64_t row_stride,
               int64_t k_stride, const float* b, int64_t ldb, float* c, int64_t ldc,
               bool accumulate);

  // The same for a panel b (k, kPanel) and the n <= kPanel columns of c that it stands for.
  void (*gemm_panel)(int64_t m, int64_t n, int64_t k, const float* a, int64_t row_stride,
                     int64_t k_stride, const float* b, float* c, int64_t ldc, bool accumulate);

  // Running log-sum-exp of the columns of a tile: top[j] and sum[j] become the maximum and the
  // sum of exp(value - maximum) over what they stood for and the tile's `rows` values.
  void (*column_log_sum_exp)(const float* tile, int64_t rows, int64_t ld, int64_t cols, float* top,
                             float* sum);

  // tile[i][j] = exp(tile[i][j] - shift[j]) * scale[j].
  void (*column_softmax)(float* tile, int64_t rows, int64_t ld, int64_t cols, const float* shift,
                         const float* scale);

  // Whether any of n values exceeds its own limit.
  bool (*any_above)(const float* x, const float* limit, int64_t n);

  // top[i] = the largest of the 16 values from x[first[i]], each with its bias (null: 0), without
  // the values that are -0 or NaN; minus infinity if none is left.
  void (*block_tops)(const float* x, const float* bias, const int32_t* first, int64_t n,
                     float* top);

  // out[lane] = sum over j of value[j] * xt[index[j]][lane], with kHashBlock lanes.
  void (*project)(const float* xt, const int32_t* index, const float* value, int64_t n, float* out);

  // winner[lane] = the j whose xt[index[j]][lane] is largest (the first of equals), and
  // filled[lane] = whether any of them differs from 0; kHashBlock lanes.
  void (*winner)(const float* xt, const int32_t* index, int64_t n, int32_t* winner,
                 int32_t* filled);
};

// The kernels in use: the best that this processor runs, or the level named by the environment
// variable DSLIDE_SIMD ("portable", "avx2" or "avx512") at the first call. A level that is unknown
// or that the processor lacks falls back to the best one; `SimdRequestRefused` then tells.
const SimdKernels& Simd();

// The value of DSLIDE_SIMD when it could not be honoured, else an empty string.
const char* SimdRequestRefused();

// One table for each instruction set; null where it was not compiled in.
const SimdKernels* PortableKernels();
const SimdKernels* Avx2Kernels();
const SimdKernels* Avx512Kernels();

}  // namespace dslide

#endif  // TF_DSLIDE_CORE_SIMD_H_
