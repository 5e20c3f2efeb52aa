#include "custom_ops/ops/shapes.h"

namespace dslide {
namespace {

#define DSLIDE_ADAM_INPUTS           \
  Input("weight: resource")          \
      .Input("momentum: resource")   \
      .Input("velocity: resource")   \
      .Input("last_step: resource")  \
      .Input("step: int64")          \
      .Input("learning_rate: float") \
      .Input("weight_decay: float")  \
      .Attr("beta_1: float")         \
      .Attr("beta_2: float")         \
      .Attr("epsilon: float")        \
      .Attr("lazy: bool = false")    \
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
    .SetShapeFn([](InferenceContext* c) { return CheckRanks(c, 4, {0, 0, 0}); })
    .Doc(R"doc(
One step of Adam on all weights.

last_step: The last step that each row took part in, int32: before it takes part again, a row makes
  up for those that it missed.
lazy: Rows miss nothing, and `last_step` is not used.
unit_rows: Each row that moves has length 1 afterwards.
)doc");

REGISTER_OP("DslideRowAdam")
    .DSLIDE_ADAM_INPUTS.Input("rows: int32")
    .Input("gradient: float")
    .SetIsStateful()
    .SetShapeFn([](InferenceContext* c) { return CheckRanks(c, 4, {0, 0, 0, 1}); })
    .Doc(R"doc(
One step of Adam on the rows named; gradients of a row named twice add up.
)doc");

REGISTER_OP("DslideRowGradientAdam")
    .DSLIDE_ADAM_INPUTS.DSLIDE_GRADIENT_FACTORS.SetIsStateful()
    .SetShapeFn([](InferenceContext* c) { return CheckRanks(c, 4, {0, 0, 0, 2, 1, 2, 0}); })
    .Doc(R"doc(
One step of Adam on the neurons of a view, whose gradients never reach memory.
)doc");

REGISTER_OP("DslideCatchUpAdam")
    .DSLIDE_ADAM_INPUTS.SetIsStateful()
    .SetShapeFn([](InferenceContext* c) { return CheckRanks(c, 4, {0, 0, 0}); })
    .Doc(R"doc(
Makes up for what all rows missed before the step, which itself is not done.
)doc");

REGISTER_OP("DslideDenseAdagrad")
    .DSLIDE_ADAGRAD_INPUTS.Input("gradient: float")
    .SetIsStateful()
    .SetShapeFn([](InferenceContext* c) { return CheckRanks(c, 2, {0, 0}); })
    .Doc(R"doc(
One step of Adagrad on all weights.

unit_rows: Each row that moves has length 1 afterwards.
)doc");

REGISTER_OP("DslideRowAdagrad")
    .DSLIDE_ADAGRAD_INPUTS.Input("rows: int32")
    .Input("gradient: float")
    .SetIsStateful()
    .SetShapeFn([](InferenceContext* c) { return CheckRanks(c, 2, {0, 0, 1}); })
    .Doc(R"doc(
One step of Adagrad on the rows named; gradients of a row named twice add up.
)doc");

REGISTER_OP("DslideRowGradientAdagrad")
    .DSLIDE_ADAGRAD_INPUTS.DSLIDE_GRADIENT_FACTORS.SetIsStateful()
    .SetShapeFn([](InferenceContext* c) { return CheckRanks(c, 2, {0, 0, 2, 1, 2, 0}); })
    .Doc(R"doc(
One step of Adagrad on the neurons of a view, whose gradients never reach memory.
)doc");

}  // namespace
}  // namespace dslide
