#include "custom_ops/ops/shapes.h"

namespace dslide {
namespace {

#define DSLIDE_ACTIVE_SETS           \
  Input("logits: float")             \
      .Input("row_splits: int64")    \
      .Input("ids: int32")           \
      .Input("shared_logits: float") \
      .Input("shared: int32")

#define DSLIDE_SOFTMAX                            \
  DSLIDE_ACTIVE_SETS.Input("label_splits: int64") \
      .Input("label_ids: int32")                  \
      .Input("row_adjustment: float")             \
      .Input("shared_adjustment: float")

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
    })
    .Doc(R"doc(
Cross-entropy of each row over its active set, with its gradient by the logits.

row_adjustment: Times shared_adjustment, what is added to the logits of shared neurons.
)doc");

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
    })
    .Doc(R"doc(
The sum of the logistic losses of each row's active neurons, with its gradient.

own_adjustment: A neuron that is no label counts exp(adjustment) times.
)doc");

REGISTER_OP("DslideSoftmaxParts")
    .DSLIDE_SOFTMAX.Output("top: float")
    .Output("log_sum: float")
    .Output("label_sum: float")
    .SetShapeFn([](InferenceContext* c) {
      TF_RETURN_IF_ERROR(CheckRanks(c, 0, {1, 1, 1, 2, 1, 1, 1, 1, 1}));
      for (int i = 0; i < 3; ++i) c->set_output(i, c->Vector(RowsOf(c, 1)));
      return absl::OkStatus();
    })
    .Doc(R"doc(
What active sets add to softmaxes over more units than these.

top: The largest logit of each row.
log_sum: The logarithm of the sum of exp(logit - top).
label_sum: The sum of logit - top over the row's labels.
)doc");

REGISTER_OP("DslideSoftmaxGradient")
    .DSLIDE_SOFTMAX.DSLIDE_TOTALS.Output("logits_gradient: float")
    .Output("shared_gradient: float")
    .SetShapeFn([](InferenceContext* c) {
      TF_RETURN_IF_ERROR(CheckRanks(c, 0, {1, 1, 1, 2, 1, 1, 1, 1, 1, 1, 1, 1, 1}));
      c->set_output(0, Like(c, 0));
      c->set_output(1, Like(c, 3));
      return absl::OkStatus();
    })
    .Doc(R"doc(
The gradient of softmaxes over more units than these by the active sets' logits.
)doc");

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
    })
    .Doc(R"doc(
Values of active sets, each times its row's scale.
)doc");

REGISTER_OP("DslideActiveTopK")
    .DSLIDE_ACTIVE_SETS.Attr("k: int >= 1")
    .Output("top_ids: int32")
    .Output("scores: float")
    .SetShapeFn([](InferenceContext* c) {
      TF_RETURN_IF_ERROR(CheckRanks(c, 0, {1, 1, 1, 2, 1}));
      const int64_t k = IntAttr(c, "k");
      c->set_output(0, c->Matrix(RowsOf(c, 1), k));
      c->set_output(1, c->Matrix(RowsOf(c, 1), k));
      return absl::OkStatus();
    })
    .Doc(R"doc(
The k best neurons of each row's active set; -1 and -infinity where it has fewer.
)doc");

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
    })
    .Doc(R"doc(
The values of active sets as a sparse matrix, ascending by row and neuron.

keep_zeros: Whether exact zeros stay.
)doc");

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
    })
    .Doc(R"doc(
The way back of SparseFromActive: from a number of each entry to one of each neuron.
)doc");

}  // namespace
}  // namespace dslide
