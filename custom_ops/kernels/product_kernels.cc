#include "custom_ops/core/sparse_products.h"
#include "custom_ops/kernels/glue.h"

namespace dslide {
namespace {

using tensorflow::DEVICE_CPU;

class ActiveLogitsOp : public OpKernel {
 public:
  explicit ActiveLogitsOp(OpKernelConstruction* ctx) : OpKernel(ctx) {
    OP_REQUIRES_OK(ctx, ctx->GetAttr("use_bias", &use_bias_));
    OP_REQUIRES_OK(ctx, ctx->GetAttr("check_input", &check_input_));
  }

  void Compute(OpKernelContext* ctx) override {
    LayerInput layer;
    OP_REQUIRES_OK(ctx, layer.Lock(ctx, 2, use_bias_));
    if (check_input_) {
      OP_REQUIRES_OK(ctx, ExpectFinite(ctx, ctx->input(0), "the layer's input"));
    }
    const DenseScan scan = layer.scan();
    CscView view;
    OP_REQUIRES_OK(ctx, CscViewInput(ctx, 1, scan.rows, scan.units, &view));
    Tensor *logits, *shared_logits;
    OP_REQUIRES_OK(ctx, Allocate(ctx, 0, {view.size()}, &logits));
    OP_REQUIRES_OK(ctx, Allocate(ctx, 1, {scan.rows, view.shared()}, &shared_logits));
    ActiveLogits(view, scan.x, scan.w, scan.bias, scan.d, logits->flat<float>().data(),
                 PoolOf(ctx));
    SharedLogits(view, scan.x, scan.rows, scan.w, scan.bias, scan.d,
                 shared_logits->flat<float>().data(), PoolOf(ctx));
  }

 private:
  int use_bias_;
  bool check_input_;
};

absl::Status ExpectMatrix(const OpKernelContext* ctx, const Variables& kernel) {
  return ExpectEqual(ctx, "rank of the kernel", kernel.shape(0).dims(), 2);
}

class CsrMatMulOp : public OpKernel {
 public:
  explicit CsrMatMulOp(OpKernelConstruction* ctx) : OpKernel(ctx) {
    OP_REQUIRES_OK(ctx, GetCount(ctx, "columns", &columns_));
  }

  void Compute(OpKernelContext* ctx) override {
    Variables kernel;
    OP_REQUIRES_OK(ctx, kernel.Lock(ctx, {3}, Variables::Access::kRead));
    OP_REQUIRES_OK(ctx, ExpectMatrix(ctx, kernel));
    OP_REQUIRES_OK(ctx,
                   ExpectEqual(ctx, "rows of the kernel", kernel.shape(0).dim_size(0), columns_));
    const int64_t d = kernel.shape(0).dim_size(1);
    CsrView active;
    OP_REQUIRES_OK(ctx, CsrInput(ctx, 1, columns_, false, &active));
    OP_REQUIRES_OK(ctx, ExpectVector(ctx, 0, "length of coef", active.size()));
    Tensor* y;
    OP_REQUIRES_OK(ctx, Allocate(ctx, 0, {active.rows, d}, &y));
    CsrMatMul(active, ctx->input(0).flat<float>().data(), kernel.data(0), d,
              y->flat<float>().data(), PoolOf(ctx));
  }

 private:
  int64_t columns_;
};

// The gradient of ActiveLogits by x.
class ActiveMatMulOp : public OpKernel {
 public:
  using OpKernel::OpKernel;

  void Compute(OpKernelContext* ctx) override {
    Variables kernel;
    OP_REQUIRES_OK(ctx, kernel.Lock(ctx, {4}, Variables::Access::kRead));
    OP_REQUIRES_OK(ctx, ExpectMatrix(ctx, kernel));
    OP_REQUIRES_OK(ctx, ExpectRank(ctx, 3, 2));
    const int64_t rows = ctx->input(3).dim_size(0), units = kernel.shape(0).dim_size(0);
    const int64_t d = kernel.shape(0).dim_size(1);
    OP_REQUIRES_OK(ctx, ExpectEqual(ctx, "columns of like", ctx->input(3).dim_size(1), d));
    CscView view;
    OP_REQUIRES_OK(ctx, CscViewInput(ctx, 2, rows, units, &view));
    OP_REQUIRES_OK(ctx, ExpectVector(ctx, 0, "length of coef", view.size()));
    const float* shared_coef;
    OP_REQUIRES_OK(ctx, SharedInput(ctx, 1, rows, view.shared(), &shared_coef));
    Tensor* y;
    OP_REQUIRES_OK(ctx, Allocate(ctx, 0, {rows, d}, &y));
    float* sums = y->flat<float>().data();
    CsrMatMulByNeuron(view, rows, ctx->input(0).flat<float>().data(), kernel.data(0), d, sums,
                      PoolOf(ctx));
    AddSharedMatMul(view, rows, shared_coef, kernel.data(0), d, sums, PoolOf(ctx));
  }
};

class RowGradientOp : public OpKernel {
 public:
  using OpKernel::OpKernel;

  void Compute(OpKernelContext* ctx) override {
    CscView view;
    GradientFactors factors;
    OP_REQUIRES_OK(
        ctx, GradientFactorsInput(ctx, 0, std::numeric_limits<int32_t>::max(), &view, &factors));
    Tensor* gradient;
    OP_REQUIRES_OK(ctx, Allocate(ctx, 0, {view.count, factors.d}, &gradient));
    RowGradient(view, factors, gradient->flat<float>().data(), PoolOf(ctx));
  }
};

class EntrySumsOp : public OpKernel {
 public:
  using OpKernel::OpKernel;

  void Compute(OpKernelContext* ctx) override {
    CscView view;
    GradientFactors factors;
    OP_REQUIRES_OK(
        ctx, GradientFactorsInput(ctx, 0, std::numeric_limits<int32_t>::max(), &view, &factors));
    Tensor* sums;
    OP_REQUIRES_OK(ctx, Allocate(ctx, 0, {view.count}, &sums));
    EntrySums(view, factors, sums->flat<float>().data(), PoolOf(ctx));
  }
};

REGISTER_KERNEL_BUILDER(Name("DslideActiveLogits").Device(DEVICE_CPU), ActiveLogitsOp);
REGISTER_KERNEL_BUILDER(Name("DslideCsrMatMul").Device(DEVICE_CPU), CsrMatMulOp);
REGISTER_KERNEL_BUILDER(Name("DslideActiveMatMul").Device(DEVICE_CPU), ActiveMatMulOp);
REGISTER_KERNEL_BUILDER(Name("DslideRowGradient").Device(DEVICE_CPU), RowGradientOp);
REGISTER_KERNEL_BUILDER(Name("DslideEntrySums").Device(DEVICE_CPU), EntrySumsOp);

}  // namespace
}  // namespace dslide
