#include "custom_ops/ops/shapes.h"

namespace dslide {
namespace {

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
      const int64_t k = IntAttr(c, "k");
      c->set_output(0, c->Matrix(c->Dim(c->input(0), 0), k));
      c->set_output(1, c->Matrix(c->Dim(c->input(0), 0), k));
      return absl::OkStatus();
    })
    .Doc(R"doc(
The k best of all units for each row, falling, the lower id first among equals.
)doc");

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
    })
    .Doc(R"doc(
Cross-entropy of each row over all units, block by block, and the parts it is made of.
)doc");

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
    })
    .Doc(R"doc(
Passes through losses made of the parts that several layers' units add.

It knows what the gradient of such losses by this layer's part is.
)doc");

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
    })
    .Doc(R"doc(
Gradients of cross-entropies over all units by x, the kernel and the bias.
)doc");

}  // namespace
}  // namespace dslide
