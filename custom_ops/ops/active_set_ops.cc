#include <algorithm>

#include "custom_ops/ops/shapes.h"

namespace dslide {
namespace {

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
    })
    .Doc(R"doc(
Each row's labels and the neurons that most of its buckets hold, as CSR.

excluded: Ascending ids that only a label can bring in.
hashed: Labels and neurons of a row together.
bucket_size: A longer bucket gives a window of so many neurons.
from_start: The window is the bucket's beginning.
min_collisions: Neurons in so many tables are taken as they come; 0 takes the most frequent.
by_code: Rows of equal codes and labels get equal neurons.
)doc");

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
      const int64_t units = IntAttr(c, "units");
      const ShapeHandle neurons =
          c->ValueKnown(fixed) ? c->Vector(std::min(units, c->Value(fixed) + IntAttr(c, "count")))
                               : c->Vector(InferenceContext::kUnknownDim);
      c->set_output(0, neurons);
      c->set_output(1, neurons);
      return absl::OkStatus();
    })
    .Doc(R"doc(
The fixed neurons and others drawn by chance, ascending and distinct.

drawn: 1 for those drawn by chance, 0 for the fixed ones.
)doc");

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
    })
    .Doc(R"doc(
The logarithm of how many left out units each shared neuron drawn stands for.
)doc");

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
    })
    .Doc(R"doc(
Sorts the labels of each row, drops repeated ones and the padding -1.
)doc");

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
    })
    .Doc(R"doc(
The rows of a sparse matrix; checks order, range and that all values are finite.
)doc");

REGISTER_OP("DslideCscFromCsr")
    .Input("row_splits: int64")
    .Input("ids: int32")
    .Input("shared: int32")
    .Attr("units: int >= 1")
    .Output("view: variant")
    .SetShapeFn([](InferenceContext* c) {
      TF_RETURN_IF_ERROR(CheckRanks(c, 0, {1, 1, 1}));
      c->set_output(0, c->Scalar());
      return absl::OkStatus();
    })
    .Doc(R"doc(
An active set seen from its neurons, as compressed sparse columns.

view: What other ops read; CscTensors tells what it holds.
)doc");

REGISTER_OP("DslideCscTensors")
    .Input("view: variant")
    .Output("neurons: int32")
    .Output("neuron_splits: int64")
    .Output("entry_row: int32")
    .Output("entry_index: int32")
    .Output("shared_places: int32")
    .SetShapeFn([](InferenceContext* c) {
      TF_RETURN_IF_ERROR(CheckRanks(c, 0, {0}));
      for (int i = 0; i < 5; ++i) c->set_output(i, c->Vector(InferenceContext::kUnknownDim));
      return absl::OkStatus();
    })
    .Doc(R"doc(
The tensors of a view that CscFromCsr made.

neurons: The distinct neurons, ascending, own and shared ones.
neuron_splits: Entries [splits[u], splits[u + 1]) are those of neurons[u].
entry_row: The sample of each entry.
entry_index: Its place among the rows' own ids.
shared_places: Where `neurons` holds the shared ones.
)doc");

}  // namespace
}  // namespace dslide
