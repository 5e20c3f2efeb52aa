#include "custom_ops/ops/shapes.h"

namespace dslide {
namespace {

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
      const int64_t projections = IntAttr(c, "projections");
      const int64_t nonzeros = IntAttr(c, "nonzeros");
      c->set_output(0, c->Matrix(projections, nonzeros));
      c->set_output(1, c->Matrix(projections, nonzeros));
      return absl::OkStatus();
    })
    .Doc(R"doc(
Coordinates and weights of sparse random projections, others for each generation.

index: (projections, nonzeros), distinct in a projection.
value: The weights of these coordinates.
)doc");

REGISTER_OP("DslideSimHashCodes")
    .Input("x: float")
    .Input("index: int32")
    .Input("value: float")
    .Attr("bits: int >= 1")
    .Attr("tables: int >= 1")
    .Output("codes: int32")
    .SetShapeFn([](InferenceContext* c) {
      TF_RETURN_IF_ERROR(CheckRanks(c, 0, {2, 2, 2}));
      c->set_output(0, c->Matrix(c->Dim(c->input(0), 0), IntAttr(c, "tables")));
      return absl::OkStatus();
    })
    .Doc(R"doc(
Codes of vectors by the signs of sparse projections.

x: (n, dim); an error names a row that is not finite.
codes: (n, tables) in [0, 2^bits).
)doc");

REGISTER_OP("DslideProjectionCodes")
    .Input("x: float")
    .Input("projections: float")
    .Attr("bits: int >= 1")
    .Attr("tables: int >= 1")
    .Output("codes: int32")
    .SetShapeFn([](InferenceContext* c) {
      TF_RETURN_IF_ERROR(CheckRanks(c, 0, {2, 2}));
      c->set_output(0, c->Matrix(c->Dim(c->input(0), 0), IntAttr(c, "tables")));
      return absl::OkStatus();
    })
    .Doc(R"doc(
Codes of vectors by the signs of dense projections.

projections: (tables * bits, dim + 1); the last column is added to the products with x.
codes: (n, tables) in [0, 2^bits).
)doc");

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
    })
    .Doc(R"doc(
Trains projections by which queries and the neurons of high logits share codes.

Both come back unchanged where there is nothing to learn from.

centre: Whether to begin with offsets that centre the vectors.
round: Each gives other draws.
)doc");

REGISTER_OP("DslideDwtaParameters")
    .Input("generation: int64")
    .Attr("seed: int")
    .Attr("dim: int >= 1")
    .Attr("bins: int >= 1")
    .Attr("bin_size: int >= 1")
    .Output("index: int32")
    .SetShapeFn([](InferenceContext* c) {
      TF_RETURN_IF_ERROR(CheckRanks(c, 0, {0}));
      c->set_output(0, c->Matrix(IntAttr(c, "bins"), IntAttr(c, "bin_size")));
      return absl::OkStatus();
    })
    .Doc(R"doc(
Coordinates of the bins of winner-take-all hashing, others for each generation.
)doc");

REGISTER_OP("DslideDwtaCodes")
    .Input("x: float")
    .Input("index: int32")
    .Attr("tables: int >= 1")
    .Attr("address_bits: int >= 0")
    .Attr("densify: bool = true")
    .Output("codes: int32")
    .SetShapeFn([](InferenceContext* c) {
      TF_RETURN_IF_ERROR(CheckRanks(c, 0, {2, 2}));
      c->set_output(0, c->Matrix(c->Dim(c->input(0), 0), IntAttr(c, "tables")));
      return absl::OkStatus();
    })
    .Doc(R"doc(
Codes of vectors by (densified) winner-take-all hashing.

densify: Whether a bin without values borrows the code of another one.
codes: (n, tables) in [0, 2^address_bits).
)doc");

REGISTER_OP("DslideMinHashParameters")
    .Input("generation: int64")
    .Attr("seed: int")
    .Attr("dim: int >= 1")
    .Attr("permutations: int >= 1")
    .Output("place: int32")
    .SetShapeFn([](InferenceContext* c) {
      TF_RETURN_IF_ERROR(CheckRanks(c, 0, {0}));
      c->set_output(0, c->Matrix(IntAttr(c, "permutations"), IntAttr(c, "dim")));
      return absl::OkStatus();
    })
    .Doc(R"doc(
Where each permutation puts the coordinates, others for each generation.
)doc");

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
      c->set_output(0, c->Matrix(c->Dim(c->input(0), 0), IntAttr(c, "tables")));
      return absl::OkStatus();
    })
    .Doc(R"doc(
Codes of vectors by one-permutation minwise hashing of their largest coordinates.

top: How many coordinates are a vector's set.
codes: (n, tables) in [0, 2^address_bits).
)doc");

REGISTER_OP("DslideBuildTables")
    .Input("codes: int32")
    .Attr("buckets: int >= 1")
    .Output("bucket_ptr: int32")
    .Output("neuron_ids: int32")
    .SetShapeFn([](InferenceContext* c) {
      TF_RETURN_IF_ERROR(CheckRanks(c, 0, {2}));
      const DimensionHandle tables = c->Dim(c->input(0), 1);
      c->set_output(0, c->Matrix(tables, IntAttr(c, "buckets") + 1));
      c->set_output(1, c->Matrix(tables, c->Dim(c->input(0), 0)));
      return absl::OkStatus();
    })
    .Doc(R"doc(
Hash tables from the codes (n, tables) of n neurons.

bucket_ptr: (tables, buckets + 1); where the buckets of a table begin.
neuron_ids: (tables, n); the neurons of a table, ascending in each bucket.
)doc");

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
    })
    .Doc(R"doc(
Puts those neurons first in each bucket that it would keep if it were shorter.

policy: Any of them with equal probability, or the last ones.
)doc");

}  // namespace
}  // namespace dslide
