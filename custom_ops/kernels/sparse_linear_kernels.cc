#include <limits>

#include "custom_ops/core/sparse_linear.h"
#include "custom_ops/kernels/glue.h"

namespace dslide {
namespace {

using tensorflow::DEVICE_CPU;

// A number that an attribute gives and that must not be negative.
absl::Status GetSize(OpKernelConstruction* ctx, const char* name, int64_t* value) {
  TF_RETURN_IF_ERROR(ctx->GetAttr(name, value));
  if (*value >= 0 && *value <= std::numeric_limits<int32_t>::max()) return absl::OkStatus();
  return absl::InvalidArgumentError(std::string(name) + " must be in [0, 2147483647]; received " +
                                    std::to_string(*value));
}

class CooccurrencesOp : public OpKernel {
 public:
  explicit CooccurrencesOp(OpKernelConstruction* ctx) : OpKernel(ctx) {
    OP_REQUIRES_OK(ctx, GetCount(ctx, "features", &features_));
    OP_REQUIRES_OK(ctx, GetCount(ctx, "units", &units_));
    OP_REQUIRES_OK(ctx, GetCount(ctx, "max_weights_per_feature", &max_per_feature_));
    OP_REQUIRES_OK(ctx, ctx->GetAttr("smoothing", &smoothing_));
    OP_REQUIRES(ctx, smoothing_ >= 0,
                absl::InvalidArgumentError("smoothing must not be negative; received " +
                                           std::to_string(smoothing_)));
  }

  void Compute(OpKernelContext* ctx) override {
    CsrView features, labels;
    OP_REQUIRES_OK(ctx, CsrInput(ctx, 0, features_, true, &features));
    OP_REQUIRES_OK(ctx, CsrInput(ctx, 2, units_, true, &labels));
    OP_REQUIRES_OK(ctx, ExpectEqual(ctx, "rows of labels", labels.rows, features.rows));
    const Cooccurrences found = CountCooccurrences(features, features_, labels, units_,
                                                   max_per_feature_, smoothing_, PoolOf(ctx));
    OP_REQUIRES(
        ctx, found.together.size() <= std::numeric_limits<int32_t>::max(),
        Invalid(ctx, "at most 2147483647 weights fit a layer; these data have " +
                         std::to_string(found.together.size()) + ": allow fewer a feature"));
    OP_REQUIRES_OK(ctx, SetCsr(ctx, found.neurons));
    OP_REQUIRES_OK(ctx, SetVector(ctx, 2, found.together));
  }

 private:
  int64_t features_, units_, max_per_feature_;
  float smoothing_;
};

// A batch and a layer's sparse kernel, six inputs from the op's first on: the features' values,
// row_splits and ids, the splits and neurons of the weights, the weights, and perhaps a bias.
class SparseLinearInput {
 public:
  static constexpr int kInputs = 6;  // without the bias

  // Weights and bias are variables, locked for reading while this object lives.
  absl::Status Lock(OpKernelContext* ctx, int bias_count, int64_t units) {
    std::vector<int> variables = {kInputs - 1};
    if (bias_count > 0) variables.push_back(kInputs);
    TF_RETURN_IF_ERROR(variables_.Lock(ctx, variables, Variables::Access::kRead));
    return Read(ctx, {variables_.data(0), variables_.shape(0).num_elements()},
                bias_count > 0 ? Vector{variables_.data(1), variables_.shape(1).num_elements()}
                               : Vector{nullptr, units},
                units);
  }

  // Weights and bias are tensors.
  absl::Status Take(OpKernelContext* ctx, int bias_count, int64_t units) {
    TF_RETURN_IF_ERROR(ExpectRank(ctx, kInputs - 1, 1));
    Vector bias = {nullptr, units};
    if (bias_count > 0) {
      TF_RETURN_IF_ERROR(ExpectRank(ctx, kInputs, 1));
      bias = Of(ctx->input(kInputs));
    }
    return Read(ctx, Of(ctx->input(kInputs - 1)), bias, units);
  }

  // The error of a row with unsound weights; OK if there is none.
  static absl::Status Sound(OpKernelContext* ctx, int64_t bad_row) {
    if (bad_row < 0) return absl::OkStatus();
    return Invalid(ctx, "row " + std::to_string(bad_row) +
                            " has a feature whose weights belong to no neuron: the variables "
                            "`splits` or `neurons` of the layer were overwritten");
  }

  SparseRows x;
  SparseKernel kernel;

 private:
  struct Vector {
    const float* data;
    int64_t size;
  };

  static Vector Of(const Tensor& tensor) {
    return {tensor.flat<float>().data(), tensor.NumElements()};
  }

  absl::Status Read(OpKernelContext* ctx, const Vector& weights, const Vector& bias,
                    int64_t units) {
    for (int i : {0, 3, 4}) TF_RETURN_IF_ERROR(ExpectRank(ctx, i, 1));
    const int64_t features = ctx->input(3).NumElements() - 1, count = ctx->input(4).NumElements();
    if (features < 0) return Invalid(ctx, "weight_splits must not be empty");
    TF_RETURN_IF_ERROR(CsrInput(ctx, 1, features, true, &x.ids));
    TF_RETURN_IF_ERROR(
        ExpectEqual(ctx, "features' values", ctx->input(0).NumElements(), x.ids.size()));
    TF_RETURN_IF_ERROR(ExpectEqual(ctx, "number of weights", weights.size, count));
    TF_RETURN_IF_ERROR(ExpectEqual(ctx, "size of the bias", bias.size, units));
    x.values = ctx->input(0).flat<float>().data();
    const CsrView neurons = {features, ctx->input(3).flat<int64_t>().data(),
                             ctx->input(4).flat<int32_t>().data()};
    kernel = {neurons, count, weights.data, bias.data, units};
    return absl::OkStatus();
  }

  Variables variables_;
};

// An op over a batch and a layer's sparse kernel.
class SparseLinearOp : public OpKernel {
 public:
  explicit SparseLinearOp(OpKernelConstruction* ctx) : OpKernel(ctx) {
    OP_REQUIRES_OK(ctx, ctx->GetAttr("use_bias", &use_bias_));
    OP_REQUIRES_OK(ctx, GetCount(ctx, "units", &units_));
  }

  void Compute(OpKernelContext* ctx) override {
    SparseLinearInput in;
    OP_REQUIRES_OK(ctx, Input(ctx, &in));
    OP_REQUIRES_OK(ctx, Work(ctx, in));
  }

  virtual absl::Status Input(OpKernelContext* ctx, SparseLinearInput* in) const {
    return in->Lock(ctx, use_bias_, units_);
  }

  virtual absl::Status Work(OpKernelContext* ctx, const SparseLinearInput& in) = 0;

 protected:
  // Labels from the two inputs after the layer's.
  absl::Status Labels(OpKernelContext* ctx, const SparseLinearInput& in, CsrView* labels) const {
    TF_RETURN_IF_ERROR(CsrInput(ctx, SparseLinearInput::kInputs + use_bias_, units_, true, labels));
    return ExpectEqual(ctx, "rows of labels", labels->rows, in.x.ids.rows);
  }

  int use_bias_;
  int64_t units_;
};

class SparseLinearSelectOp : public SparseLinearOp {
 public:
  explicit SparseLinearSelectOp(OpKernelConstruction* ctx) : SparseLinearOp(ctx) {
    OP_REQUIRES_OK(ctx, GetSize(ctx, "count", &count_));
  }

  absl::Status Work(OpKernelContext* ctx, const SparseLinearInput& in) override {
    CsrView labels;
    TF_RETURN_IF_ERROR(Labels(ctx, in, &labels));
    SparseLinearActive found;
    TF_RETURN_IF_ERROR(SparseLinearInput::Sound(
        ctx, SparseLinearSelect(in.x, in.kernel, labels, count_, &found, PoolOf(ctx))));
    if (found.place.size() > std::numeric_limits<int32_t>::max()) {
      return Invalid(ctx, "this batch has too many features; use smaller batches");
    }
    TF_RETURN_IF_ERROR(SetCsr(ctx, found.active));
    TF_RETURN_IF_ERROR(SetVector(ctx, 2, found.logits));
    TF_RETURN_IF_ERROR(SetVector(ctx, 3, found.match_splits));
    TF_RETURN_IF_ERROR(SetVector(ctx, 4, found.position));
    TF_RETURN_IF_ERROR(SetVector(ctx, 5, found.entry));
    return SetVector(ctx, 6, found.place);
  }

 private:
  int64_t count_;
};

class SparseLinearLogitsOp : public SparseLinearOp {
 public:
  using SparseLinearOp::SparseLinearOp;

  absl::Status Input(OpKernelContext* ctx, SparseLinearInput* in) const override {
    return in->Take(ctx, use_bias_, units_);
  }

  absl::Status Work(OpKernelContext* ctx, const SparseLinearInput& in) override {
    Tensor* logits;
    TF_RETURN_IF_ERROR(Allocate(ctx, 0, {in.x.ids.rows, units_}, &logits));
    return SparseLinearInput::Sound(
        ctx, SparseLinearLogits(in.x, in.kernel, logits->flat<float>().data(), PoolOf(ctx)));
  }
};

class SparseLinearTopKOp : public SparseLinearOp {
 public:
  explicit SparseLinearTopKOp(OpKernelConstruction* ctx) : SparseLinearOp(ctx) {
    OP_REQUIRES_OK(ctx, GetCount(ctx, "k", &k_));
    OP_REQUIRES(
        ctx, k_ <= units_,
        absl::InvalidArgumentError("k is " + std::to_string(k_) + " but the layer has only " +
                                   std::to_string(units_) + " units"));
  }

  absl::Status Work(OpKernelContext* ctx, const SparseLinearInput& in) override {
    Tensor *ids, *scores;
    TF_RETURN_IF_ERROR(Allocate(ctx, 0, {in.x.ids.rows, k_}, &ids));
    TF_RETURN_IF_ERROR(Allocate(ctx, 1, {in.x.ids.rows, k_}, &scores));
    return SparseLinearInput::Sound(
        ctx, SparseLinearTopK(in.x, in.kernel, k_, ids->flat<int32_t>().data(),
                              scores->flat<float>().data(), PoolOf(ctx)));
  }

 private:
  int64_t k_;
};

class SparseLinearLossesOp : public SparseLinearOp {
 public:
  using SparseLinearOp::SparseLinearOp;

  absl::Status Work(OpKernelContext* ctx, const SparseLinearInput& in) override {
    CsrView labels;
    TF_RETURN_IF_ERROR(Labels(ctx, in, &labels));
    Tensor *softmax, *binary;
    TF_RETURN_IF_ERROR(Allocate(ctx, 0, {labels.rows}, &softmax));
    TF_RETURN_IF_ERROR(Allocate(ctx, 1, {labels.rows}, &binary));
    return SparseLinearInput::Sound(
        ctx, SparseLinearLosses(in.x, in.kernel, labels, softmax->flat<float>().data(),
                                binary->flat<float>().data(), PoolOf(ctx)));
  }
};

class SparseLinearGradientOp : public OpKernel {
 public:
  explicit SparseLinearGradientOp(OpKernelConstruction* ctx) : OpKernel(ctx) {
    OP_REQUIRES_OK(ctx, GetSize(ctx, "weight_count", &weight_count_));
    OP_REQUIRES_OK(ctx, GetCount(ctx, "units", &units_));
  }

  void Compute(OpKernelContext* ctx) override {
    for (int i : {0, 3}) OP_REQUIRES_OK(ctx, ExpectRank(ctx, i, 1));
    CsrView active, position;
    OP_REQUIRES_OK(ctx, CsrInput(ctx, 1, units_, true, &active));
    OP_REQUIRES_OK(ctx,
                   ExpectEqual(ctx, "active neurons", ctx->input(3).NumElements(), active.size()));
    OP_REQUIRES_OK(ctx, CsrInput(ctx, 4, weight_count_, true, &position));
    OP_REQUIRES_OK(ctx, InRange(ctx, 6, position.size(), ctx->input(0).NumElements()));
    OP_REQUIRES_OK(ctx, InRange(ctx, 7, position.size(), active.size()));
    const Matches matches = {position, ctx->input(6).flat<int32_t>().data(),
                             ctx->input(7).flat<int32_t>().data()};
    const float* upstream = ctx->input(3).flat<float>().data();
    const SparseVector weights = SparseKernelGradient(
        matches, weight_count_, ctx->input(0).flat<float>().data(), upstream, PoolOf(ctx));
    const SparseVector bias = BiasGradient(active, units_, upstream, PoolOf(ctx));
    OP_REQUIRES_OK(ctx, SetVector(ctx, 0, weights.ids));
    OP_REQUIRES_OK(ctx, SetVector(ctx, 1, weights.values));
    OP_REQUIRES_OK(ctx, SetVector(ctx, 2, bias.ids));
    OP_REQUIRES_OK(ctx, SetVector(ctx, 3, bias.values));
  }

 private:
  // Input `index` must hold `count` numbers in [0, limit).
  static absl::Status InRange(OpKernelContext* ctx, int index, int64_t count, int64_t limit) {
    TF_RETURN_IF_ERROR(ExpectVector(ctx, index, "matches", count));
    const auto values = ctx->input(index).flat<int32_t>();
    for (int64_t i = 0; i < count; ++i) {
      if (values(i) >= 0 && values(i) < limit) continue;
      return Invalid(ctx, "match " + std::to_string(i) + " names place " +
                              std::to_string(values(i)) + " outside [0, " + std::to_string(limit) +
                              ")");
    }
    return absl::OkStatus();
  }

  int64_t weight_count_, units_;
};

REGISTER_KERNEL_BUILDER(Name("DslideCooccurrences").Device(DEVICE_CPU), CooccurrencesOp);
REGISTER_KERNEL_BUILDER(Name("DslideSparseLinearSelect").Device(DEVICE_CPU), SparseLinearSelectOp);
REGISTER_KERNEL_BUILDER(Name("DslideSparseLinearLogits").Device(DEVICE_CPU), SparseLinearLogitsOp);
REGISTER_KERNEL_BUILDER(Name("DslideSparseLinearTopK").Device(DEVICE_CPU), SparseLinearTopKOp);
REGISTER_KERNEL_BUILDER(Name("DslideSparseLinearLosses").Device(DEVICE_CPU), SparseLinearLossesOp);
REGISTER_KERNEL_BUILDER(Name("DslideSparseLinearGradient").Device(DEVICE_CPU),
                        SparseLinearGradientOp);

}  // namespace
}  // namespace dslide
