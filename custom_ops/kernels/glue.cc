#include "custom_ops/kernels/glue.h"

#include <algorithm>
#include <cstring>
#include <limits>

#include "custom_ops/core/simd.h"
#include "tensorflow/core/framework/variant_op_registry.h"
#include "tensorflow/core/util/work_sharder.h"

namespace dslide {

using tensorflow::TypeIndex;  // the macro below names it so
using tensorflow::Var;

ParallelFor PoolOf(OpKernelContext* ctx) {
  const auto* workers = ctx->device()->tensorflow_cpu_worker_threads();
  return [workers](int64_t total, int64_t cost, const std::function<void(int64_t, int64_t)>& work) {
    if (total <= 0) return;
    tensorflow::Shard(workers->num_threads, workers->workers, total, cost, work);
  };
}

absl::Status Invalid(const OpKernelContext* ctx, const std::string& error) {
  if (error.empty()) return absl::OkStatus();
  return absl::InvalidArgumentError(ctx->op_kernel().type_string() + ": " + error);
}

absl::Status GetCount(OpKernelConstruction* ctx, const char* name, int64_t* value) {
  TF_RETURN_IF_ERROR(ctx->GetAttr(name, value));
  if (*value <= std::numeric_limits<int32_t>::max()) return absl::OkStatus();
  return absl::InvalidArgumentError(std::string(name) + " must not exceed 2147483647; received " +
                                    std::to_string(*value));
}

absl::Status Allocate(OpKernelContext* ctx, int index, std::initializer_list<int64_t> dims,
                      Tensor** output) {
  TensorShape shape;
  TF_RETURN_IF_ERROR(TensorShape::BuildTensorShape(dims, &shape));
  return ctx->allocate_output(index, shape, output);
}

absl::Status ExpectRank(OpKernelContext* ctx, int index, int rank) {
  const TensorShape& shape = ctx->input(index).shape();
  if (shape.dims() == rank) return absl::OkStatus();
  return Invalid(ctx, "input " + std::to_string(index) + " must have rank " + std::to_string(rank) +
                          "; received shape " + shape.DebugString());
}

absl::Status ExpectEqual(const OpKernelContext* ctx, const std::string& what, int64_t actual,
                         int64_t expected) {
  if (actual == expected) return absl::OkStatus();
  return Invalid(
      ctx, what + " must be " + std::to_string(expected) + "; received " + std::to_string(actual));
}

absl::Status ExpectVector(OpKernelContext* ctx, int index, const std::string& what,
                          int64_t length) {
  TF_RETURN_IF_ERROR(ExpectRank(ctx, index, 1));
  return ExpectEqual(ctx, what, ctx->input(index).NumElements(), length);
}

absl::Status ExpectFinite(const OpKernelContext* ctx, const Tensor& x, const std::string& what) {
  const float* data = x.flat<float>().data();
  const int64_t size = x.NumElements();
  if (size == 0 || Simd().all_finite(data, size)) return absl::OkStatus();
  const float* at = std::find_if(data, data + size, [](float v) { return !(v - v == 0); });
  // Sums of huge finite differences cannot overflow: x - x is 0 for each of them.
  if (at == data + size) return absl::OkStatus();
  const int64_t width = x.dims() > 1 ? x.dim_size(x.dims() - 1) : 1;
  return Invalid(ctx, what + " must be finite; row " + std::to_string((at - data) / width) +
                          " holds " + std::to_string(*at) + " at column " +
                          std::to_string((at - data) % width));
}

absl::Status CsrInput(OpKernelContext* ctx, int index, int64_t units, bool strictly, CsrView* csr) {
  TF_RETURN_IF_ERROR(ExpectRank(ctx, index, 1));
  TF_RETURN_IF_ERROR(ExpectRank(ctx, index + 1, 1));
  const Tensor& splits = ctx->input(index);
  const Tensor& ids = ctx->input(index + 1);
  if (splits.NumElements() == 0) return Invalid(ctx, "row_splits must not be empty");
  if (ids.NumElements() > std::numeric_limits<int32_t>::max()) {
    return Invalid(ctx, "at most 2147483647 ids fit one batch; received " +
                            std::to_string(ids.NumElements()) + "; use smaller batches");
  }
  *csr = {splits.NumElements() - 1, splits.flat<int64_t>().data(), ids.flat<int32_t>().data()};
  return Invalid(ctx, CheckCsr(csr->splits, csr->rows, csr->ids, ids.NumElements(), units, strictly,
                               PoolOf(ctx)));
}

absl::Status IdListInput(OpKernelContext* ctx, int index, int64_t units, IdList* list) {
  TF_RETURN_IF_ERROR(ExpectRank(ctx, index, 1));
  const auto ids = ctx->input(index).flat<int32_t>();
  *list = {ids.data(), ids.size()};
  const int64_t splits[] = {0, list->count};
  return Invalid(ctx, CheckCsr(splits, 1, list->ids, list->count, units, true, PoolOf(ctx)));
}

absl::Status SharedInput(OpKernelContext* ctx, int index, int64_t rows, int64_t count,
                         const float** values) {
  TF_RETURN_IF_ERROR(ExpectRank(ctx, index, 2));
  const Tensor& input = ctx->input(index);
  *values = input.flat<float>().data();
  TF_RETURN_IF_ERROR(
      ExpectEqual(ctx, "rows of the shared neurons' values", input.dim_size(0), rows));
  return ExpectEqual(ctx, "columns of the shared neurons' values", input.dim_size(1), count);
}

CscView CscTensors::view() const {
  return {neurons.NumElements(),
          neurons.flat<int32_t>().data(),
          neuron_splits.flat<int64_t>().data(),
          entry_row.flat<int32_t>().data(),
          entry_index.flat<int32_t>().data(),
          {shared_places.flat<int32_t>().data(), shared_places.NumElements()}};
}

std::string CscVariant::DebugString() const {
  return "an active set of " + std::to_string(tensors->rows) + " rows and " +
         std::to_string(tensors->neurons.NumElements()) + " neurons";
}

void CscVariant::Encode(tensorflow::VariantTensorData* data) const {
  const CscTensors& t = *tensors;
  data->set_type_name(TypeName());
  data->set_metadata(t.rows);
  for (const Tensor& tensor :
       {t.neurons, t.neuron_splits, t.entry_row, t.entry_index, t.shared_places}) {
    *data->add_tensors() = tensor;
  }
}

bool CscVariant::Decode(const tensorflow::VariantTensorData& data) {
  CscTensors t;
  if (data.tensors_size() != 5 || !data.get_metadata(&t.rows)) return false;
  Tensor* const to[] = {&t.neurons, &t.neuron_splits, &t.entry_row, &t.entry_index,
                        &t.shared_places};
  for (int i = 0; i < 5; ++i) {
    *to[i] = data.tensors(i);
    const auto type = i == 1 ? tensorflow::DT_INT64 : tensorflow::DT_INT32;
    if (to[i]->dtype() != type || to[i]->dims() != 1) return false;
  }
  const int64_t entries = t.entry_row.NumElements();
  if (t.neuron_splits.NumElements() != t.neurons.NumElements() + 1) return false;
  if (t.entry_index.NumElements() != entries) return false;
  if (!IsSound(t.view(), t.rows, entries)) return false;
  tensors = std::make_shared<const CscTensors>(std::move(t));
  return true;
}

namespace {

// Tapes make a gradient of zeros for a view that a function hands on, and nobody reads it.
absl::Status ZerosLikeView(OpKernelContext*, const CscVariant& view, CscVariant* zeros) {
  *zeros = view;
  return absl::OkStatus();
}

REGISTER_UNARY_VARIANT_DECODE_FUNCTION(CscVariant, "dslide::CscVariant");
REGISTER_UNARY_VARIANT_UNARY_OP_FUNCTION(tensorflow::ZEROS_LIKE_VARIANT_UNARY_OP,
                                         tensorflow::DEVICE_CPU, CscVariant, ZerosLikeView);

}  // namespace

absl::Status CscTensorsInput(OpKernelContext* ctx, int index, const CscTensors** tensors) {
  TF_RETURN_IF_ERROR(ExpectRank(ctx, index, 0));
  const tensorflow::Variant& value = ctx->input(index).scalar<tensorflow::Variant>()();
  const CscVariant* view = value.get<CscVariant>();
  if (view != nullptr) {
    *tensors = view->tensors.get();
    return absl::OkStatus();
  }
  return Invalid(ctx, "a view must be what the CscFromCsr op made; received " + value.TypeName());
}

absl::Status CscViewInput(OpKernelContext* ctx, int index, int64_t rows, int64_t units,
                          CscView* view) {
  const CscTensors* tensors;
  TF_RETURN_IF_ERROR(CscTensorsInput(ctx, index, &tensors));
  TF_RETURN_IF_ERROR(ExpectEqual(ctx, "rows of the active sets", tensors->rows, rows));
  *view = tensors->view();
  if (view->count == 0 || view->neurons[view->count - 1] < units) return absl::OkStatus();
  return Invalid(ctx, "the active sets hold neuron " +
                          std::to_string(view->neurons[view->count - 1]) +
                          ", which is outside [0, " + std::to_string(units) + ")");
}

absl::Status GradientFactorsInput(OpKernelContext* ctx, int index, int64_t units, CscView* view,
                                  GradientFactors* factors) {
  TF_RETURN_IF_ERROR(ExpectRank(ctx, index, 2));
  TF_RETURN_IF_ERROR(ExpectRank(ctx, index + 1, 1));
  const Tensor& x = ctx->input(index);
  const Tensor& coef = ctx->input(index + 1);
  *factors = {x.flat<float>().data(), x.dim_size(0), x.dim_size(1), coef.flat<float>().data(),
              nullptr};
  TF_RETURN_IF_ERROR(CscViewInput(ctx, index + 3, factors->rows, units, view));
  TF_RETURN_IF_ERROR(ExpectEqual(ctx, "length of coef", coef.NumElements(), view->size()));
  return SharedInput(ctx, index + 2, factors->rows, view->shared(), &factors->shared_coef);
}

absl::Status TotalsInput(OpKernelContext* ctx, int index, int64_t rows, SoftmaxTotals* totals) {
  const float* values[4];
  for (int i = 0; i < 4; ++i) {
    TF_RETURN_IF_ERROR(ExpectVector(ctx, index + i, "rows", rows));
    values[i] = ctx->input(index + i).flat<float>().data();
  }
  *totals = {values[0], values[1], values[2], values[3]};
  return absl::OkStatus();
}

absl::Status SetCsr(OpKernelContext* ctx, const Csr& csr) {
  TF_RETURN_IF_ERROR(SetVector(ctx, 0, csr.splits));
  return SetVector(ctx, 1, csr.ids);
}

absl::Status Variables::Lock(OpKernelContext* ctx, const std::vector<int>& inputs, Access access,
                             size_t first_counter) {
  access_ = access;
  vars_.resize(inputs.size());
  for (size_t i = 0; i < inputs.size(); ++i) {
    TF_RETURN_IF_ERROR(
        tensorflow::LookupResource(ctx, tensorflow::HandleFromInput(ctx, inputs[i]), &vars_[i]));
  }
  // One order for all ops, so that two of them never wait for each other.
  std::vector<Var*> order;
  for (const auto& var : vars_) order.push_back(var.get());
  std::sort(order.begin(), order.end());
  if (std::adjacent_find(order.begin(), order.end()) != order.end()) {
    return Invalid(ctx, "the same variable was given twice");
  }
  for (Var* var : order) {
    if (access == Access::kRead) {
      var->mu()->lock_shared();
    } else {
      var->mu()->lock();
    }
    locked_.push_back(var);
  }
  for (size_t i = 0; i < vars_.size(); ++i) {
    const Tensor& tensor = *vars_[i]->tensor();
    if (!tensor.IsInitialized()) return Invalid(ctx, "a variable is not initialized");
    const auto type = i < first_counter ? tensorflow::DT_FLOAT : tensorflow::DT_INT32;
    if (tensor.dtype() != type) {
      return Invalid(ctx, "variable " + std::to_string(i) + " must be " + DataTypeString(type) +
                              "; received " + DataTypeString(tensor.dtype()));
    }
    if (access == Access::kWrite) TF_RETURN_IF_ERROR(MakeWritable(ctx, vars_[i].get()));
  }
  return absl::OkStatus();
}

absl::Status Variables::MakeWritable(OpKernelContext* ctx, Var* var) {
  if (var->tensor()->RefCountIsOne()) return absl::OkStatus();
  Tensor copy;
  TF_RETURN_IF_ERROR(ctx->allocate_temp(var->tensor()->dtype(), var->tensor()->shape(), &copy));
  std::memcpy(copy.data(), var->tensor()->data(), copy.TotalBytes());
  *var->tensor() = copy;
  return absl::OkStatus();
}

Variables::~Variables() {
  for (Var* var : locked_) {
    if (access_ == Access::kRead) {
      var->mu()->unlock_shared();
    } else {
      var->mu()->unlock();
    }
  }
}

absl::Status LayerInput::Lock(OpKernelContext* ctx, int kernel_input, int bias_count) {
  if (bias_count > 1) return Invalid(ctx, "use_bias must be 0 or 1");
  std::vector<int> inputs = {kernel_input};
  if (bias_count == 1) inputs.push_back(kernel_input + 1);
  TF_RETURN_IF_ERROR(variables_.Lock(ctx, inputs, Variables::Access::kRead));
  x_ = &ctx->input(0);
  TF_RETURN_IF_ERROR(ExpectRank(ctx, 0, 2));
  TF_RETURN_IF_ERROR(ExpectEqual(ctx, "rank of the kernel", variables_.shape(0).dims(), 2));
  TF_RETURN_IF_ERROR(ExpectEqual(ctx, "columns of x", x_->dim_size(1), d()));
  if (bias_count == 1) {
    TF_RETURN_IF_ERROR(
        ExpectEqual(ctx, "length of the bias", variables_.shape(1).num_elements(), units()));
  }
  return absl::OkStatus();
}

DenseScan LayerInput::scan() const {
  return {x_->dim_size(0),
          d(),
          units(),
          x_->flat<float>().data(),
          variables_.data(0),
          variables_.size() > 1 ? variables_.data(1) : nullptr};
}

}  // namespace dslide
