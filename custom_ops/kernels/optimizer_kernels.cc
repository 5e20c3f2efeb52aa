#include <array>
#include <cmath>
#include <memory>
#include <numeric>

#include "custom_ops/core/sparse_products.h"
#include "custom_ops/kernels/glue.h"
#include "custom_ops/kernels/huge_pages.h"

namespace dslide {
namespace {

using tensorflow::DEVICE_CPU;

absl::Status ExpectEpsilon(float epsilon) {
  if (epsilon >= 0) return absl::OkStatus();
  return absl::InvalidArgumentError("epsilon must not be negative; received " +
                                    std::to_string(epsilon));
}

// Adam: weight, momentum, velocity; step, learning rate, weight decay.
class Adam {
 public:
  static constexpr int kVariables = 3, kNumbers = 3;

  absl::Status Read(OpKernelConstruction* ctx) {
    TF_RETURN_IF_ERROR(ctx->GetAttr("beta_1", &beta_1_));
    TF_RETURN_IF_ERROR(ctx->GetAttr("beta_2", &beta_2_));
    TF_RETURN_IF_ERROR(ctx->GetAttr("epsilon", &epsilon_));
    for (float beta : {beta_1_, beta_2_}) {
      if (beta >= 0 && beta < 1) continue;
      return absl::InvalidArgumentError("beta_1 and beta_2 must be in [0, 1); received " +
                                        std::to_string(beta));
    }
    return ExpectEpsilon(epsilon_);
  }

  absl::Status Check(OpKernelContext* ctx) const {
    const int64_t t = ctx->input(3).scalar<int64_t>()();
    if (t >= 1) return absl::OkStatus();
    return absl::InvalidArgumentError("step counts from 1; received " + std::to_string(t));
  }

  AdamUpdate Update(OpKernelContext* ctx, const std::array<float*, 3>& data, int64_t d,
                    bool unit_rows) const {
    const double t = static_cast<double>(ctx->input(3).scalar<int64_t>()());
    const double rate = ctx->input(4).scalar<float>()();
    const double decay = ctx->input(5).scalar<float>()();
    const double correction = std::sqrt(1.0 - std::pow(static_cast<double>(beta_2_), t)) /
                              (1.0 - std::pow(static_cast<double>(beta_1_), t));
    const AdamStep step = {static_cast<float>(rate * correction), beta_1_, beta_2_, epsilon_,
                           static_cast<float>(rate * decay)};
    return {data[0], data[1], data[2], d, step, unit_rows};
  }

 private:
  float beta_1_, beta_2_, epsilon_;
};

// Adagrad: weight, accumulator; learning rate, weight decay.
class Adagrad {
 public:
  static constexpr int kVariables = 2, kNumbers = 2;

  absl::Status Read(OpKernelConstruction* ctx) {
    TF_RETURN_IF_ERROR(ctx->GetAttr("epsilon", &epsilon_));
    return ExpectEpsilon(epsilon_);
  }

  absl::Status Check(OpKernelContext*) const { return absl::OkStatus(); }

  AdagradUpdate Update(OpKernelContext* ctx, const std::array<float*, 2>& data, int64_t d,
                       bool unit_rows) const {
    const float rate = ctx->input(2).scalar<float>()();
    const float decay = ctx->input(3).scalar<float>()();
    return {data[0], data[1], d, {rate, epsilon_, rate * decay}, unit_rows};
  }

 private:
  float epsilon_;
};

// The forms of a gradient: each reads the inputs from `first` on and moves the weights.
struct Dense {
  static absl::Status Apply(OpKernelContext* ctx, int first, int64_t rows,
                            const RowUpdate& update) {
    const Tensor& gradient = ctx->input(first);
    const int64_t size = rows * update.d();
    TF_RETURN_IF_ERROR(ExpectEqual(ctx, "size of the gradient", gradient.NumElements(), size));
    UpdateAll(update, size, gradient.flat<float>().data(), PoolOf(ctx));
    return absl::OkStatus();
  }
};

struct Rows {
  static absl::Status Apply(OpKernelContext* ctx, int first, int64_t rows,
                            const RowUpdate& update) {
    TF_RETURN_IF_ERROR(ExpectRank(ctx, first, 1));
    const Tensor& gradient = ctx->input(first + 1);
    const int64_t count = ctx->input(first).NumElements();
    const int32_t* ids = ctx->input(first).flat<int32_t>().data();
    TF_RETURN_IF_ERROR(
        ExpectEqual(ctx, "size of the gradient", gradient.NumElements(), count * update.d()));
    bool ascending = true;
    for (int64_t j = 0; j < count; ++j) {
      if (ids[j] < 0 || ids[j] >= rows) {
        return Invalid(ctx, "the gradient names row " + std::to_string(ids[j]) +
                                ", which is outside [0, " + std::to_string(rows) + ")");
      }
      ascending = ascending && (j == 0 || ids[j - 1] < ids[j]);
    }
    const float* values = gradient.flat<float>().data();
    if (ascending) {
      UpdateRows(update, ids, count, values, PoolOf(ctx));
    } else {
      const GroupedRows groups(ids, count);
      const std::vector<float> ones(count, 1.0f);
      const GradientFactors factors = {values, count, update.d(), ones.data(), nullptr};
      UpdateRowsOf(groups.view(), factors, update, PoolOf(ctx));
    }
    return absl::OkStatus();
  }
};

struct Factors {
  static absl::Status Apply(OpKernelContext* ctx, int first, int64_t rows,
                            const RowUpdate& update) {
    CscView view;
    GradientFactors factors;
    TF_RETURN_IF_ERROR(GradientFactorsInput(ctx, first, rows, &view, &factors));
    TF_RETURN_IF_ERROR(ExpectEqual(ctx, "columns of x", factors.d, update.d()));
    UpdateRowsOf(view, factors, update, PoolOf(ctx));
    return absl::OkStatus();
  }
};

// An op that changes a weight and the optimizer's variables by one step. Variables of any rank are
// seen as rows along their first axis.
template <typename Optimizer, typename Gradient>
class UpdateOp : public OpKernel {
 public:
  explicit UpdateOp(OpKernelConstruction* ctx) : OpKernel(ctx) {
    OP_REQUIRES_OK(ctx, optimizer_.Read(ctx));
    OP_REQUIRES_OK(ctx, ctx->GetAttr("unit_rows", &unit_rows_));
  }

  void Compute(OpKernelContext* ctx) override {
    constexpr int kVariables = Optimizer::kVariables;
    constexpr int kGradient = kVariables + Optimizer::kNumbers;
    Variables variables;
    std::vector<int> inputs(kVariables);
    std::iota(inputs.begin(), inputs.end(), 0);
    OP_REQUIRES_OK(ctx, variables.Lock(ctx, inputs, Variables::Access::kWrite));
    const TensorShape& shape = variables.shape(0);
    std::array<float*, kVariables> data;
    for (int i = 0; i < kVariables; ++i) {
      OP_REQUIRES(ctx, variables.shape(i) == shape,
                  absl::InvalidArgumentError("weight and moments must have one shape"));
      data[i] = variables.data(i);
      huge_pages_.Use(i, data[i], shape.num_elements());
    }
    for (int i = kVariables; i < kGradient; ++i) OP_REQUIRES_OK(ctx, ExpectRank(ctx, i, 0));
    OP_REQUIRES_OK(ctx, optimizer_.Check(ctx));
    const int64_t rows = shape.dims() == 0 ? 1 : shape.dim_size(0);
    int64_t d = 1;
    for (int axis = 1; axis < shape.dims(); ++axis) d *= shape.dim_size(axis);
    OP_REQUIRES_OK(
        ctx, Gradient::Apply(ctx, kGradient, rows, optimizer_.Update(ctx, data, d, unit_rows_)));
  }

 private:
  Optimizer optimizer_;
  bool unit_rows_ = false;
  HugePages huge_pages_;
};

using DenseAdam = UpdateOp<Adam, Dense>;
using RowAdam = UpdateOp<Adam, Rows>;
using RowGradientAdam = UpdateOp<Adam, Factors>;
using DenseAdagrad = UpdateOp<Adagrad, Dense>;
using RowAdagrad = UpdateOp<Adagrad, Rows>;
using RowGradientAdagrad = UpdateOp<Adagrad, Factors>;

REGISTER_KERNEL_BUILDER(Name("DslideDenseAdam").Device(DEVICE_CPU), DenseAdam);
REGISTER_KERNEL_BUILDER(Name("DslideRowAdam").Device(DEVICE_CPU), RowAdam);
REGISTER_KERNEL_BUILDER(Name("DslideRowGradientAdam").Device(DEVICE_CPU), RowGradientAdam);
REGISTER_KERNEL_BUILDER(Name("DslideDenseAdagrad").Device(DEVICE_CPU), DenseAdagrad);
REGISTER_KERNEL_BUILDER(Name("DslideRowAdagrad").Device(DEVICE_CPU), RowAdagrad);
REGISTER_KERNEL_BUILDER(Name("DslideRowGradientAdagrad").Device(DEVICE_CPU), RowGradientAdagrad);

}  // namespace
}  // namespace dslide
