#include "custom_ops/ops/shapes.h"

namespace dslide {
namespace {

REGISTER_OP("DslideActiveLogits")
    .Input("x: float")
    .Input("view: variant")
    .Input("kernel: resource")
    .Input("bias: use_bias * resource")
    .Attr("use_bias: int >= 0")
    .Attr("check_input: bool = true")
    .Output("logits: float")
    .Output("shared_logits: float")
    .SetIsStateful()
    .SetShapeFn([](InferenceContext* c) {
      TF_RETURN_IF_ERROR(CheckRanks(c, 0, {2, 0}));
      c->set_output(0, c->Vector(InferenceContext::kUnknownDim));
      c->set_output(1, c->Matrix(c->Dim(c->input(0), 0), InferenceContext::kUnknownDim));
      return absl::OkStatus();
    })
    .Doc(R"doc(
Logits of each row's own neurons, and of the neurons that all rows share.
)doc");

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
    })
    .Doc(R"doc(
y[row] = the sum over the row's ids of coef * kernel[id].
)doc");

REGISTER_OP("DslideActiveMatMul")
    .Input("coef: float")
    .Input("shared_coef: float")
    .Input("view: variant")
    .Input("like: float")
    .Input("kernel: resource")
    .Output("y: float")
    .SetIsStateful()
    .SetShapeFn([](InferenceContext* c) {
      TF_RETURN_IF_ERROR(CheckRanks(c, 0, {1, 2, 0, 2}));
      c->set_output(0, Like(c, 3));
      return absl::OkStatus();
    })
    .Doc(R"doc(
The gradient of ActiveLogits by x, given that by its logits.

like: Any tensor of x's shape.
)doc");

REGISTER_OP("DslideRowGradient")
    .DSLIDE_GRADIENT_FACTORS.Output("gradient: float")
    .SetShapeFn([](InferenceContext* c) {
      TF_RETURN_IF_ERROR(CheckRanks(c, 0, {2, 1, 2, 0}));
      c->set_output(0, c->Matrix(InferenceContext::kUnknownDim, c->Dim(c->input(0), 1)));
      return absl::OkStatus();
    })
    .Doc(R"doc(
The gradient of ActiveLogits by the kernel, a row for each neuron of the view.
)doc");

REGISTER_OP("DslideEntrySums")
    .DSLIDE_GRADIENT_FACTORS.Output("sums: float")
    .SetShapeFn([](InferenceContext* c) {
      TF_RETURN_IF_ERROR(CheckRanks(c, 0, {2, 1, 2, 0}));
      c->set_output(0, c->Vector(InferenceContext::kUnknownDim));
      return absl::OkStatus();
    })
    .Doc(R"doc(
The gradient of ActiveLogits by the bias, a number for each neuron of the view.
)doc");

}  // namespace
}  // namespace dslide
