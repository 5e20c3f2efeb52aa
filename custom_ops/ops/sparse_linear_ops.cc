#include "custom_ops/ops/shapes.h"

namespace dslide {
namespace {

#define DSLIDE_SPARSE_LINEAR_INPUTS       \
  Input("values: float")                  \
      .Input("row_splits: int64")         \
      .Input("ids: int32")                \
      .Input("weight_splits: int64")      \
      .Input("weight_neurons: int32")     \
      .Input("weights: resource")         \
      .Input("bias: use_bias * resource") \
      .Attr("use_bias: int >= 0")         \
      .Attr("units: int >= 1")

REGISTER_OP("DslideCooccurrences")
    .Input("row_splits: int64")
    .Input("ids: int32")
    .Input("label_splits: int64")
    .Input("label_ids: int32")
    .Attr("features: int >= 1")
    .Attr("units: int >= 1")
    .Attr("max_weights_per_feature: int >= 1")
    .Attr("smoothing: float")
    .Output("weight_splits: int64")
    .Output("weight_neurons: int32")
    .Output("together: float")
    .SetShapeFn([](InferenceContext* c) {
      TF_RETURN_IF_ERROR(CheckRanks(c, 0, {1, 1, 1, 1}));
      c->set_output(0, c->Vector(IntAttr(c, "features") + 1));
      const DimensionHandle weights = c->UnknownDim();
      for (int i : {1, 2}) c->set_output(i, c->Vector(weights));
      return absl::OkStatus();
    })
    .Doc(R"doc(
The labels that each feature occurs together with, those first that it says most about.

max_weights_per_feature: At most so many labels a feature.
smoothing: Samples that each label is taken to have besides.
together: The number of rows that have both.
)doc");

REGISTER_OP("DslideSparseLinearSelect")
    .DSLIDE_SPARSE_LINEAR_INPUTS.Input("label_splits: int64")
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
    })
    .Doc(R"doc(
Each row's labels and the best others that its features have weights for.

match_position: The weights between a row's features and its active neurons.
match_entry: The feature of each of them, a place among the batch's features.
match_place: The neuron of each of them, a place among the active ones.
)doc");

REGISTER_OP("DslideSparseLinearLogits")
    .Input("values: float")
    .Input("row_splits: int64")
    .Input("ids: int32")
    .Input("weight_splits: int64")
    .Input("weight_neurons: int32")
    .Input("weights: float")
    .Input("bias: use_bias * float")
    .Attr("use_bias: int >= 0")
    .Attr("units: int >= 1")
    .Output("logits: float")
    .SetShapeFn([](InferenceContext* c) {
      TF_RETURN_IF_ERROR(CheckRanks(c, 0, {1, 1, 1, 1, 1, 1}));
      c->set_output(0, c->Matrix(RowsOf(c, 1), IntAttr(c, "units")));
      return absl::OkStatus();
    })
    .Doc(R"doc(
All logits of a sparse linear classifier.

The weights are values, not variables, because what reads a variable runs whether it is used or not.
)doc");

REGISTER_OP("DslideSparseLinearTopK")
    .DSLIDE_SPARSE_LINEAR_INPUTS.Attr("k: int >= 1")
    .Output("top_ids: int32")
    .Output("scores: float")
    .SetIsStateful()
    .SetShapeFn([](InferenceContext* c) {
      TF_RETURN_IF_ERROR(CheckRanks(c, 0, {1, 1, 1, 1, 1}));
      for (int i : {0, 1}) c->set_output(i, c->Matrix(RowsOf(c, 1), IntAttr(c, "k")));
      return absl::OkStatus();
    })
    .Doc(R"doc(
The k best of all units of a sparse linear classifier.
)doc");

REGISTER_OP("DslideSparseLinearLosses")
    .DSLIDE_SPARSE_LINEAR_INPUTS.Input("label_splits: int64")
    .Input("label_ids: int32")
    .Output("softmax_loss: float")
    .Output("binary_loss: float")
    .SetIsStateful()
    .SetShapeFn([](InferenceContext* c) {
      TF_RETURN_IF_ERROR(CheckRanks(c, 0, {1, 1, 1, 1, 1}));
      for (int i : {0, 1}) c->set_output(i, c->Vector(RowsOf(c, 1)));
      return absl::OkStatus();
    })
    .Doc(R"doc(
The losses over all units of a sparse linear classifier, by softmax and one-vs-rest.
)doc");

REGISTER_OP("DslideSparseLinearGradient")
    .Input("values: float")
    .Input("active_splits: int64")
    .Input("active_ids: int32")
    .Input("upstream: float")
    .Input("match_splits: int64")
    .Input("match_position: int32")
    .Input("match_entry: int32")
    .Input("match_place: int32")
    .Attr("weight_count: int >= 0")
    .Attr("units: int >= 1")
    .Output("weight_ids: int32")
    .Output("weight_gradient: float")
    .Output("neurons: int32")
    .Output("bias_gradient: float")
    .SetShapeFn([](InferenceContext* c) {
      TF_RETURN_IF_ERROR(CheckRanks(c, 0, {1, 1, 1, 1, 1, 1, 1, 1}));
      const DimensionHandle weights = c->UnknownDim(), neurons = c->UnknownDim();
      for (int i : {0, 1}) c->set_output(i, c->Vector(weights));
      for (int i : {2, 3}) c->set_output(i, c->Vector(neurons));
      return absl::OkStatus();
    })
    .Doc(R"doc(
Gradients of SparseLinearSelect by the weights and the bias, as ids with values.
)doc");

}  // namespace
}  // namespace dslide
