#include <array>
#include <limits>
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

// The variables of an update, locked and seen as rows along their first axis.
struct UpdateInput {
  std::array<float*, 3> data;
  int32_t* last_step;
  int64_t rows;
  int64_t d;
  bool unit_rows;
};

// Adam: weight, momentum, velocity, last step; step, learning rate, weight decay.
class Adam {
 public:
  static constexpr int kVariables = 3, kCounters = 1, kNumbers = 3;

  absl::Status Read(OpKernelConstruction* ctx) {
    TF_RETURN_IF_ERROR(ctx->GetAttr("beta_1", &beta_1_));
    TF_RETURN_IF_ERROR(ctx->GetAttr("beta_2", &beta_2_));
    TF_RETURN_IF_ERROR(ctx->GetAttr("epsilon", &epsilon_));
    TF_RETURN_IF_ERROR(ctx->GetAttr("lazy", &lazy_));
    for (float beta : {beta_1_, beta_2_}) {
      if (beta >= 0 && beta < 1) continue;
      return absl::InvalidArgumentError("beta_1 and beta_2 must be in [0, 1); received " +
                                        std::to_string(beta));
    }
    if (!lazy_ && beta_1_ * beta_1_ >= beta_2_) {
      return absl::InvalidArgumentError(
          "rows that catch up need beta_1 ** 2 < beta_2; received beta_1 = " +
          std::to_string(beta_1_) + ", beta_2 = " + std::to_string(beta_2_));
    }
    return ExpectEpsilon(epsilon_);
  }

  absl::Status Check(OpKernelContext* ctx) const {
    const int64_t t = ctx->input(4).scalar<int64_t>()();
    if (t >= 1 && t < std::numeric_limits<int32_t>::max()) return absl::OkStatus();
    return absl::InvalidArgumentError("step counts from 1 to 2147483646; received " +
                                      std::to_string(t));
  }

  AdamUpdate Of(OpKernelContext* ctx, const UpdateInput& in) const {
    const AdamSettings settings = {ctx->input(5).scalar<float>()(),
                                   ctx->input(6).scalar<float>()(),
                                   beta_1_,
                                   beta_2_,
                                   epsilon_,
                                   ctx->input(4).scalar<int64_t>()()};
    return {in.data[0], in.data[1], in.data[2],  lazy_ ? nullptr : in.last_step,
            in.d,       settings,   in.unit_rows};
  }

 private:
  float beta_1_, beta_2_, epsilon_;
  bool lazy_ = false;
};

// Adagrad: weight, accumulator; learning rate, weight decay.
class Adagrad {
 public:
  static constexpr int kVariables = 2, kCounters = 0, kNumbers = 2;

  absl::Status Read(OpKernelConstruction* ctx) {
    TF_RETURN_IF_ERROR(ctx->GetAttr("epsilon", &epsilon_));
    return ExpectEpsilon(epsilon_);
  }

  absl::Status Check(OpKernelContext*) const { return absl::OkStatus(); }

  AdagradUpdate Of(OpKernelContext* ctx, const UpdateInput& in) const {
    const float rate = ctx->input(2).scalar<float>()();
    const float decay = ctx->input(3).scalar<float>()();
    return {in.data[0], in.data[1], in.d, {rate, epsilon_, rate * decay}, in.unit_rows};
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

// No gradient: rows make up for what they missed.
struct Nothing {
  static absl::Status Apply(OpKernelContext* ctx, int, int64_t rows, const AdamUpdate& update) {
    update.CatchUpAll(rows, PoolOf(ctx));
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
    constexpr int kGradient = Optimizer::kVariables + Optimizer::kCounters + Optimizer::kNumbers;
    Variables variables;
    UpdateInput input{};
    OP_REQUIRES_OK(ctx, Lock(ctx, &variables, &input));
    for (int i = kGradient - Optimizer::kNumbers; i < kGradient; ++i) {
      OP_REQUIRES_OK(ctx, ExpectRank(ctx, i, 0));
    }
    OP_REQUIRES_OK(ctx, optimizer_.Check(ctx));
    OP_REQUIRES_OK(ctx, Gradient::Apply(ctx, kGradient, input.rows, optimizer_.Of(ctx, input)));
  }

 private:
  absl::Status Lock(OpKernelContext* ctx, Variables* variables, UpdateInput* input) {
    constexpr int kVariables = Optimizer::kVariables;
    std::vector<int> inputs(kVariables + Optimizer::kCounters);
    std::iota(inputs.begin(), inputs.end(), 0);
    TF_RETURN_IF_ERROR(variables->Lock(ctx, inputs, Variables::Access::kWrite, kVariables));
    const TensorShape& shape = variables->shape(0);
    for (int i = 0; i < kVariables; ++i) {
      if (variables->shape(i) != shape) {
        return absl::InvalidArgumentError("weight and moments must have one shape");
      }
      input->data[i] = variables->data(i);
      huge_pages_.Use(i, input->data[i], shape.num_elements());
    }
    input->rows = shape.dims() == 0 ? 1 : shape.dim_size(0);
    input->d = 1;
    for (int axis = 1; axis < shape.dims(); ++axis) input->d *= shape.dim_size(axis);
    input->unit_rows = unit_rows_;
    if (Optimizer::kCounters == 0) return absl::OkStatus();
    input->last_step = variables->counters(kVariables);
    return ExpectEqual(ctx, "length of last_step", variables->shape(kVariables).num_elements(),
                       input->rows);
  }

  Optimizer optimizer_;
  bool unit_rows_ = false;
  HugePages huge_pages_;
};

using DenseAdam = UpdateOp<Adam, Dense>;
using RowAdam = UpdateOp<Adam, Rows>;
using RowGradientAdam = UpdateOp<Adam, Factors>;
using CatchUpAdam = UpdateOp<Adam, Nothing>;
using DenseAdagrad = UpdateOp<Adagrad, Dense>;
using RowAdagrad = UpdateOp<Adagrad, Rows>;
using RowGradientAdagrad = UpdateOp<Adagrad, Factors>;

REGISTER_KERNEL_BUILDER(Name("DslideDenseAdam").Device(DEVICE_CPU), DenseAdam);
REGISTER_KERNEL_BUILDER(Name("DslideRowAdam").Device(DEVICE_CPU), RowAdam);
REGISTER_KERNEL_BUILDER(Name("DslideRowGradientAdam").Device(DEVICE_CPU), RowGradientAdam);
REGISTER_KERNEL_BUILDER(Name("DslideCatchUpAdam").Device(DEVICE_CPU), CatchUpAdam);
REGISTER_KERNEL_BUILDER(Name("DslideDenseAdagrad").Device(DEVICE_CPU), DenseAdagrad);
REGISTER_KERNEL_BUILDER(Name("DslideRowAdagrad").Device(DEVICE_CPU), RowAdagrad);
REGISTER_KERNEL_BUILDER(Name("DslideRowGradientAdagrad").Device(DEVICE_CPU), RowGradientAdagrad);

}  // namespace
}  // namespace dslide
