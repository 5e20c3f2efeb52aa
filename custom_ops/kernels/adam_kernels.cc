#include <cmath>

#include "custom_ops/core/sparse_products.h"
#include "custom_ops/kernels/glue.h"
#include "custom_ops/kernels/huge_pages.h"

namespace dslide {
namespace {

using tensorflow::DEVICE_CPU;

// An op that changes weight, momentum and velocity (inputs 0 to 2) by one step of Adam. Variables
// of any rank are seen as rows along their first axis.
class AdamOp : public OpKernel {
 public:
  explicit AdamOp(OpKernelConstruction* ctx) : OpKernel(ctx) {
    OP_REQUIRES_OK(ctx, ctx->GetAttr("beta_1", &beta_1_));
    OP_REQUIRES_OK(ctx, ctx->GetAttr("beta_2", &beta_2_));
    OP_REQUIRES_OK(ctx, ctx->GetAttr("epsilon", &epsilon_));
    OP_REQUIRES(ctx, epsilon_ >= 0,
                absl::InvalidArgumentError("epsilon must not be negative; received " +
                                           std::to_string(epsilon_)));
    for (float beta : {beta_1_, beta_2_}) {
      OP_REQUIRES(ctx, beta >= 0 && beta < 1,
                  absl::InvalidArgumentError("beta_1 and beta_2 must be in [0, 1); received " +
                                             std::to_string(beta)));
    }
  }

  void Compute(OpKernelContext* ctx) override {
    Variables variables;
    OP_REQUIRES_OK(ctx, variables.Lock(ctx, {0, 1, 2}, Variables::Access::kWrite));
    for (int i : {1, 2}) {
      OP_REQUIRES(ctx, variables.shape(i) == variables.shape(0),
                  absl::InvalidArgumentError("weight and moments must have one shape"));
    }
    for (int i : {3, 4, 5}) OP_REQUIRES_OK(ctx, ExpectRank(ctx, i, 0));
    const int64_t t = ctx->input(3).scalar<int64_t>()();
    OP_REQUIRES(ctx, t >= 1,
                absl::InvalidArgumentError("step counts from 1; received " + std::to_string(t)));
    const TensorShape& shape = variables.shape(0);
    for (int i : {0, 1, 2}) huge_pages_.Use(i, variables.data(i), shape.num_elements());
    const int64_t rows = shape.dims() == 0 ? 1 : shape.dim_size(0);
    int64_t d = 1;
    for (int axis = 1; axis < shape.dims(); ++axis) d *= shape.dim_size(axis);
    const AdamState state = {variables.data(0), variables.data(1), variables.data(2), d};
    OP_REQUIRES_OK(ctx, Update(ctx, state, rows, Step(ctx)));
  }

  virtual absl::Status Update(OpKernelContext* ctx, const AdamState& state, int64_t rows,
                              const AdamStep& step) = 0;

 private:
  AdamStep Step(OpKernelContext* ctx) const {
    const double t = static_cast<double>(ctx->input(3).scalar<int64_t>()());
    const double rate = ctx->input(4).scalar<float>()();
    const double decay = ctx->input(5).scalar<float>()();
    const double correction = std::sqrt(1.0 - std::pow(static_cast<double>(beta_2_), t)) /
                              (1.0 - std::pow(static_cast<double>(beta_1_), t));
    return {static_cast<float>(rate * correction), beta_1_, beta_2_, epsilon_,
            static_cast<float>(rate * decay)};
  }

  float beta_1_, beta_2_, epsilon_;
  HugePages huge_pages_;
};

class DenseAdamOp : public AdamOp {
 public:
  using AdamOp::AdamOp;

  absl::Status Update(OpKernelContext* ctx, const AdamState& state, int64_t rows,
                      const AdamStep& step) override {
    const Tensor& gradient = ctx->input(6);
    TF_RETURN_IF_ERROR(
        ExpectEqual(ctx, "size of the gradient", gradient.NumElements(), rows * state.d));
    DenseAdam(state, rows * state.d, gradient.flat<float>().data(), step, PoolOf(ctx));
    return absl::OkStatus();
  }
};

class RowAdamOp : public AdamOp {
 public:
  using AdamOp::AdamOp;

  absl::Status Update(OpKernelContext* ctx, const AdamState& state, int64_t rows,
                      const AdamStep& step) override {
    TF_RETURN_IF_ERROR(ExpectRank(ctx, 6, 1));
    const Tensor& gradient = ctx->input(7);
    const int64_t count = ctx->input(6).NumElements();
    const int32_t* ids = ctx->input(6).flat<int32_t>().data();
    TF_RETURN_IF_ERROR(
        ExpectEqual(ctx, "size of the gradient", gradient.NumElements(), count * state.d));
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
      RowAdam(state, ids, count, values, step, PoolOf(ctx));
    } else {
      const GroupedRows groups(ids, count);
      const std::vector<float> ones(count, 1.0f);
      const GradientParts parts = {values, count, state.d, ones.data(), nullptr};
      RowGradientAdam(groups.view(), parts, state, step, PoolOf(ctx));
    }
    return absl::OkStatus();
  }
};

class RowGradientAdamOp : public AdamOp {
 public:
  using AdamOp::AdamOp;

  absl::Status Update(OpKernelContext* ctx, const AdamState& state, int64_t rows,
                      const AdamStep& step) override {
    NeuronView view;
    GradientParts parts;
    TF_RETURN_IF_ERROR(GradientPartsInput(ctx, 6, rows, &view, &parts));
    TF_RETURN_IF_ERROR(ExpectEqual(ctx, "columns of x", parts.d, state.d));
    RowGradientAdam(view, parts, state, step, PoolOf(ctx));
    return absl::OkStatus();
  }
};

REGISTER_KERNEL_BUILDER(Name("DslideDenseAdam").Device(DEVICE_CPU), DenseAdamOp);
REGISTER_KERNEL_BUILDER(Name("DslideRowAdam").Device(DEVICE_CPU), RowAdamOp);
REGISTER_KERNEL_BUILDER(Name("DslideRowGradientAdam").Device(DEVICE_CPU), RowGradientAdamOp);

}  // namespace
}  // namespace dslide
