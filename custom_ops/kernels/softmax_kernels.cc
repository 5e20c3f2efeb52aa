#include "custom_ops/core/binary_crossentropy.h"
#include "custom_ops/core/softmax.h"
#include "custom_ops/core/sparse_output.h"
#include "custom_ops/kernels/glue.h"

namespace dslide {
namespace {

using tensorflow::DEVICE_CPU;

// Logits and ids of active sets: four inputs from 0 on.
absl::Status ActiveSetsInput(OpKernelContext* ctx, ActiveSets* active) {
  // Ids are int32, and the number of units is not told.
  constexpr int64_t kAnyUnit = int64_t{1} << 31;
  TF_RETURN_IF_ERROR(CsrInput(ctx, 1, kAnyUnit, true, &active->own));
  TF_RETURN_IF_ERROR(ExpectVector(ctx, 0, "length of logits", active->own.size()));
  TF_RETURN_IF_ERROR(IdListInput(ctx, 4, kAnyUnit, &active->shared));
  active->logits = ctx->input(0).flat<float>().data();
  return SharedInput(ctx, 3, active->own.rows, active->shared.count, &active->shared_logits);
}

// What the softmax is taken of: the active sets, labels and adjustments, nine inputs from 0 on.
absl::Status SoftmaxInput(OpKernelContext* ctx, ActiveSets* active, CsrView* labels) {
  TF_RETURN_IF_ERROR(ActiveSetsInput(ctx, active));
  TF_RETURN_IF_ERROR(CsrInput(ctx, 5, int64_t{1} << 31, true, labels));
  TF_RETURN_IF_ERROR(ExpectEqual(ctx, "rows of labels", labels->rows, active->own.rows));
  TF_RETURN_IF_ERROR(ExpectVector(ctx, 7, "length of row_adjustment", active->own.rows));
  TF_RETURN_IF_ERROR(ExpectVector(ctx, 8, "length of shared_adjustment", active->shared.count));
  active->row_adjustment = ctx->input(7).flat<float>().data();
  active->shared_adjustment = ctx->input(8).flat<float>().data();
  return absl::OkStatus();
}

// The error of a row with a label that is not active; OK if there is none.
absl::Status LostLabel(int64_t row) {
  if (row < 0) return absl::OkStatus();
  return absl::InvalidArgumentError("row " + std::to_string(row) +
                                    " has a label that is not in its active set; a sampler must "
                                    "include all labels");
}

// A loss of active sets with its gradient by their logits.
class ActiveLossOp : public OpKernel {
 public:
  using OpKernel::OpKernel;

  void Compute(OpKernelContext* ctx) override {
    ActiveSets active;
    CsrView labels;
    OP_REQUIRES_OK(ctx, SoftmaxInput(ctx, &active, &labels));
    Tensor *loss, *gradient, *shared_gradient;
    OP_REQUIRES_OK(ctx, Allocate(ctx, 0, {labels.rows}, &loss));
    OP_REQUIRES_OK(ctx, Allocate(ctx, 1, {active.own.size()}, &gradient));
    OP_REQUIRES_OK(ctx, Allocate(ctx, 2, {labels.rows, active.shared.count}, &shared_gradient));
    OP_REQUIRES_OK(
        ctx, Work(ctx, active, labels, loss->flat<float>().data(), gradient->flat<float>().data(),
                  shared_gradient->flat<float>().data()));
  }

  virtual absl::Status Work(OpKernelContext* ctx, const ActiveSets& active, const CsrView& labels,
                            float* loss, float* gradient, float* shared_gradient) = 0;
};

class SoftmaxCrossentropyOp : public ActiveLossOp {
 public:
  using ActiveLossOp::ActiveLossOp;

  absl::Status Work(OpKernelContext* ctx, const ActiveSets& active, const CsrView& labels,
                    float* loss, float* gradient, float* shared_gradient) override {
    return LostLabel(
        SoftmaxCrossentropy(active, labels, loss, gradient, shared_gradient, PoolOf(ctx)));
  }
};

class BinaryCrossentropyOp : public ActiveLossOp {
 public:
  using ActiveLossOp::ActiveLossOp;

  absl::Status Work(OpKernelContext* ctx, const ActiveSets& active, const CsrView& labels,
                    float* loss, float* gradient, float* shared_gradient) override {
    TF_RETURN_IF_ERROR(ExpectVector(ctx, 9, "length of own_adjustment", active.own.size()));
    return LostLabel(BinaryCrossentropy(active, ctx->input(9).flat<float>().data(), labels, loss,
                                        gradient, shared_gradient, PoolOf(ctx)));
  }
};

class SoftmaxPartsOp : public OpKernel {
 public:
  using OpKernel::OpKernel;

  void Compute(OpKernelContext* ctx) override {
    ActiveSets active;
    CsrView labels;
    OP_REQUIRES_OK(ctx, SoftmaxInput(ctx, &active, &labels));
    Tensor *top, *log_sum, *label_sum;
    OP_REQUIRES_OK(ctx, Allocate(ctx, 0, {labels.rows}, &top));
    OP_REQUIRES_OK(ctx, Allocate(ctx, 1, {labels.rows}, &log_sum));
    OP_REQUIRES_OK(ctx, Allocate(ctx, 2, {labels.rows}, &label_sum));
    const SoftmaxParts parts = {top->flat<float>().data(), log_sum->flat<float>().data(),
                                label_sum->flat<float>().data()};
    OP_REQUIRES_OK(ctx, LostLabel(PartsOfSoftmax(active, labels, parts, PoolOf(ctx))));
  }
};

class SoftmaxGradientOp : public OpKernel {
 public:
  using OpKernel::OpKernel;

  void Compute(OpKernelContext* ctx) override {
    ActiveSets active;
    CsrView labels;
    SoftmaxTotals totals;
    OP_REQUIRES_OK(ctx, SoftmaxInput(ctx, &active, &labels));
    OP_REQUIRES_OK(ctx, TotalsInput(ctx, 9, labels.rows, &totals));
    Tensor *gradient, *shared_gradient;
    OP_REQUIRES_OK(ctx, Allocate(ctx, 0, {active.own.size()}, &gradient));
    OP_REQUIRES_OK(ctx, Allocate(ctx, 1, {labels.rows, active.shared.count}, &shared_gradient));
    OP_REQUIRES_OK(
        ctx, LostLabel(GradientOfSoftmax(active, labels, totals, gradient->flat<float>().data(),
                                         shared_gradient->flat<float>().data(), PoolOf(ctx))));
  }
};

class ScaleRowsOp : public OpKernel {
 public:
  using OpKernel::OpKernel;

  void Compute(OpKernelContext* ctx) override {
    for (int i : {0, 1, 3}) OP_REQUIRES_OK(ctx, ExpectRank(ctx, i, 1));
    OP_REQUIRES_OK(ctx, ExpectRank(ctx, 2, 2));
    const Tensor& splits = ctx->input(1);
    const int64_t size = ctx->input(0).NumElements(), rows = ctx->input(3).NumElements();
    const int64_t shared = ctx->input(2).dim_size(1);
    OP_REQUIRES_OK(ctx, ExpectEqual(ctx, "rows of the shared neurons' values",
                                    ctx->input(2).dim_size(0), rows));
    OP_REQUIRES_OK(ctx, ExpectEqual(ctx, "length of row_splits", splits.NumElements(), rows + 1));
    const CsrView active = {rows, splits.flat<int64_t>().data(), nullptr};
    OP_REQUIRES_OK(ctx, Invalid(ctx, CheckSplits(active.splits, rows, size)));
    Tensor *out, *shared_out;
    // In place, unless somebody else still needs the values.
    OP_REQUIRES_OK(ctx, ctx->forward_input_or_allocate_output({0}, 0, ctx->input(0).shape(), &out));
    OP_REQUIRES_OK(
        ctx, ctx->forward_input_or_allocate_output({2}, 1, ctx->input(2).shape(), &shared_out));
    ScaleRows(active, shared, ctx->input(0).flat<float>().data(),
              ctx->input(2).flat<float>().data(), ctx->input(3).flat<float>().data(),
              out->flat<float>().data(), shared_out->flat<float>().data(), PoolOf(ctx));
  }
};

class ActiveTopKOp : public OpKernel {
 public:
  explicit ActiveTopKOp(OpKernelConstruction* ctx) : OpKernel(ctx) {
    OP_REQUIRES_OK(ctx, GetCount(ctx, "k", &k_));
  }

  void Compute(OpKernelContext* ctx) override {
    ActiveSets active;
    OP_REQUIRES_OK(ctx, ActiveSetsInput(ctx, &active));
    Tensor *ids, *scores;
    OP_REQUIRES_OK(ctx, Allocate(ctx, 0, {active.own.rows, k_}, &ids));
    OP_REQUIRES_OK(ctx, Allocate(ctx, 1, {active.own.rows, k_}, &scores));
    ActiveTopK(active, k_, ids->flat<int32_t>().data(), scores->flat<float>().data(), PoolOf(ctx));
  }

 private:
  int64_t k_;
};

// What the next two share: values of active sets, and whether zeros among them stay.
class SparseOutputOp : public OpKernel {
 public:
  explicit SparseOutputOp(OpKernelConstruction* ctx) : OpKernel(ctx) {
    OP_REQUIRES_OK(ctx, ctx->GetAttr("keep_zeros", &keep_zeros_));
  }

 protected:
  bool keep_zeros_;
};

class SparseFromActiveOp : public SparseOutputOp {
 public:
  using SparseOutputOp::SparseOutputOp;

  void Compute(OpKernelContext* ctx) override {
    ActiveSets active;
    OP_REQUIRES_OK(ctx, ActiveSetsInput(ctx, &active));
    const SparseOutput output(active, keep_zeros_, PoolOf(ctx));
    Tensor *indices, *values;
    OP_REQUIRES_OK(ctx, Allocate(ctx, 0, {output.size(), 2}, &indices));
    OP_REQUIRES_OK(ctx, Allocate(ctx, 1, {output.size()}, &values));
    output.Write(indices->flat<int64_t>().data(), values->flat<float>().data(), PoolOf(ctx));
  }
};

class ActiveFromSparseOp : public SparseOutputOp {
 public:
  using SparseOutputOp::SparseOutputOp;

  void Compute(OpKernelContext* ctx) override {
    ActiveSets active;
    OP_REQUIRES_OK(ctx, ActiveSetsInput(ctx, &active));
    const SparseOutput output(active, keep_zeros_, PoolOf(ctx));
    OP_REQUIRES_OK(ctx, ExpectVector(ctx, 5, "length of entries", output.size()));
    Tensor *own, *shared;
    OP_REQUIRES_OK(ctx, Allocate(ctx, 0, {active.own.size()}, &own));
    OP_REQUIRES_OK(ctx, Allocate(ctx, 1, {active.own.rows, active.shared.count}, &shared));
    output.Spread(ctx->input(5).flat<float>().data(), own->flat<float>().data(),
                  shared->flat<float>().data(), PoolOf(ctx));
  }
};

REGISTER_KERNEL_BUILDER(Name("DslideSparseFromActive").Device(DEVICE_CPU), SparseFromActiveOp);
REGISTER_KERNEL_BUILDER(Name("DslideActiveFromSparse").Device(DEVICE_CPU), ActiveFromSparseOp);
REGISTER_KERNEL_BUILDER(Name("DslideSoftmaxCrossentropy").Device(DEVICE_CPU),
                        SoftmaxCrossentropyOp);
REGISTER_KERNEL_BUILDER(Name("DslideBinaryCrossentropy").Device(DEVICE_CPU), BinaryCrossentropyOp);
REGISTER_KERNEL_BUILDER(Name("DslideSoftmaxParts").Device(DEVICE_CPU), SoftmaxPartsOp);
REGISTER_KERNEL_BUILDER(Name("DslideSoftmaxGradient").Device(DEVICE_CPU), SoftmaxGradientOp);
REGISTER_KERNEL_BUILDER(Name("DslideScaleRows").Device(DEVICE_CPU), ScaleRowsOp);
REGISTER_KERNEL_BUILDER(Name("DslideActiveTopK").Device(DEVICE_CPU), ActiveTopKOp);

}  // namespace
}  // namespace dslide
