// What all kernels need to hand tensors and variables to the core.

#ifndef TF_DSLIDE_KERNELS_GLUE_H_
#define TF_DSLIDE_KERNELS_GLUE_H_

#include <initializer_list>
#include <memory>
#include <string>
#include <vector>

#include "custom_ops/core/active_set.h"
#include "custom_ops/core/dense_scan.h"
#include "custom_ops/core/parallel.h"
#include "custom_ops/core/softmax.h"
#include "custom_ops/core/sparse_products.h"
#include "tensorflow/core/framework/op_kernel.h"
#include "tensorflow/core/framework/resource_handle.h"
#include "tensorflow/core/framework/resource_mgr.h"
#include "tensorflow/core/framework/resource_var.h"
#include "tensorflow/core/framework/variant.h"
#include "tensorflow/core/framework/variant_tensor_data.h"

namespace dslide {

using tensorflow::OpKernel;
using tensorflow::OpKernelConstruction;
using tensorflow::OpKernelContext;
using tensorflow::Tensor;
using tensorflow::TensorShape;

// The device's own thread pool.
ParallelFor PoolOf(OpKernelContext* ctx);

// InvalidArgument with the op's name in front; OK if `error` is empty.
absl::Status Invalid(const OpKernelContext* ctx, const std::string& error);

// An attribute that counts something: an error past 2^31 - 1, which no id could name.
absl::Status GetCount(OpKernelConstruction* ctx, const char* name, int64_t* value);

// Allocates output `index`; an error instead of an abort if the product of dims is absurd.
absl::Status Allocate(OpKernelContext* ctx, int index, std::initializer_list<int64_t> dims,
                      Tensor** output);

// InvalidArgument unless input `index` has the rank.
absl::Status ExpectRank(OpKernelContext* ctx, int index, int rank);

// InvalidArgument unless `actual` equals `expected`; `what` names them.
absl::Status ExpectEqual(const OpKernelContext* ctx, const std::string& what, int64_t actual,
                         int64_t expected);

// InvalidArgument unless input `index` is a vector of the length; `what` names it.
absl::Status ExpectVector(OpKernelContext* ctx, int index, const std::string& what, int64_t length);

// InvalidArgument naming the first row of x (rows, d) with a NaN or an infinite value.
absl::Status ExpectFinite(const OpKernelContext* ctx, const Tensor& x, const std::string& what);

// Inputs `index` (row_splits) and `index` + 1 (ids), checked.
absl::Status CsrInput(OpKernelContext* ctx, int index, int64_t units, bool strictly, CsrView* csr);

// Input `index`: ascending distinct ids in [0, units).
absl::Status IdListInput(OpKernelContext* ctx, int index, int64_t units, IdList* list);

// Input `index` as a matrix with a row for each sample and a column for each shared neuron.
absl::Status SharedInput(OpKernelContext* ctx, int index, int64_t rows, int64_t count,
                         const float** values);

// The tensors of an active set that is seen from its neurons.
struct CscTensors {
  int64_t rows = 0;
  Tensor neurons, neuron_splits, entry_row, entry_index, shared_places;

  CscView view() const;
};

// The same as one op hands it to others: in a scalar variant. It is checked where it is made, so
// that readers need not look at its entries again.
struct CscVariant {
  std::shared_ptr<const CscTensors> tensors;

  // What a variant asks of its values: TensorFlow writes those of constants to graphs. To read one
  // fails if it is not sound.
  std::string TypeName() const { return "dslide::CscVariant"; }
  std::string DebugString() const;
  void Encode(tensorflow::VariantTensorData* data) const;
  bool Decode(const tensorflow::VariantTensorData& data);
};

// Input `index`, a scalar variant with the tensors that CscFromCsr made.
absl::Status CscTensorsInput(OpKernelContext* ctx, int index, const CscTensors** tensors);

// The same as a view, which must speak of so many samples, and of neurons in [0, units).
absl::Status CscViewInput(OpKernelContext* ctx, int index, int64_t rows, int64_t units,
                          CscView* view);

// What the gradient of weights is computed from, four inputs from `index` on: x, coef, shared_coef
// and a view.
absl::Status GradientFactorsInput(OpKernelContext* ctx, int index, int64_t units, CscView* view,
                                  GradientFactors* factors);

// Four inputs from `index` on: top, log_sum, label_count and upstream of each row.
absl::Status TotalsInput(OpKernelContext* ctx, int index, int64_t rows, SoftmaxTotals* totals);

// Copies a vector of int64, int32 or float to output `index`.
template <typename T>
absl::Status SetVector(OpKernelContext* ctx, int index, const std::vector<T>& values) {
  Tensor* out;
  TF_RETURN_IF_ERROR(Allocate(ctx, index, {static_cast<int64_t>(values.size())}, &out));
  std::copy(values.begin(), values.end(), out->flat<T>().data());
  return absl::OkStatus();
}

// Writes a CSR to outputs 0 and 1.
absl::Status SetCsr(OpKernelContext* ctx, const Csr& csr);

// float variables behind resource inputs, locked while this object lives: shared to read, alone to
// write. To write, the tensor is copied first if somebody still holds its value.
class Variables {
 public:
  enum class Access { kRead, kWrite };

  // The variables are float32; from number `first_counter` on they are int32.
  absl::Status Lock(OpKernelContext* ctx, const std::vector<int>& inputs, Access access,
                    size_t first_counter = SIZE_MAX);
  ~Variables();

  const TensorShape& shape(int i) const { return vars_[i]->tensor()->shape(); }
  float* data(int i) const { return vars_[i]->tensor()->flat<float>().data(); }
  int32_t* counters(int i) const { return vars_[i]->tensor()->flat<int32_t>().data(); }
  int64_t size() const { return static_cast<int64_t>(vars_.size()); }

 private:
  absl::Status MakeWritable(OpKernelContext* ctx, tensorflow::Var* var);

  std::vector<tensorflow::core::RefCountPtr<tensorflow::Var>> vars_;
  std::vector<tensorflow::Var*> locked_;
  Access access_ = Access::kRead;
};

// The kernel (units, d) and, if there is one, the bias (units) of a layer, locked for reading, with
// input 0 as its batch x (rows, d).
class LayerInput {
 public:
  absl::Status Lock(OpKernelContext* ctx, int kernel_input, int bias_count);
  int64_t units() const { return variables_.shape(0).dim_size(0); }
  int64_t d() const { return variables_.shape(0).dim_size(1); }
  DenseScan scan() const;

 private:
  Variables variables_;
  const Tensor* x_ = nullptr;
};

}  // namespace dslide

#endif  // TF_DSLIDE_KERNELS_GLUE_H_
