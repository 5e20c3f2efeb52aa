// What the ops' shape functions share.

#ifndef TF_DSLIDE_OPS_SHAPES_H_
#define TF_DSLIDE_OPS_SHAPES_H_

#include <initializer_list>

#include "tensorflow/core/framework/common_shape_fns.h"
#include "tensorflow/core/framework/op.h"
#include "tensorflow/core/framework/shape_inference.h"

namespace dslide {

using tensorflow::shape_inference::DimensionHandle;
using tensorflow::shape_inference::InferenceContext;
using tensorflow::shape_inference::ShapeHandle;

// Checks that inputs first, first + 1, ... have the ranks given; a rank of -1 is free.
inline absl::Status CheckRanks(InferenceContext* c, int first, std::initializer_list<int> ranks) {
  ShapeHandle unused;
  for (int rank : ranks) {
    if (rank >= 0) TF_RETURN_IF_ERROR(c->WithRank(c->input(first), rank, &unused));
    ++first;
  }
  return absl::OkStatus();
}

// One fewer than the length of the row_splits in an input.
inline DimensionHandle RowsOf(InferenceContext* c, int input) {
  const DimensionHandle length = c->Dim(c->input(input), 0);
  if (!c->ValueKnown(length) || c->Value(length) < 1) return c->UnknownDim();
  return c->MakeDim(c->Value(length) - 1);
}

inline ShapeHandle Like(InferenceContext* c, int input) { return c->input(input); }

// The shape of the variable behind a resource input, if the graph knows it.
inline ShapeHandle VariableShape(InferenceContext* c, int input) {
  const auto* handles = c->input_handle_shapes_and_types(input);
  if (handles == nullptr || handles->empty()) return c->UnknownShape();
  return (*handles)[0].shape;
}

inline DimensionHandle VariableDim(InferenceContext* c, int input, int dim, int rank) {
  ShapeHandle shape;
  if (!c->WithRank(VariableShape(c, input), rank, &shape).ok()) return c->UnknownDim();
  return c->Dim(shape, dim);
}

// An attribute that is an integer.
inline int64_t IntAttr(InferenceContext* c, const char* name) {
  int64_t value = 0;
  const absl::Status status = c->GetAttr(name, &value);
  return status.ok() ? value : InferenceContext::kUnknownDim;
}

}  // namespace dslide

#define DSLIDE_GRADIENT_FACTORS \
  Input("x: float").Input("coef: float").Input("shared_coef: float").Input("view: variant")

#define DSLIDE_TOTALS \
  Input("top: float").Input("log_sum: float").Input("label_count: float").Input("upstream: float")

#endif  // TF_DSLIDE_OPS_SHAPES_H_
