// The ops' names, types and shapes. What they compute is in custom_ops/kernels.

#include "tensorflow/core/framework/common_shape_fns.h"
#include "tensorflow/core/framework/op.h"
#include "tensorflow/core/framework/shape_inference.h"

namespace tensorflow {
namespace {

using shape_inference::DimensionHandle;
using shape_inference::InferenceContext;
using shape_inference::ShapeHandle;

// Checks that inputs first, first + 1, ... have the ranks given; a rank of -1 is free.
absl::Status CheckRanks(InferenceContext* c, int first, std::initializer_list<int> ranks) {
  ShapeHandle unused;
  for (int rank : ranks) {
    if (rank >= 0) TF_RETURN_IF_ERROR(c->WithRank(c->input(first), rank, &unused));
    ++first;
  }
  return absl::OkStatus();
}

// One fewer than the length of the row_splits in an input.
DimensionHandle RowsOf(InferenceContext* c, int input) {
  const DimensionHandle length = c->Dim(c->input(input), 0);
  if (!c->ValueKnown(length) || c->Value(length) < 1) return c->UnknownDim();
  return c->MakeDim(c->Value(length) - 1);
}

ShapeHandle Like(InferenceContext* c, int input) { return c->input(input); }

// The shape of the variable behind a resource input, if the graph knows it.
ShapeHandle VariableShape(InferenceContext* c, int input) {
  const auto* handles = c->input_handle_shapes_and_types(input);
  if (handles == nullptr || handles->empty()) return c->UnknownShape();
  return (*handles)[0].shape;
}

DimensionHandle VariableDim(InferenceContext* c, int input, int dim, int rank) {
  ShapeHandle shape;
  if (!c->WithRank(VariableShape(c, input), rank, &shape).ok()) return c->UnknownDim();
  return c->Dim(shape, dim);
}

}  // namespace

REGISTER_OP("DslideSimHashParameters")
    .Input("generation: int64")
    .Attr("seed: int")
    .Attr("dim: int >= 1")
    .Attr("projections: int >= 1")
    .Attr("nonzeros: int >= 1")
    .Output("index: int32")
    .Output("value: float")
    .SetShapeFn([](InferenceContext* c) {
      TF_RETURN_IF_ERROR(CheckRanks(c, 0, {0}));
      int64_t projections, nonzeros;
      TF_RETURN_IF_ERROR(c->GetAttr("projections", &projections));
      TF_RETURN_IF_ERROR(c->GetAttr("nonzeros", &nonzeros));
      c->set_output(0, c->Matrix(projections, nonzeros));
      c->set_output(1, c->Matrix(projections, nonzeros));
      return absl::OkStatus();
    });

REGISTER_OP("DslideSimHashCodes")
    .Input("x: float")
    .Input("index: int32")
    .Input("value: float")
    .Attr("bits: int >= 1")
    .Attr("tables: int >= 1")
    .Output("codes: int32")
    .SetShapeFn([](InferenceContext* c) {
      TF_RETURN_IF_ERROR(CheckRanks(c, 0, {2, 2, 2}));
      int64_t tables;
      TF_RETURN_IF_ERROR(c->GetAttr("tables", &tables));
      c->set_output(0, c->Matrix(c->Dim(c->input(0), 0), tables));
      return absl::OkStatus();
    });

REGISTER_OP("DslideProjectionCodes")
    .Input("x: float")
    .Input("projections: float")
    .Attr("bits: int >= 1")
    .Attr("tables: int >= 1")
    .Output("codes: int32")
    .SetShapeFn([](InferenceContext* c) {
      TF_RETURN_IF_ERROR(CheckRanks(c, 0, {2, 2}));
      int64_t tables;
      TF_RETURN_IF_ERROR(c->GetAttr("tables", &tables));
      c->set_output(0, c->Matrix(c->Dim(c->input(0), 0), tables));
      return absl::OkStatus();
    });

REGISTER_OP("DslideLearnProjections")
    .Input("queries: float")
    .Input("neurons: float")
    .Input("bias: float")
    .Input("query_projections: float")
    .Input("neuron_projections: float")
    .Input("centre: bool")
    .Input("round: int64")
    .Attr("bits: int >= 1")
    .Attr("tables: int >= 1")
    .Attr("steps: int >= 0")
    .Attr("learning_rate: float")
    .Attr("seed: int")
    .Output("learned_query_projections: float")
    .Output("learned_neuron_projections: float")
    .SetShapeFn([](InferenceContext* c) {
      TF_RETURN_IF_ERROR(CheckRanks(c, 0, {2, 2, 1, 2, 2, 0, 0}));
      c->set_output(0, c->input(3));
      c->set_output(1, c->input(4));
      return absl::OkStatus();
    });

REGISTER_OP("DslideDwtaParameters")
    .Input("generation: int64")
    .Attr("seed: int")
    .Attr("dim: int >= 1")
    .Attr("bins: int >= 1")
    .Attr("bin_size: int >= 1")
    .Output("index: int32")
    .SetShapeFn([](InferenceContext* c) {
      TF_RETURN_IF_ERROR(CheckRanks(c, 0, {0}));
      int64_t bins, bin_size;
      TF_RETURN_IF_ERROR(c->GetAttr("bins", &bins));
      TF_RETURN_IF_ERROR(c->GetAttr("bin_size", &bin_size));
      c->set_output(0, c->Matrix(bins, bin_size));
      return absl::OkStatus();
    });

REGISTER_OP("DslideDwtaCodes")
    .Input("x: float")
    .Input("index: int32")
    .Attr("tables: int >= 1")
    .Attr("address_bits: int >= 0")
    .Attr("densify: bool = true")
    .Output("codes: int32")
    .SetShapeFn([](InferenceContext* c) {
      TF_RETURN_IF_ERROR(CheckRanks(c, 0, {2, 2}));
      int64_t tables;
      TF_RETURN_IF_ERROR(c->GetAttr("tables", &tables));
      c->set_output(0, c->Matrix(c->Dim(c->input(0), 0), tables));
      return absl::OkStatus();
    });

REGISTER_OP("DslideMinHashParameters")
    .Input("generation: int64")
    .Attr("seed: int")
    .Attr("dim: int >= 1")
    .Attr("permutations: int >= 1")
    .Output("place: int32")
    .SetShapeFn([](InferenceContext* c) {
      TF_RETURN_IF_ERROR(CheckRanks(c, 0, {0}));
      int64_t dim, permutations;
      TF_RETURN_IF_ERROR(c->GetAttr("dim", &dim));
      TF_RETURN_IF_ERROR(c->GetAttr("permutations", &permutations));
      c->set_output(0, c->Matrix(permutations, dim));
      return absl::OkStatus();
    });

REGISTER_OP("DslideMinHashCodes")
    .Input("x: float")
    .Input("place: int32")
    .Attr("top: int >= 1")
    .Attr("bins_per_table: int >= 1")
    .Attr("tables: int >= 1")
    .Attr("bins_per_permutation: int >= 1")
    .Attr("address_bits: int >= 0")
    .Output("codes: int32")
    .SetShapeFn([](InferenceContext* c) {
      TF_RETURN_IF_ERROR(CheckRanks(c, 0, {2, 2}));
      int64_t tables;
      TF_RETURN_IF_ERROR(c->GetAttr("tables", &tables));
      c->set_output(0, c->Matrix(c->Dim(c->input(0), 0), tables));
      return absl::OkStatus();
    });

REGISTER_OP("DslideBuildTables")
    .Input("codes: int32")
    .Attr("buckets: int >= 1")
    .Output("bucket_ptr: int32")
    .Output("neuron_ids: int32")
    .SetShapeFn([](InferenceContext* c) {
      TF_RETURN_IF_ERROR(CheckRanks(c, 0, {2}));
      int64_t buckets;
      TF_RETURN_IF_ERROR(c->GetAttr("buckets", &buckets));
      const DimensionHandle tables = c->Dim(c->input(0), 1);
      c->set_output(0, c->Matrix(tables, buckets + 1));
      c->set_output(1, c->Matrix(tables, c->Dim(c->input(0), 0)));
      return absl::OkStatus();
    });

REGISTER_OP("DslideArrangeBuckets")
    .Input("bucket_ptr: int32")
    .Input("neuron_ids: int32")
    .Input("step: int64")
    .Attr("policy: {'reservoir', 'fifo'}")
    .Attr("seed: int")
    .Output("arranged: int32")
    .SetShapeFn([](InferenceContext* c) {
      TF_RETURN_IF_ERROR(CheckRanks(c, 0, {2, 2, 0}));
      c->set_output(0, Like(c, 1));
      return absl::OkStatus();
    });

REGISTER_OP("DslideSelectFromTables")
    .Input("codes: int32")
    .Input("bucket_ptr: int32")
    .Input("neuron_ids: int32")
    .Input("label_splits: int64")
    .Input("label_ids: int32")
    .Input("excluded: int32")
    .Input("step: int64")
    .Attr("hashed: int >= 0")
    .Attr("bucket_size: int >= 1")
    .Attr("from_start: bool = false")
    .Attr("min_collisions: int >= 0 = 0")
    .Attr("seed: int")
    .Attr("by_code: bool = false")
    .Output("row_splits: int64")
    .Output("ids: int32")
    .SetShapeFn([](InferenceContext* c) {
      TF_RETURN_IF_ERROR(CheckRanks(c, 0, {2, 2, 2, 1, 1, 1, 0}));
      c->set_output(0, Like(c, 3));
      c->set_output(1, c->Vector(InferenceContext::kUnknownDim));
      return absl::OkStatus();
    });

REGISTER_OP("DslideSelectForBatch")
    .Input("codes: int32")
    .Input("bucket_ptr: int32")
    .Input("neuron_ids: int32")
    .Input("excluded: int32")
    .Input("step: int64")
    .Attr("hashed: int >= 0")
    .Attr("bucket_size: int >= 1")
    .Attr("from_start: bool = false")
    .Attr("min_collisions: int >= 0 = 0")
    .Attr("seed: int")
    .Output("ids: int32")
    .SetShapeFn([](InferenceContext* c) {
      TF_RETURN_IF_ERROR(CheckRanks(c, 0, {2, 2, 2, 1, 0}));
      c->set_output(0, c->Vector(InferenceContext::kUnknownDim));
      return absl::OkStatus();
    });

REGISTER_OP("DslideSampleNeurons")
    .Input("step: int64")
    .Input("fixed: int32")
    .Attr("units: int >= 1")
    .Attr("count: int >= 0")
    .Attr("distribution: {'uniform', 'log_uniform'}")
    .Attr("seed: int")
    .Output("ids: int32")
    .Output("drawn: float")
    .SetShapeFn([](InferenceContext* c) {
      TF_RETURN_IF_ERROR(CheckRanks(c, 0, {0, 1}));
      const DimensionHandle fixed = c->Dim(c->input(1), 0);
      int64_t units, count;
      TF_RETURN_IF_ERROR(c->GetAttr("units", &units));
      TF_RETURN_IF_ERROR(c->GetAttr("count", &count));
      const ShapeHandle neurons = c->ValueKnown(fixed)
                                      ? c->Vector(std::min(units, c->Value(fixed) + count))
                                      : c->Vector(InferenceContext::kUnknownDim);
      c->set_output(0, neurons);
      c->set_output(1, neurons);
      return absl::OkStatus();
    });

REGISTER_OP("DslideLogImportanceWeights")
    .Input("row_splits: int64")
    .Input("ids: int32")
    .Input("shared: int32")
    .Input("drawn: float")
    .Attr("units: int >= 1")
    .Output("log_importance_weights: float")
    .SetShapeFn([](InferenceContext* c) {
      TF_RETURN_IF_ERROR(CheckRanks(c, 0, {1, 1, 1, 1}));
      c->set_output(0, c->Vector(RowsOf(c, 0)));
      return absl::OkStatus();
    });

REGISTER_OP("DslideCanonicalLabels")
    .Input("row_splits: int64")
    .Input("values: int64")
    .Attr("units: int >= 1")
    .Output("label_splits: int64")
    .Output("label_ids: int32")
    .SetShapeFn([](InferenceContext* c) {
      TF_RETURN_IF_ERROR(CheckRanks(c, 0, {1, 1}));
      c->set_output(0, Like(c, 0));
      c->set_output(1, c->Vector(InferenceContext::kUnknownDim));
      return absl::OkStatus();
    });

REGISTER_OP("DslideCsrFromSparse")
    .Input("indices: int64")
    .Input("values: float")
    .Input("dense_shape: int64")
    .Attr("columns: int >= 1")
    .Output("row_splits: int64")
    .Output("ids: int32")
    .SetShapeFn([](InferenceContext* c) {
      TF_RETURN_IF_ERROR(CheckRanks(c, 0, {2, 1, 1}));
      c->set_output(0, c->Vector(InferenceContext::kUnknownDim));
      c->set_output(1, Like(c, 1));
      return absl::OkStatus();
    });

REGISTER_OP("DslideCscFromCsr")
    .Input("row_splits: int64")
    .Input("ids: int32")
    .Input("shared: int32")
    .Attr("units: int >= 1")
    .Output("neurons: int32")
    .Output("neuron_splits: int64")
    .Output("entry_row: int32")
    .Output("entry_index: int32")
    .Output("shared_places: int32")
    .SetShapeFn([](InferenceContext* c) {
      TF_RETURN_IF_ERROR(CheckRanks(c, 0, {1, 1, 1}));
      c->set_output(0, c->Vector(InferenceContext::kUnknownDim));
      c->set_output(1, c->Vector(InferenceContext::kUnknownDim));
      c->set_output(2, Like(c, 1));
      c->set_output(3, Like(c, 1));
      c->set_output(4, Like(c, 2));
      return absl::OkStatus();
    });

#define DSLIDE_VIEW_INPUTS           \
  Input("neurons: int32")            \
      .Input("neuron_splits: int64") \
      .Input("entry_row: int32")     \
      .Input("entry_index: int32")   \
      .Input("shared_places: int32")

REGISTER_OP("DslideActiveLogits")
    .Input("x: float")
    .DSLIDE_VIEW_INPUTS.Input("kernel: resource")
    .Input("bias: use_bias * resource")
    .Attr("use_bias: int >= 0")
    .Attr("check_input: bool = true")
    .Output("logits: float")
    .Output("shared_logits: float")
    .SetIsStateful()
    .SetShapeFn([](InferenceContext* c) {
      TF_RETURN_IF_ERROR(CheckRanks(c, 0, {2, 1, 1, 1, 1, 1}));
      c->set_output(0, Like(c, 4));
      c->set_output(1, c->Matrix(c->Dim(c->input(0), 0), c->Dim(c->input(5), 0)));
      return absl::OkStatus();
    });

REGISTER_OP("DslideCsrMatMul")
    .Input("coef: float")
    .Input("row_splits: int64")
    .Input("ids: int32")
    .Input("kernel: resource")
    .Attr("columns: int >= 1")
    .Output("y: float")
    .SetIsStateful()
    .SetShapeFn([](InferenceContext* c) {
      TF_RETURN_IF_ERROR(CheckRanks(c, 0, {1, 1, 1}));
      c->set_output(0, c->Matrix(RowsOf(c, 1), VariableDim(c, 3, 1, 2)));
      return absl::OkStatus();
    });

REGISTER_OP("DslideActiveMatMul")
    .Input("coef: float")
    .Input("shared_coef: float")
    .DSLIDE_VIEW_INPUTS.Input("like: float")
    .Input("kernel: resource")
    .Output("y: float")
    .SetIsStateful()
    .SetShapeFn([](InferenceContext* c) {
      TF_RETURN_IF_ERROR(CheckRanks(c, 0, {1, 2, 1, 1, 1, 1, 1, 2}));
      c->set_output(0, Like(c, 7));
      return absl::OkStatus();
    });

#define DSLIDE_GRADIENT_PARTS \
  Input("x: float").Input("coef: float").Input("shared_coef: float").DSLIDE_VIEW_INPUTS

REGISTER_OP("DslideRowGradient")
    .DSLIDE_GRADIENT_PARTS.Output("gradient: float")
    .SetShapeFn([](InferenceContext* c) {
      TF_RETURN_IF_ERROR(CheckRanks(c, 0, {2, 1, 2, 1, 1, 1, 1, 1}));
      c->set_output(0, c->Matrix(c->Dim(c->input(3), 0), c->Dim(c->input(0), 1)));
      return absl::OkStatus();
    });

REGISTER_OP("DslideEntrySums")
    .DSLIDE_GRADIENT_PARTS.Output("sums: float")
    .SetShapeFn([](InferenceContext* c) {
      TF_RETURN_IF_ERROR(CheckRanks(c, 0, {2, 1, 2, 1, 1, 1, 1, 1}));
      c->set_output(0, Like(c, 3));
      return absl::OkStatus();
    });

#define DSLIDE_ACTIVE_SETS           \
  Input("logits: float")             \
      .Input("row_splits: int64")    \
      .Input("ids: int32")           \
      .Input("shared_logits: float") \
      .Input("shared: int32")

REGISTER_OP("DslideSparseFromActive")
    .DSLIDE_ACTIVE_SETS.Attr("keep_zeros: bool")
    .Output("indices: int64")
    .Output("values: float")
    .SetShapeFn([](InferenceContext* c) {
      TF_RETURN_IF_ERROR(CheckRanks(c, 0, {1, 1, 1, 2, 1}));
      const DimensionHandle entries = c->UnknownDim();
      c->set_output(0, c->Matrix(entries, 2));
      c->set_output(1, c->Vector(entries));
      return absl::OkStatus();
    });

REGISTER_OP("DslideActiveFromSparse")
    .DSLIDE_ACTIVE_SETS.Input("entries: float")
    .Attr("keep_zeros: bool")
    .Output("own: float")
    .Output("shared_values: float")
    .SetShapeFn([](InferenceContext* c) {
      TF_RETURN_IF_ERROR(CheckRanks(c, 0, {1, 1, 1, 2, 1, 1}));
      c->set_output(0, Like(c, 0));
      c->set_output(1, Like(c, 3));
      return absl::OkStatus();
    });

#define DSLIDE_SOFTMAX                            \
  DSLIDE_ACTIVE_SETS.Input("label_splits: int64") \
      .Input("label_ids: int32")                  \
      .Input("row_adjustment: float")             \
      .Input("shared_adjustment: float")

#define DSLIDE_TOTALS \
  Input("top: float").Input("log_sum: float").Input("label_count: float").Input("upstream: float")

REGISTER_OP("DslideSoftmaxParts")
    .DSLIDE_SOFTMAX.Output("top: float")
    .Output("log_sum: float")
    .Output("label_sum: float")
    .SetShapeFn([](InferenceContext* c) {
      TF_RETURN_IF_ERROR(CheckRanks(c, 0, {1, 1, 1, 2, 1, 1, 1, 1, 1}));
      for (int i = 0; i < 3; ++i) c->set_output(i, c->Vector(RowsOf(c, 1)));
      return absl::OkStatus();
    });

REGISTER_OP("DslideSoftmaxGradient")
    .DSLIDE_SOFTMAX.DSLIDE_TOTALS.Output("logits_gradient: float")
    .Output("shared_gradient: float")
    .SetShapeFn([](InferenceContext* c) {
      TF_RETURN_IF_ERROR(CheckRanks(c, 0, {1, 1, 1, 2, 1, 1, 1, 1, 1, 1, 1, 1, 1}));
      c->set_output(0, Like(c, 0));
      c->set_output(1, Like(c, 3));
      return absl::OkStatus();
    });

REGISTER_OP("DslideSoftmaxCrossentropy")
    .DSLIDE_SOFTMAX.Output("loss: float")
    .Output("logits_gradient: float")
    .Output("shared_gradient: float")
    .SetShapeFn([](InferenceContext* c) {
      TF_RETURN_IF_ERROR(CheckRanks(c, 0, {1, 1, 1, 2, 1, 1, 1, 1, 1}));
      c->set_output(0, c->Vector(RowsOf(c, 1)));
      c->set_output(1, Like(c, 0));
      c->set_output(2, Like(c, 3));
      return absl::OkStatus();
    });

REGISTER_OP("DslideBinaryCrossentropy")
    .DSLIDE_SOFTMAX.Input("own_adjustment: float")
    .Output("loss: float")
    .Output("logits_gradient: float")
    .Output("shared_gradient: float")
    .SetShapeFn([](InferenceContext* c) {
      TF_RETURN_IF_ERROR(CheckRanks(c, 0, {1, 1, 1, 2, 1, 1, 1, 1, 1, 1}));
      c->set_output(0, c->Vector(RowsOf(c, 1)));
      c->set_output(1, Like(c, 0));
      c->set_output(2, Like(c, 3));
      return absl::OkStatus();
    });

REGISTER_OP("DslideScaleRows")
    .Input("values: float")
    .Input("row_splits: int64")
    .Input("shared_values: float")
    .Input("scale: float")
    .Output("scaled: float")
    .Output("shared_scaled: float")
    .SetShapeFn([](InferenceContext* c) {
      TF_RETURN_IF_ERROR(CheckRanks(c, 0, {1, 1, 2, 1}));
      c->set_output(0, Like(c, 0));
      c->set_output(1, Like(c, 2));
      return absl::OkStatus();
    });

REGISTER_OP("DslideActiveTopK")
    .DSLIDE_ACTIVE_SETS.Attr("k: int >= 1")
    .Output("top_ids: int32")
    .Output("scores: float")
    .SetShapeFn([](InferenceContext* c) {
      TF_RETURN_IF_ERROR(CheckRanks(c, 0, {1, 1, 1, 2, 1}));
      int64_t k;
      TF_RETURN_IF_ERROR(c->GetAttr("k", &k));
      c->set_output(0, c->Matrix(RowsOf(c, 1), k));
      c->set_output(1, c->Matrix(RowsOf(c, 1), k));
      return absl::OkStatus();
    });

REGISTER_OP("DslideTopK")
    .Input("x: float")
    .Input("kernel: resource")
    .Input("bias: use_bias * resource")
    .Attr("use_bias: int >= 0")
    .Attr("k: int >= 1")
    .Output("top_ids: int32")
    .Output("scores: float")
    .SetIsStateful()
    .SetShapeFn([](InferenceContext* c) {
      TF_RETURN_IF_ERROR(CheckRanks(c, 0, {2}));
      int64_t k;
      TF_RETURN_IF_ERROR(c->GetAttr("k", &k));
      c->set_output(0, c->Matrix(c->Dim(c->input(0), 0), k));
      c->set_output(1, c->Matrix(c->Dim(c->input(0), 0), k));
      return absl::OkStatus();
    });

REGISTER_OP("DslideFullCrossentropy")
    .Input("x: float")
    .Input("label_splits: int64")
    .Input("label_ids: int32")
    .Input("kernel: resource")
    .Input("bias: use_bias * resource")
    .Attr("use_bias: int >= 0")
    .Output("loss: float")
    .Output("top: float")
    .Output("log_sum: float")
    .Output("label_sum: float")
    .SetIsStateful()
    .SetShapeFn([](InferenceContext* c) {
      TF_RETURN_IF_ERROR(CheckRanks(c, 0, {2, 1, 1}));
      const DimensionHandle rows = c->Dim(c->input(0), 0);
      for (int i = 0; i < 4; ++i) c->set_output(i, c->Vector(rows));
      return absl::OkStatus();
    });

// Losses made of the parts that several layers' units add: passes them through, and knows what
// their gradient by this layer's part is.
REGISTER_OP("DslideCrossentropyOfParts")
    .Input("x: float")
    .Input("label_splits: int64")
    .Input("label_ids: int32")
    .Input("losses: float")
    .Input("top: float")
    .Input("log_sum: float")
    .Input("label_count: float")
    .Input("kernel: resource")
    .Input("bias: use_bias * resource")
    .Attr("use_bias: int >= 0")
    .Output("loss: float")
    .SetIsStateful()
    .SetShapeFn([](InferenceContext* c) {
      TF_RETURN_IF_ERROR(CheckRanks(c, 0, {2, 1, 1, 1, 1, 1, 1}));
      c->set_output(0, Like(c, 3));
      return absl::OkStatus();
    });

REGISTER_OP("DslideFullCrossentropyGradient")
    .Input("x: float")
    .Input("label_splits: int64")
    .Input("label_ids: int32")
    .DSLIDE_TOTALS.Input("kernel: resource")
    .Input("bias: use_bias * resource")
    .Attr("use_bias: int >= 0")
    .Output("x_gradient: float")
    .Output("kernel_gradient: float")
    .Output("bias_gradient: use_bias * float")
    .SetIsStateful()
    .SetShapeFn([](InferenceContext* c) {
      TF_RETURN_IF_ERROR(CheckRanks(c, 0, {2, 1, 1, 1, 1, 1, 1}));
      const DimensionHandle units = VariableDim(c, 7, 0, 2);
      c->set_output(0, Like(c, 0));
      c->set_output(1, c->Matrix(units, c->Dim(c->input(0), 1)));
      if (c->num_outputs() > 2) c->set_output(2, c->Vector(units));
      return absl::OkStatus();
    });

// Connections: those of feature f lead to connection_neurons[connection_splits[f]] and so on, each
// with a weight. The features of a batch are a CSR with values.
REGISTER_OP("DslideCooccurrences")
    .Input("row_splits: int64")
    .Input("ids: int32")
    .Input("label_splits: int64")
    .Input("label_ids: int32")
    .Attr("features: int >= 1")
    .Attr("units: int >= 1")
    .Attr("most: int >= 1")
    .Attr("smoothing: float")
    .Output("connection_splits: int64")
    .Output("connection_neurons: int32")
    .Output("together: float")
    .SetShapeFn([](InferenceContext* c) {
      TF_RETURN_IF_ERROR(CheckRanks(c, 0, {1, 1, 1, 1}));
      int64_t features;
      TF_RETURN_IF_ERROR(c->GetAttr("features", &features));
      c->set_output(0, c->Vector(features + 1));
      const DimensionHandle connections = c->UnknownDim();
      for (int i : {1, 2}) c->set_output(i, c->Vector(connections));
      return absl::OkStatus();
    });

#define DSLIDE_CONNECTED_INPUTS           \
  Input("values: float")                  \
      .Input("row_splits: int64")         \
      .Input("ids: int32")                \
      .Input("connection_splits: int64")  \
      .Input("connection_neurons: int32") \
      .Input("weights: resource")         \
      .Input("bias: use_bias * resource") \
      .Attr("use_bias: int >= 0")         \
      .Attr("units: int >= 1")

REGISTER_OP("DslideSparseLinearSelect")
    .DSLIDE_CONNECTED_INPUTS.Input("label_splits: int64")
    .Input("label_ids: int32")
    .Attr("count: int >= 0")
    .Output("active_splits: int64")
    .Output("active_ids: int32")
    .Output("logits: float")
    .Output("match_splits: int64")
    .Output("match_position: int32")
    .Output("match_entry: int32")
    .Output("match_place: int32")
    .SetIsStateful()
    .SetShapeFn([](InferenceContext* c) {
      TF_RETURN_IF_ERROR(CheckRanks(c, 0, {1, 1, 1, 1, 1}));
      const DimensionHandle active = c->UnknownDim(), matches = c->UnknownDim();
      for (int i : {0, 3}) c->set_output(i, Like(c, 1));
      for (int i : {1, 2}) c->set_output(i, c->Vector(active));
      for (int i : {4, 5, 6}) c->set_output(i, c->Vector(matches));
      return absl::OkStatus();
    });

// The weights are values, not variables: what reads a variable runs whether it is used or not.
REGISTER_OP("DslideSparseLinearLogits")
    .Input("values: float")
    .Input("row_splits: int64")
    .Input("ids: int32")
    .Input("connection_splits: int64")
    .Input("connection_neurons: int32")
    .Input("weights: float")
    .Input("bias: use_bias * float")
    .Attr("use_bias: int >= 0")
    .Attr("units: int >= 1")
    .Output("logits: float")
    .SetShapeFn([](InferenceContext* c) {
      TF_RETURN_IF_ERROR(CheckRanks(c, 0, {1, 1, 1, 1, 1, 1}));
      int64_t units;
      TF_RETURN_IF_ERROR(c->GetAttr("units", &units));
      c->set_output(0, c->Matrix(RowsOf(c, 1), units));
      return absl::OkStatus();
    });

REGISTER_OP("DslideSparseLinearTopK")
    .DSLIDE_CONNECTED_INPUTS.Attr("k: int >= 1")
    .Output("top_ids: int32")
    .Output("scores: float")
    .SetIsStateful()
    .SetShapeFn([](InferenceContext* c) {
      TF_RETURN_IF_ERROR(CheckRanks(c, 0, {1, 1, 1, 1, 1}));
      int64_t k;
      TF_RETURN_IF_ERROR(c->GetAttr("k", &k));
      for (int i : {0, 1}) c->set_output(i, c->Matrix(RowsOf(c, 1), k));
      return absl::OkStatus();
    });

REGISTER_OP("DslideSparseLinearLosses")
    .DSLIDE_CONNECTED_INPUTS.Input("label_splits: int64")
    .Input("label_ids: int32")
    .Output("softmax_loss: float")
    .Output("binary_loss: float")
    .SetIsStateful()
    .SetShapeFn([](InferenceContext* c) {
      TF_RETURN_IF_ERROR(CheckRanks(c, 0, {1, 1, 1, 1, 1}));
      for (int i : {0, 1}) c->set_output(i, c->Vector(RowsOf(c, 1)));
      return absl::OkStatus();
    });

REGISTER_OP("DslideSparseLinearGradient")
    .Input("values: float")
    .Input("active_splits: int64")
    .Input("active_ids: int32")
    .Input("upstream: float")
    .Input("match_splits: int64")
    .Input("match_position: int32")
    .Input("match_entry: int32")
    .Input("match_place: int32")
    .Attr("connections: int >= 0")
    .Attr("units: int >= 1")
    .Output("connection_ids: int32")
    .Output("connection_gradient: float")
    .Output("neurons: int32")
    .Output("bias_gradient: float")
    .SetShapeFn([](InferenceContext* c) {
      TF_RETURN_IF_ERROR(CheckRanks(c, 0, {1, 1, 1, 1, 1, 1, 1, 1}));
      const DimensionHandle connections = c->UnknownDim(), neurons = c->UnknownDim();
      for (int i : {0, 1}) c->set_output(i, c->Vector(connections));
      for (int i : {2, 3}) c->set_output(i, c->Vector(neurons));
      return absl::OkStatus();
    });

// With unit_rows each row that a step moves has length 1 afterwards.
#define DSLIDE_ADAM_INPUTS           \
  Input("weight: resource")          \
      .Input("momentum: resource")   \
      .Input("velocity: resource")   \
      .Input("step: int64")          \
      .Input("learning_rate: float") \
      .Input("weight_decay: float")  \
      .Attr("beta_1: float")         \
      .Attr("beta_2: float")         \
      .Attr("epsilon: float")        \
      .Attr("unit_rows: bool = false")

#define DSLIDE_ADAGRAD_INPUTS         \
  Input("weight: resource")           \
      .Input("accumulator: resource") \
      .Input("learning_rate: float")  \
      .Input("weight_decay: float")   \
      .Attr("epsilon: float")         \
      .Attr("unit_rows: bool = false")

REGISTER_OP("DslideDenseAdam")
    .DSLIDE_ADAM_INPUTS.Input("gradient: float")
    .SetIsStateful()
    .SetShapeFn([](InferenceContext* c) { return CheckRanks(c, 3, {0, 0, 0}); });

REGISTER_OP("DslideRowAdam")
    .DSLIDE_ADAM_INPUTS.Input("rows: int32")
    .Input("gradient: float")
    .SetIsStateful()
    .SetShapeFn([](InferenceContext* c) { return CheckRanks(c, 3, {0, 0, 0, 1}); });

REGISTER_OP("DslideRowGradientAdam")
    .DSLIDE_ADAM_INPUTS.DSLIDE_GRADIENT_PARTS.SetIsStateful()
    .SetShapeFn([](InferenceContext* c) {
      return CheckRanks(c, 3, {0, 0, 0, 2, 1, 2, 1, 1, 1, 1, 1});
    });

REGISTER_OP("DslideDenseAdagrad")
    .DSLIDE_ADAGRAD_INPUTS.Input("gradient: float")
    .SetIsStateful()
    .SetShapeFn([](InferenceContext* c) { return CheckRanks(c, 2, {0, 0}); });

REGISTER_OP("DslideRowAdagrad")
    .DSLIDE_ADAGRAD_INPUTS.Input("rows: int32")
    .Input("gradient: float")
    .SetIsStateful()
    .SetShapeFn([](InferenceContext* c) { return CheckRanks(c, 2, {0, 0, 1}); });

REGISTER_OP("DslideRowGradientAdagrad")
    .DSLIDE_ADAGRAD_INPUTS.DSLIDE_GRADIENT_PARTS.SetIsStateful()
    .SetShapeFn([](InferenceContext* c) {
      return CheckRanks(c, 2, {0, 0, 2, 1, 2, 1, 1, 1, 1, 1});
    });

}  // namespace tensorflow
