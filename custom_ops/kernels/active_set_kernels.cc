#include "custom_ops/core/active_set.h"
#include "custom_ops/core/random.h"
#include "custom_ops/core/selection.h"
#include "custom_ops/kernels/glue.h"

namespace dslide {
namespace {

using tensorflow::DEVICE_CPU;

constexpr int64_t kMostRows = int64_t{1} << 31;

// The seed of one step of training.
uint64_t StepSeed(OpKernelContext* ctx, int input, int64_t seed) {
  return Mix(seed, ctx->input(input).scalar<int64_t>()());
}

// Codes, bucket_ptr and neuron_ids, the rows' labels, `excluded` and `step`.
class SelectFromTablesOp : public OpKernel {
 public:
  explicit SelectFromTablesOp(OpKernelConstruction* ctx) : OpKernel(ctx) {
    OP_REQUIRES_OK(ctx, GetCount(ctx, "hashed", &hashed_));
    OP_REQUIRES_OK(ctx, GetCount(ctx, "bucket_size", &bucket_size_));
    OP_REQUIRES_OK(ctx, GetCount(ctx, "min_collisions", &min_collisions_));
    OP_REQUIRES_OK(ctx, ctx->GetAttr("from_start", &from_start_));
    OP_REQUIRES_OK(ctx, ctx->GetAttr("seed", &seed_));
    OP_REQUIRES_OK(ctx, ctx->GetAttr("by_code", &by_code_));
  }

  void Compute(OpKernelContext* ctx) override {
    LshQuery query;
    CsrView labels;
    OP_REQUIRES_OK(ctx, Query(ctx, &query));
    OP_REQUIRES_OK(ctx, CsrInput(ctx, 3, query.units, true, &labels));
    OP_REQUIRES_OK(ctx, ExpectEqual(ctx, "rows of labels", labels.rows, ctx->input(0).dim_size(0)));
    bool sound;
    const Csr own = SelectFromTables(query, labels, scratch_, PoolOf(ctx), &sound);
    if (!sound) OP_REQUIRES_OK(ctx, Unsound(ctx, query));
    OP_REQUIRES_OK(ctx, SetCsr(ctx, own));
  }

 private:
  absl::Status Query(OpKernelContext* ctx, LshQuery* query) const {
    for (int i = 0; i < 3; ++i) TF_RETURN_IF_ERROR(ExpectRank(ctx, i, 2));
    TF_RETURN_IF_ERROR(ExpectRank(ctx, 6, 0));
    const Tensor& codes = ctx->input(0);
    const Tensor& ptr = ctx->input(1);
    const Tensor& ids = ctx->input(2);
    const int64_t tables = codes.dim_size(1);
    TF_RETURN_IF_ERROR(ExpectEqual(ctx, "tables in bucket_ptr", ptr.dim_size(0), tables));
    TF_RETURN_IF_ERROR(ExpectEqual(ctx, "tables in neuron_ids", ids.dim_size(0), tables));
    if (tables >= 65535) return Invalid(ctx, "at most 65534 tables");
    *query = {ids.dim_size(1),
              tables,
              ptr.dim_size(1) - 1,
              codes.flat<int32_t>().data(),
              ptr.flat<int32_t>().data(),
              ids.flat<int32_t>().data(),
              hashed_,
              bucket_size_,
              {},
              StepSeed(ctx, 6, seed_),
              from_start_,
              min_collisions_,
              by_code_};
    TF_RETURN_IF_ERROR(IdListInput(ctx, 5, query->units, &query->excluded));
    return Check(ctx, *query, codes.NumElements());
  }

  static absl::Status Unsound(const OpKernelContext* ctx, const LshQuery& query) {
    return Invalid(ctx, "bucket_ptr must rise from 0 to the number of neurons, " +
                            std::to_string(query.units) +
                            ", and neuron_ids name each of them once a table; make them with the "
                            "BuildTables op");
  }

  static absl::Status Check(OpKernelContext* ctx, const LshQuery& query, int64_t codes) {
    for (int64_t i = 0; i < codes; ++i) {
      if (query.codes[i] >= 0 && query.codes[i] < query.buckets) continue;
      return Invalid(ctx, "code " + std::to_string(query.codes[i]) + " is outside [0, " +
                              std::to_string(query.buckets) + ")");
    }
    // The borders between are looked at where a bucket is.
    for (int64_t table = 0; table < query.tables; ++table) {
      const int32_t* border = query.bucket_ptr + table * (query.buckets + 1);
      if (border[0] != 0 || border[query.buckets] != query.units) return Unsound(ctx, query);
    }
    return absl::OkStatus();
  }

  int64_t hashed_, bucket_size_, min_collisions_, seed_;
  bool from_start_, by_code_;
  LshScratch scratch_;
};

class SampleNeuronsOp : public OpKernel {
 public:
  explicit SampleNeuronsOp(OpKernelConstruction* ctx) : OpKernel(ctx) {
    std::string distribution;
    OP_REQUIRES_OK(ctx, GetCount(ctx, "units", &units_));
    OP_REQUIRES_OK(ctx, GetCount(ctx, "count", &count_));
    OP_REQUIRES_OK(ctx, ctx->GetAttr("distribution", &distribution));
    OP_REQUIRES_OK(ctx, ctx->GetAttr("seed", &seed_));
    distribution_ = distribution == "uniform" ? Distribution::kUniform : Distribution::kLogUniform;
  }

  void Compute(OpKernelContext* ctx) override {
    OP_REQUIRES_OK(ctx, ExpectRank(ctx, 0, 0));
    IdList fixed;
    OP_REQUIRES_OK(ctx, IdListInput(ctx, 1, units_, &fixed));
    const SharedNeurons neurons =
        SampleNeurons(units_, count_, fixed, distribution_, StepSeed(ctx, 0, seed_));
    OP_REQUIRES_OK(ctx, SetVector(ctx, 0, neurons.ids));
    OP_REQUIRES_OK(ctx, SetVector(ctx, 1, neurons.drawn));
  }

 private:
  int64_t units_, count_, seed_;
  Distribution distribution_;
};

class LogImportanceWeightsOp : public OpKernel {
 public:
  explicit LogImportanceWeightsOp(OpKernelConstruction* ctx) : OpKernel(ctx) {
    OP_REQUIRES_OK(ctx, GetCount(ctx, "units", &units_));
  }

  void Compute(OpKernelContext* ctx) override {
    CsrView own;
    IdList shared;
    OP_REQUIRES_OK(ctx, CsrInput(ctx, 0, units_, true, &own));
    OP_REQUIRES_OK(ctx, IdListInput(ctx, 2, units_, &shared));
    OP_REQUIRES_OK(ctx, ExpectVector(ctx, 3, "length of drawn", shared.count));
    const auto drawn = ctx->input(3).flat<float>();
    for (int64_t s = 0; s < shared.count; ++s) {
      OP_REQUIRES(ctx, drawn(s) == 0.0f || drawn(s) == 1.0f,
                  absl::InvalidArgumentError("drawn must hold 0 and 1; received " +
                                             std::to_string(drawn(s))));
    }
    OP_REQUIRES_OK(
        ctx,
        SetVector(ctx, 0, LogImportanceWeights(own, shared, drawn.data(), units_, PoolOf(ctx))));
  }

 private:
  int64_t units_;
};

class CanonicalLabelsOp : public OpKernel {
 public:
  explicit CanonicalLabelsOp(OpKernelConstruction* ctx) : OpKernel(ctx) {
    OP_REQUIRES_OK(ctx, GetCount(ctx, "units", &units_));
  }

  void Compute(OpKernelContext* ctx) override {
    for (int i = 0; i < 2; ++i) OP_REQUIRES_OK(ctx, ExpectRank(ctx, i, 1));
    const Tensor& splits = ctx->input(0);
    const Tensor& values = ctx->input(1);
    OP_REQUIRES(ctx, splits.NumElements() > 0,
                absl::InvalidArgumentError("row_splits must not be empty"));
    Csr labels;
    OP_REQUIRES_OK(
        ctx, Invalid(ctx, CanonicalLabels(splits.flat<int64_t>().data(), splits.NumElements() - 1,
                                          values.flat<int64_t>().data(), values.NumElements(),
                                          units_, &labels)));
    OP_REQUIRES_OK(ctx, SetCsr(ctx, labels));
  }

 private:
  int64_t units_;
};

class CsrFromSparseOp : public OpKernel {
 public:
  explicit CsrFromSparseOp(OpKernelConstruction* ctx) : OpKernel(ctx) {
    OP_REQUIRES_OK(ctx, GetCount(ctx, "columns", &columns_));
  }

  void Compute(OpKernelContext* ctx) override {
    OP_REQUIRES_OK(ctx, ExpectRank(ctx, 0, 2));
    OP_REQUIRES_OK(ctx, ExpectRank(ctx, 1, 1));
    OP_REQUIRES_OK(ctx, ExpectRank(ctx, 2, 1));
    OP_REQUIRES_OK(ctx,
                   ExpectEqual(ctx, "rank of the sparse tensor", ctx->input(2).NumElements(), 2));
    OP_REQUIRES_OK(ctx, ExpectEqual(ctx, "columns of indices", ctx->input(0).dim_size(1), 2));
    const int64_t size = ctx->input(0).dim_size(0);
    OP_REQUIRES_OK(ctx, ExpectEqual(ctx, "number of values", ctx->input(1).NumElements(), size));
    const int64_t rows = ctx->input(2).flat<int64_t>()(0);
    Tensor *splits, *ids;
    OP_REQUIRES(
        ctx, rows >= 0 && rows < kMostRows,
        absl::InvalidArgumentError("the number of rows must be in [0, 2147483648); received " +
                                   std::to_string(rows)));
    OP_REQUIRES_OK(ctx, Allocate(ctx, 0, {rows + 1}, &splits));
    OP_REQUIRES_OK(ctx, Allocate(ctx, 1, {size}, &ids));
    OP_REQUIRES_OK(
        ctx, Convert(ctx, rows, size, splits->flat<int64_t>().data(), ids->flat<int32_t>().data()));
  }

 private:
  absl::Status Convert(OpKernelContext* ctx, int64_t rows, int64_t size, int64_t* splits,
                       int32_t* ids) const {
    const auto indices = ctx->input(0).matrix<int64_t>();
    const auto values = ctx->input(1).flat<float>();
    std::fill_n(splits, rows + 1, 0);
    for (int64_t j = 0; j < size; ++j) {
      const int64_t row = indices(j, 0), column = indices(j, 1);
      if (row < 0 || row >= rows) {
        return Invalid(ctx, "an index names row " + std::to_string(row) +
                                ", which is outside [0, " + std::to_string(rows) + ")");
      }
      if (column < 0 || column >= columns_) {
        return Invalid(ctx, "row " + std::to_string(row) + " has feature " +
                                std::to_string(column) + ", which is outside [0, " +
                                std::to_string(columns_) + "), the width of the layer's input");
      }
      if (!(values(j) - values(j) == 0)) {
        return Invalid(ctx, "row " + std::to_string(row) + " has the value " +
                                std::to_string(values(j)) + " for feature " +
                                std::to_string(column) + "; features must be finite");
      }
      if (j > 0 &&
          (row < indices(j - 1, 0) || (row == indices(j - 1, 0) && column < indices(j - 1, 1)))) {
        return Invalid(ctx, "the indices of a sparse tensor must ascend by row and column; entry " +
                                std::to_string(j) + " does not; call tf.sparse.reorder first");
      }
      ++splits[row + 1];
      ids[j] = static_cast<int32_t>(column);
    }
    for (int64_t row = 0; row < rows; ++row) splits[row + 1] += splits[row];
    return absl::OkStatus();
  }

  int64_t columns_;
};

class CscFromCsrOp : public OpKernel {
 public:
  explicit CscFromCsrOp(OpKernelConstruction* ctx) : OpKernel(ctx) {
    OP_REQUIRES_OK(ctx, GetCount(ctx, "units", &units_));
  }

  void Compute(OpKernelContext* ctx) override {
    CsrView active;
    OP_REQUIRES_OK(ctx, CsrInput(ctx, 0, units_, false, &active));
    IdList shared;
    OP_REQUIRES_OK(ctx, IdListInput(ctx, 2, units_, &shared));
    const ParallelFor parallel = PoolOf(ctx);
    const Transpose transpose(active, shared, units_, parallel);
    CscTensors made;
    made.rows = active.rows;
    const auto allocate = [ctx](tensorflow::DataType type, int64_t size, Tensor* tensor) {
      return ctx->allocate_temp(type, TensorShape({size}), tensor);
    };
    using tensorflow::DT_INT32;
    OP_REQUIRES_OK(ctx, allocate(DT_INT32, transpose.count(), &made.neurons));
    OP_REQUIRES_OK(ctx, allocate(tensorflow::DT_INT64, transpose.count() + 1, &made.neuron_splits));
    OP_REQUIRES_OK(ctx, allocate(DT_INT32, active.size(), &made.entry_row));
    OP_REQUIRES_OK(ctx, allocate(DT_INT32, active.size(), &made.entry_index));
    OP_REQUIRES_OK(ctx, allocate(DT_INT32, shared.count, &made.shared_places));
    transpose.Write(made.neurons.flat<int32_t>().data(), made.neuron_splits.flat<int64_t>().data(),
                    made.entry_row.flat<int32_t>().data(), made.entry_index.flat<int32_t>().data(),
                    made.shared_places.flat<int32_t>().data(), parallel);
    Tensor* view;
    OP_REQUIRES_OK(ctx, Allocate(ctx, 0, {}, &view));
    view->scalar<tensorflow::Variant>()() =
        CscVariant{std::make_shared<const CscTensors>(std::move(made))};
  }

 private:
  int64_t units_;
};

// The tensors of a view, without a copy.
class CscTensorsOp : public OpKernel {
 public:
  using OpKernel::OpKernel;

  void Compute(OpKernelContext* ctx) override {
    const CscTensors* tensors;
    OP_REQUIRES_OK(ctx, CscTensorsInput(ctx, 0, &tensors));
    ctx->set_output(0, tensors->neurons);
    ctx->set_output(1, tensors->neuron_splits);
    ctx->set_output(2, tensors->entry_row);
    ctx->set_output(3, tensors->entry_index);
    ctx->set_output(4, tensors->shared_places);
  }
};

REGISTER_KERNEL_BUILDER(Name("DslideSelectFromTables").Device(DEVICE_CPU), SelectFromTablesOp);
REGISTER_KERNEL_BUILDER(Name("DslideSampleNeurons").Device(DEVICE_CPU), SampleNeuronsOp);
REGISTER_KERNEL_BUILDER(Name("DslideLogImportanceWeights").Device(DEVICE_CPU),
                        LogImportanceWeightsOp);
REGISTER_KERNEL_BUILDER(Name("DslideCanonicalLabels").Device(DEVICE_CPU), CanonicalLabelsOp);
REGISTER_KERNEL_BUILDER(Name("DslideCsrFromSparse").Device(DEVICE_CPU), CsrFromSparseOp);
REGISTER_KERNEL_BUILDER(Name("DslideCscFromCsr").Device(DEVICE_CPU), CscFromCsrOp);
REGISTER_KERNEL_BUILDER(Name("DslideCscTensors").Device(DEVICE_CPU), CscTensorsOp);

}  // namespace
}  // namespace dslide
