#include "custom_ops/core/softmax.h"
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
    OP_REQUIRES_OK(ctx, layer.Lock(ctx, 5, use_bias_));
    if (check_input_) {
      OP_REQUIRES_OK(ctx, ExpectFinite(ctx, ctx->input(0), "the layer's input"));
    }
    const DenseScan scan = layer.scan();
    const int64_t entries = ctx->input(4).NumElements();
    NeuronView view;
    OP_REQUIRES_OK(ctx, NeuronViewInput(ctx, 1, scan.rows, entries, scan.units, &view));
    OP_REQUIRES(ctx, EntriesAreDistinct(view.entry_index, entries),
                absl::InvalidArgumentError("entry_index must name every entry once"));
    Tensor* logits;
    OP_REQUIRES_OK(ctx, Allocate(ctx, 0, {entries}, &logits));
    ActiveLogits(view, scan.x, scan.w, scan.bias, scan.d, logits->flat<float>().data(),
                 PoolOf(ctx));
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

class CsrMatMulByNeuronOp : public OpKernel {
 public:
  using OpKernel::OpKernel;

  void Compute(OpKernelContext* ctx) override {
    Variables kernel;
    OP_REQUIRES_OK(ctx, kernel.Lock(ctx, {6}, Variables::Access::kRead));
    OP_REQUIRES_OK(ctx, ExpectMatrix(ctx, kernel));
    OP_REQUIRES_OK(ctx, ExpectRank(ctx, 0, 1));
    OP_REQUIRES_OK(ctx, ExpectRank(ctx, 5, 2));
    const int64_t rows = ctx->input(5).dim_size(0), d = kernel.shape(0).dim_size(1);
    OP_REQUIRES_OK(ctx, ExpectEqual(ctx, "columns of like", ctx->input(5).dim_size(1), d));
    NeuronView view;
    OP_REQUIRES_OK(ctx, NeuronViewInput(ctx, 1, rows, ctx->input(0).NumElements(),
                                        kernel.shape(0).dim_size(0), &view));
    Tensor* y;
    OP_REQUIRES_OK(ctx, Allocate(ctx, 0, {rows, d}, &y));
    CsrMatMulByNeuron(view, rows, ctx->input(0).flat<float>().data(), kernel.data(0), d,
                      y->flat<float>().data(), PoolOf(ctx));
  }
};

class RowGradientOp : public OpKernel {
 public:
  using OpKernel::OpKernel;

  void Compute(OpKernelContext* ctx) override {
    OP_REQUIRES_OK(ctx, ExpectRank(ctx, 0, 2));
    OP_REQUIRES_OK(ctx, ExpectRank(ctx, 1, 1));
    const Tensor& x = ctx->input(0);
    NeuronView view;
    OP_REQUIRES_OK(ctx, NeuronViewInput(ctx, 2, x.dim_size(0), ctx->input(1).NumElements(),
                                        std::numeric_limits<int32_t>::max(), &view));
    Tensor* gradient;
    OP_REQUIRES_OK(ctx, Allocate(ctx, 0, {view.count, x.dim_size(1)}, &gradient));
    RowGradient(view, x.flat<float>().data(), ctx->input(1).flat<float>().data(), x.dim_size(1),
                gradient->flat<float>().data(), PoolOf(ctx));
  }
};

class EntrySumsOp : public OpKernel {
 public:
  using OpKernel::OpKernel;

  void Compute(OpKernelContext* ctx) override {
    for (int i = 0; i < 3; ++i) OP_REQUIRES_OK(ctx, ExpectRank(ctx, i, 1));
    const auto coef = ctx->input(0).flat<float>();
    const auto index = ctx->input(2).flat<int32_t>();
    const int64_t count = ctx->input(1).NumElements() - 1;
    OP_REQUIRES(ctx, count >= 0, absl::InvalidArgumentError("neuron_splits must not be empty"));
    OP_REQUIRES_OK(ctx, ExpectEqual(ctx, "length of entry_index", index.size(), coef.size()));
    const int64_t* splits = ctx->input(1).flat<int64_t>().data();
    // Places in the list of entries serve as ids here: only their range is to be checked.
    const std::vector<int32_t> places = Places(count);
    const std::vector<int32_t> first_row(coef.size(), 0);
    const NeuronView view = {count, places.data(), splits, first_row.data(), index.data()};
    OP_REQUIRES_OK(ctx, Invalid(ctx, CheckNeuronView(view, 1, coef.size(), count)));
    Tensor* sums;
    OP_REQUIRES_OK(ctx, Allocate(ctx, 0, {count}, &sums));
    EntrySums(splits, count, index.data(), coef.data(), sums->flat<float>().data(), PoolOf(ctx));
  }

 private:
  static std::vector<int32_t> Places(int64_t count) {
    std::vector<int32_t> places(count);
    for (int64_t u = 0; u < count; ++u) places[u] = static_cast<int32_t>(u);
    return places;
  }
};

class SoftmaxCrossentropyOp : public OpKernel {
 public:
  using OpKernel::OpKernel;

  void Compute(OpKernelContext* ctx) override {
    CsrView active, labels;
    OP_REQUIRES_OK(ctx, CsrInput(ctx, 1, int64_t{1} << 31, true, &active));
    OP_REQUIRES_OK(ctx, CsrInput(ctx, 3, int64_t{1} << 31, true, &labels));
    OP_REQUIRES_OK(ctx, ExpectVector(ctx, 0, "length of logits", active.size()));
    OP_REQUIRES_OK(ctx, ExpectEqual(ctx, "rows of labels", labels.rows, active.rows));
    Tensor *loss, *gradient;
    OP_REQUIRES_OK(ctx, Allocate(ctx, 0, {active.rows}, &loss));
    OP_REQUIRES_OK(ctx, Allocate(ctx, 1, {active.size()}, &gradient));
    const int64_t bad = SoftmaxCrossentropy(active, ctx->input(0).flat<float>().data(), labels,
                                            loss->flat<float>().data(),
                                            gradient->flat<float>().data(), PoolOf(ctx));
    OP_REQUIRES(ctx, bad < 0,
                absl::InvalidArgumentError("row " + std::to_string(bad) +
                                           " has a label that is not in its active set; a "
                                           "sampler must include all labels"));
  }
};

class ScaleRowsOp : public OpKernel {
 public:
  using OpKernel::OpKernel;

  void Compute(OpKernelContext* ctx) override {
    for (int i = 0; i < 3; ++i) OP_REQUIRES_OK(ctx, ExpectRank(ctx, i, 1));
    const Tensor& splits = ctx->input(1);
    const int64_t size = ctx->input(0).NumElements(), rows = ctx->input(2).NumElements();
    OP_REQUIRES_OK(ctx, ExpectEqual(ctx, "length of row_splits", splits.NumElements(), rows + 1));
    const CsrView active = {rows, splits.flat<int64_t>().data(), nullptr};
    // No ids to look at: only the splits are checked.
    const std::vector<int32_t> no_ids(size, 0);
    OP_REQUIRES_OK(ctx, Invalid(ctx, CheckCsr(active.splits, rows, no_ids.data(), size, 1, false)));
    Tensor* out;
    OP_REQUIRES_OK(ctx, Allocate(ctx, 0, {size}, &out));
    ScaleRows(active, ctx->input(0).flat<float>().data(), ctx->input(2).flat<float>().data(),
              out->flat<float>().data(), PoolOf(ctx));
  }
};

class CsrTopKOp : public OpKernel {
 public:
  explicit CsrTopKOp(OpKernelConstruction* ctx) : OpKernel(ctx) {
    OP_REQUIRES_OK(ctx, GetCount(ctx, "k", &k_));
  }

  void Compute(OpKernelContext* ctx) override {
    CsrView active;
    OP_REQUIRES_OK(ctx, CsrInput(ctx, 1, int64_t{1} << 31, true, &active));
    OP_REQUIRES_OK(ctx, ExpectVector(ctx, 0, "length of logits", active.size()));
    Tensor *ids, *scores;
    OP_REQUIRES_OK(ctx, Allocate(ctx, 0, {active.rows, k_}, &ids));
    OP_REQUIRES_OK(ctx, Allocate(ctx, 1, {active.rows, k_}, &scores));
    CsrTopK(active, ctx->input(0).flat<float>().data(), k_, ids->flat<int32_t>().data(),
            scores->flat<float>().data(), PoolOf(ctx));
  }

 private:
  int64_t k_;
};

REGISTER_KERNEL_BUILDER(Name("DslideActiveLogits").Device(DEVICE_CPU), ActiveLogitsOp);
REGISTER_KERNEL_BUILDER(Name("DslideCsrMatMul").Device(DEVICE_CPU), CsrMatMulOp);
REGISTER_KERNEL_BUILDER(Name("DslideCsrMatMulByNeuron").Device(DEVICE_CPU), CsrMatMulByNeuronOp);
REGISTER_KERNEL_BUILDER(Name("DslideRowGradient").Device(DEVICE_CPU), RowGradientOp);
REGISTER_KERNEL_BUILDER(Name("DslideEntrySums").Device(DEVICE_CPU), EntrySumsOp);
REGISTER_KERNEL_BUILDER(Name("DslideSoftmaxCrossentropy").Device(DEVICE_CPU),
                        SoftmaxCrossentropyOp);
REGISTER_KERNEL_BUILDER(Name("DslideScaleRows").Device(DEVICE_CPU), ScaleRowsOp);
REGISTER_KERNEL_BUILDER(Name("DslideCsrTopK").Device(DEVICE_CPU), CsrTopKOp);

}  // namespace
}  // namespace dslide
