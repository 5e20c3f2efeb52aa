#include "custom_ops/core/dense_scan.h"
#include "custom_ops/kernels/glue.h"

namespace dslide {
namespace {

using tensorflow::DEVICE_CPU;

// An op over the batch x (input 0), a kernel and perhaps a bias, all neurons of them.
class ScanOp : public OpKernel {
 public:
  ScanOp(OpKernelConstruction* ctx, int kernel_input) : OpKernel(ctx), kernel_input_(kernel_input) {
    OP_REQUIRES_OK(ctx, ctx->GetAttr("use_bias", &use_bias_));
  }

  void Compute(OpKernelContext* ctx) override {
    LayerInput layer;
    OP_REQUIRES_OK(ctx, layer.Lock(ctx, kernel_input_, use_bias_));
    OP_REQUIRES_OK(ctx, ExpectFinite(ctx, ctx->input(0), "the layer's input"));
    OP_REQUIRES_OK(ctx, Scan(ctx, layer.scan()));
  }

  virtual absl::Status Scan(OpKernelContext* ctx, const DenseScan& scan) = 0;

 private:
  int kernel_input_, use_bias_;
};

// Labels from inputs 1 and 2.
absl::Status Labels(OpKernelContext* ctx, const DenseScan& scan, CsrView* labels) {
  TF_RETURN_IF_ERROR(CsrInput(ctx, 1, scan.units, true, labels));
  return ExpectEqual(ctx, "rows of labels", labels->rows, scan.rows);
}

class TopKOp : public ScanOp {
 public:
  explicit TopKOp(OpKernelConstruction* ctx) : ScanOp(ctx, 1) {
    OP_REQUIRES_OK(ctx, GetCount(ctx, "k", &k_));
  }

  absl::Status Scan(OpKernelContext* ctx, const DenseScan& scan) override {
    if (k_ > scan.units) {
      return Invalid(ctx, "k is " + std::to_string(k_) + " but the layer has only " +
                              std::to_string(scan.units) + " units");
    }
    Tensor *ids, *scores;
    TF_RETURN_IF_ERROR(Allocate(ctx, 0, {scan.rows, k_}, &ids));
    TF_RETURN_IF_ERROR(Allocate(ctx, 1, {scan.rows, k_}, &scores));
    TopK(scan, k_, ids->flat<int32_t>().data(), scores->flat<float>().data(), PoolOf(ctx));
    return absl::OkStatus();
  }

 private:
  int64_t k_;
};

class FullCrossentropyOp : public ScanOp {
 public:
  explicit FullCrossentropyOp(OpKernelConstruction* ctx) : ScanOp(ctx, 3) {}

  absl::Status Scan(OpKernelContext* ctx, const DenseScan& scan) override {
    CsrView labels;
    TF_RETURN_IF_ERROR(Labels(ctx, scan, &labels));
    Tensor *loss, *top, *log_sum, *label_sum;
    TF_RETURN_IF_ERROR(Allocate(ctx, 0, {scan.rows}, &loss));
    TF_RETURN_IF_ERROR(Allocate(ctx, 1, {scan.rows}, &top));
    TF_RETURN_IF_ERROR(Allocate(ctx, 2, {scan.rows}, &log_sum));
    TF_RETURN_IF_ERROR(Allocate(ctx, 3, {scan.rows}, &label_sum));
    const SoftmaxParts parts = {top->flat<float>().data(), log_sum->flat<float>().data(),
                                label_sum->flat<float>().data()};
    FullCrossentropy(scan, labels, parts, loss->flat<float>().data(), PoolOf(ctx));
    return absl::OkStatus();
  }
};

class CrossentropyOfPartsOp : public ScanOp {
 public:
  explicit CrossentropyOfPartsOp(OpKernelConstruction* ctx) : ScanOp(ctx, 7) {}

  absl::Status Scan(OpKernelContext* ctx, const DenseScan& scan) override {
    CsrView labels;
    TF_RETURN_IF_ERROR(Labels(ctx, scan, &labels));
    for (int i : {3, 4, 5, 6}) TF_RETURN_IF_ERROR(ExpectVector(ctx, i, "rows", scan.rows));
    ctx->set_output(0, ctx->input(3));
    return absl::OkStatus();
  }
};

class FullCrossentropyGradientOp : public ScanOp {
 public:
  explicit FullCrossentropyGradientOp(OpKernelConstruction* ctx) : ScanOp(ctx, 7) {}

  absl::Status Scan(OpKernelContext* ctx, const DenseScan& scan) override {
    CsrView labels;
    TF_RETURN_IF_ERROR(Labels(ctx, scan, &labels));
    SoftmaxTotals totals;
    TF_RETURN_IF_ERROR(TotalsInput(ctx, 3, scan.rows, &totals));
    Tensor *x_gradient, *w_gradient, *bias_gradient = nullptr;
    TF_RETURN_IF_ERROR(Allocate(ctx, 0, {scan.rows, scan.d}, &x_gradient));
    TF_RETURN_IF_ERROR(Allocate(ctx, 1, {scan.units, scan.d}, &w_gradient));
    if (num_outputs() > 2) {  // the bias of a layer without units is a null pointer
      TF_RETURN_IF_ERROR(Allocate(ctx, 2, {scan.units}, &bias_gradient));
    }
    FullCrossentropyGradient(
        scan, labels, totals, x_gradient->flat<float>().data(), w_gradient->flat<float>().data(),
        bias_gradient ? bias_gradient->flat<float>().data() : nullptr, PoolOf(ctx));
    return absl::OkStatus();
  }
};

REGISTER_KERNEL_BUILDER(Name("DslideTopK").Device(DEVICE_CPU), TopKOp);
REGISTER_KERNEL_BUILDER(Name("DslideFullCrossentropy").Device(DEVICE_CPU), FullCrossentropyOp);
REGISTER_KERNEL_BUILDER(Name("DslideCrossentropyOfParts").Device(DEVICE_CPU),
                        CrossentropyOfPartsOp);
REGISTER_KERNEL_BUILDER(Name("DslideFullCrossentropyGradient").Device(DEVICE_CPU),
                        FullCrossentropyGradientOp);

}  // namespace
}  // namespace dslide
