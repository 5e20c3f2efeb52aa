#include <algorithm>

#include "custom_ops/core/hashing.h"
#include "custom_ops/core/projection_learning.h"
#include "custom_ops/core/random.h"
#include "custom_ops/kernels/glue.h"
#include "custom_ops/kernels/huge_pages.h"

namespace dslide {
namespace {

using tensorflow::DEVICE_CPU;

// The seed of a generation of hash functions, which is input 0; the first is that of `seed` itself.
absl::Status GenerationSeed(OpKernelContext* ctx, int64_t seed, uint64_t* result) {
  TF_RETURN_IF_ERROR(ExpectRank(ctx, 0, 0));
  const int64_t generation = ctx->input(0).scalar<int64_t>()();
  *result = generation == 0 ? static_cast<uint64_t>(seed) : Mix(seed, generation);
  return absl::OkStatus();
}

class SimHashParametersOp : public OpKernel {
 public:
  explicit SimHashParametersOp(OpKernelConstruction* ctx) : OpKernel(ctx) {
    OP_REQUIRES_OK(ctx, ctx->GetAttr("seed", &seed_));
    OP_REQUIRES_OK(ctx, GetCount(ctx, "dim", &dim_));
    OP_REQUIRES_OK(ctx, GetCount(ctx, "projections", &projections_));
    OP_REQUIRES_OK(ctx, GetCount(ctx, "nonzeros", &nonzeros_));
    OP_REQUIRES(ctx, nonzeros_ <= dim_, absl::InvalidArgumentError("nonzeros must not exceed dim"));
  }

  void Compute(OpKernelContext* ctx) override {
    uint64_t seed = 0;
    Tensor *index, *value;
    OP_REQUIRES_OK(ctx, GenerationSeed(ctx, seed_, &seed));
    OP_REQUIRES_OK(ctx, Allocate(ctx, 0, {projections_, nonzeros_}, &index));
    OP_REQUIRES_OK(ctx, Allocate(ctx, 1, {projections_, nonzeros_}, &value));
    MakeSimHash(seed, dim_, projections_, nonzeros_, index->flat<int32_t>().data(),
                value->flat<float>().data());
  }

 private:
  int64_t seed_, dim_, projections_, nonzeros_;
};

// InvalidArgument unless all coordinates of a hash lie in [0, dim).
absl::Status ExpectCoordinates(const OpKernelContext* ctx, const Tensor& index, int64_t dim) {
  const auto flat = index.flat<int32_t>();
  for (int64_t i = 0; i < flat.size(); ++i) {
    if (flat(i) < 0 || flat(i) >= dim) {
      return Invalid(ctx, "the hash was made for vectors longer than " + std::to_string(dim) +
                              ": it names coordinate " + std::to_string(flat(i)));
    }
  }
  return absl::OkStatus();
}

// "the vectors to hash must be finite; row 3 holds nan at column 0".
absl::Status NotFinite(const OpKernelContext* ctx, const std::string& error) {
  return error.empty() ? absl::OkStatus()
                       : Invalid(ctx,
                                 "the vectors to hash (weights of neurons, or hidden "
                                 "activations of samples) must be finite; " +
                                     error);
}

class SimHashCodesOp : public OpKernel {
 public:
  explicit SimHashCodesOp(OpKernelConstruction* ctx) : OpKernel(ctx) {
    OP_REQUIRES_OK(ctx, GetCount(ctx, "bits", &bits_));
    OP_REQUIRES_OK(ctx, GetCount(ctx, "tables", &tables_));
    OP_REQUIRES(ctx, bits_ <= 30, absl::InvalidArgumentError("bits must not exceed 30"));
  }

  void Compute(OpKernelContext* ctx) override {
    for (int i = 0; i < 3; ++i) OP_REQUIRES_OK(ctx, ExpectRank(ctx, i, 2));
    const Tensor& x = ctx->input(0);
    const Tensor& index = ctx->input(1);
    const Tensor& value = ctx->input(2);
    OP_REQUIRES_OK(ctx, ExpectEqual(ctx, "projections", index.dim_size(0), bits_ * tables_));
    OP_REQUIRES(ctx, index.shape() == value.shape() && index.dim_size(1) > 0,
                absl::InvalidArgumentError("index and value must have one shape and not be empty"));
    OP_REQUIRES_OK(ctx, ExpectCoordinates(ctx, index, x.dim_size(1)));
    Tensor* codes;
    OP_REQUIRES_OK(ctx, Allocate(ctx, 0, {x.dim_size(0), tables_}, &codes));
    UseHugePages(codes->data(), codes->TotalBytes());
    const SimHash hash = {x.dim_size(1),
                          bits_,
                          tables_,
                          index.dim_size(1),
                          index.flat<int32_t>().data(),
                          value.flat<float>().data()};
    OP_REQUIRES_OK(ctx, NotFinite(ctx, SimHashCodes(hash, x.flat<float>().data(), x.dim_size(0),
                                                    codes->flat<int32_t>().data(), PoolOf(ctx))));
  }

 private:
  int64_t bits_, tables_;
};

class ProjectionCodesOp : public OpKernel {
 public:
  explicit ProjectionCodesOp(OpKernelConstruction* ctx) : OpKernel(ctx) {
    OP_REQUIRES_OK(ctx, GetCount(ctx, "bits", &bits_));
    OP_REQUIRES_OK(ctx, GetCount(ctx, "tables", &tables_));
    OP_REQUIRES(ctx, bits_ <= 30, absl::InvalidArgumentError("bits must not exceed 30"));
  }

  void Compute(OpKernelContext* ctx) override {
    for (int i = 0; i < 2; ++i) OP_REQUIRES_OK(ctx, ExpectRank(ctx, i, 2));
    const Tensor& x = ctx->input(0);
    const Tensor& projections = ctx->input(1);
    OP_REQUIRES_OK(ctx, ExpectEqual(ctx, "projections", projections.dim_size(0), bits_ * tables_));
    OP_REQUIRES_OK(ctx, ExpectEqual(ctx, "columns of the projections", projections.dim_size(1),
                                    x.dim_size(1) + 1));
    Tensor* codes;
    OP_REQUIRES_OK(ctx, Allocate(ctx, 0, {x.dim_size(0), tables_}, &codes));
    UseHugePages(codes->data(), codes->TotalBytes());
    const OffsetProjections hash = {x.dim_size(1), bits_, tables_,
                                    projections.flat<float>().data()};
    OP_REQUIRES_OK(ctx,
                   NotFinite(ctx, ProjectionCodes(hash, x.flat<float>().data(), x.dim_size(0),
                                                  codes->flat<int32_t>().data(), PoolOf(ctx))));
  }

 private:
  int64_t bits_, tables_;
};

class LearnProjectionsOp : public OpKernel {
 public:
  explicit LearnProjectionsOp(OpKernelConstruction* ctx) : OpKernel(ctx) {
    OP_REQUIRES_OK(ctx, GetCount(ctx, "bits", &bits_));
    OP_REQUIRES_OK(ctx, GetCount(ctx, "tables", &tables_));
    OP_REQUIRES_OK(ctx, ctx->GetAttr("steps", &steps_));
    OP_REQUIRES_OK(ctx, ctx->GetAttr("learning_rate", &learning_rate_));
    OP_REQUIRES_OK(ctx, ctx->GetAttr("seed", &seed_));
    OP_REQUIRES(ctx, bits_ <= 30, absl::InvalidArgumentError("bits must not exceed 30"));
    OP_REQUIRES(ctx, learning_rate_ > 0 && learning_rate_ - learning_rate_ == 0,
                absl::InvalidArgumentError("learning_rate must be positive and finite"));
  }

  void Compute(OpKernelContext* ctx) override {
    const Tensor &queries = ctx->input(0), &neurons = ctx->input(1), &bias = ctx->input(2);
    for (int i : {0, 1, 3, 4}) OP_REQUIRES_OK(ctx, ExpectRank(ctx, i, 2));
    for (int i : {5, 6}) OP_REQUIRES_OK(ctx, ExpectRank(ctx, i, 0));
    OP_REQUIRES_OK(ctx, ExpectRank(ctx, 2, 1));
    const int64_t dim = queries.dim_size(1);
    OP_REQUIRES_OK(ctx, ExpectEqual(ctx, "columns of neurons", neurons.dim_size(1), dim));
    OP_REQUIRES_OK(ctx, ExpectEqual(ctx, "size of bias", bias.dim_size(0), neurons.dim_size(0)));
    Tensor* learned[2];
    for (int side = 0; side < 2; ++side) {
      const Tensor& given = ctx->input(3 + side);
      OP_REQUIRES_OK(ctx, ExpectEqual(ctx, "projections", given.dim_size(0), bits_ * tables_));
      OP_REQUIRES_OK(ctx,
                     ExpectEqual(ctx, "columns of the projections", given.dim_size(1), dim + 1));
      OP_REQUIRES_OK(ctx, Allocate(ctx, side, {bits_ * tables_, dim + 1}, &learned[side]));
      std::copy_n(given.flat<float>().data(), given.NumElements(),
                  learned[side]->flat<float>().data());
    }
    const uint64_t round = ctx->input(6).scalar<int64_t>()();
    const ProjectionLearning problem = {dim,
                                        bits_,
                                        tables_,
                                        queries.flat<float>().data(),
                                        queries.dim_size(0),
                                        neurons.flat<float>().data(),
                                        bias.flat<float>().data(),
                                        neurons.dim_size(0),
                                        ctx->input(5).scalar<bool>()(),
                                        steps_,
                                        learning_rate_,
                                        Mix(seed_, round)};
    LearnProjections(problem, learned[0]->flat<float>().data(), learned[1]->flat<float>().data(),
                     PoolOf(ctx));
  }

 private:
  int64_t bits_, tables_, steps_, seed_;
  float learning_rate_;
};

class DwtaParametersOp : public OpKernel {
 public:
  explicit DwtaParametersOp(OpKernelConstruction* ctx) : OpKernel(ctx) {
    OP_REQUIRES_OK(ctx, ctx->GetAttr("seed", &seed_));
    OP_REQUIRES_OK(ctx, GetCount(ctx, "dim", &dim_));
    OP_REQUIRES_OK(ctx, GetCount(ctx, "bins", &bins_));
    OP_REQUIRES_OK(ctx, GetCount(ctx, "bin_size", &bin_size_));
    OP_REQUIRES(ctx, bin_size_ <= dim_, absl::InvalidArgumentError("bin_size must not exceed dim"));
  }

  void Compute(OpKernelContext* ctx) override {
    uint64_t seed = 0;
    Tensor* index;
    OP_REQUIRES_OK(ctx, GenerationSeed(ctx, seed_, &seed));
    OP_REQUIRES_OK(ctx, Allocate(ctx, 0, {bins_, bin_size_}, &index));
    MakeDwta(seed, dim_, bins_, bin_size_, index->flat<int32_t>().data());
  }

 private:
  int64_t seed_, dim_, bins_, bin_size_;
};

class DwtaCodesOp : public OpKernel {
 public:
  explicit DwtaCodesOp(OpKernelConstruction* ctx) : OpKernel(ctx) {
    OP_REQUIRES_OK(ctx, GetCount(ctx, "tables", &tables_));
    OP_REQUIRES_OK(ctx, GetCount(ctx, "address_bits", &address_bits_));
    OP_REQUIRES_OK(ctx, ctx->GetAttr("densify", &densify_));
    OP_REQUIRES(ctx, address_bits_ <= 30,
                absl::InvalidArgumentError("address_bits must not exceed 30"));
  }

  void Compute(OpKernelContext* ctx) override {
    for (int i = 0; i < 2; ++i) OP_REQUIRES_OK(ctx, ExpectRank(ctx, i, 2));
    const Tensor& x = ctx->input(0);
    const Tensor& index = ctx->input(1);
    const int64_t bin_size = index.dim_size(1), bins_per_table = index.dim_size(0) / tables_;
    OP_REQUIRES_OK(ctx,
                   ExpectEqual(ctx, "number of bins", index.dim_size(0), bins_per_table * tables_));
    OP_REQUIRES(ctx, bins_per_table > 0,
                absl::InvalidArgumentError("a table must have at least one bin"));
    OP_REQUIRES(ctx, bin_size > 0 && (bin_size & (bin_size - 1)) == 0,
                absl::InvalidArgumentError("bin_size must be a power of two; received " +
                                           std::to_string(bin_size)));
    OP_REQUIRES(ctx, bins_per_table * (63 - __builtin_clzll(bin_size)) <= 60,
                absl::InvalidArgumentError("the codes of one table's bins must fit 60 bits"));
    OP_REQUIRES_OK(ctx, ExpectCoordinates(ctx, index, x.dim_size(1)));
    Tensor* codes;
    OP_REQUIRES_OK(ctx, Allocate(ctx, 0, {x.dim_size(0), tables_}, &codes));
    UseHugePages(codes->data(), codes->TotalBytes());
    const Dwta hash = {x.dim_size(1), bins_per_table, tables_,
                       bin_size,      address_bits_,  index.flat<int32_t>().data(),
                       densify_};
    OP_REQUIRES_OK(ctx, NotFinite(ctx, DwtaCodes(hash, x.flat<float>().data(), x.dim_size(0),
                                                 codes->flat<int32_t>().data(), PoolOf(ctx))));
  }

 private:
  int64_t tables_, address_bits_;
  bool densify_;
};

class MinHashParametersOp : public OpKernel {
 public:
  explicit MinHashParametersOp(OpKernelConstruction* ctx) : OpKernel(ctx) {
    OP_REQUIRES_OK(ctx, ctx->GetAttr("seed", &seed_));
    OP_REQUIRES_OK(ctx, GetCount(ctx, "dim", &dim_));
    OP_REQUIRES_OK(ctx, GetCount(ctx, "permutations", &permutations_));
  }

  void Compute(OpKernelContext* ctx) override {
    uint64_t seed = 0;
    Tensor* place;
    OP_REQUIRES_OK(ctx, GenerationSeed(ctx, seed_, &seed));
    OP_REQUIRES_OK(ctx, Allocate(ctx, 0, {permutations_, dim_}, &place));
    MakeMinHash(seed, dim_, permutations_, place->flat<int32_t>().data());
  }

 private:
  int64_t seed_, dim_, permutations_;
};

class MinHashCodesOp : public OpKernel {
 public:
  explicit MinHashCodesOp(OpKernelConstruction* ctx) : OpKernel(ctx) {
    OP_REQUIRES_OK(ctx, GetCount(ctx, "top", &top_));
    OP_REQUIRES_OK(ctx, GetCount(ctx, "bins_per_table", &bins_per_table_));
    OP_REQUIRES_OK(ctx, GetCount(ctx, "tables", &tables_));
    OP_REQUIRES_OK(ctx, GetCount(ctx, "bins_per_permutation", &bins_per_permutation_));
    OP_REQUIRES_OK(ctx, GetCount(ctx, "address_bits", &address_bits_));
    OP_REQUIRES(ctx, address_bits_ <= 30,
                absl::InvalidArgumentError("address_bits must not exceed 30"));
    constexpr int64_t kMost = int64_t{1} << 24;
    OP_REQUIRES(ctx,
                bins_per_table_ <= kMost && tables_ <= kMost / bins_per_table_ &&
                    bins_per_permutation_ <= kMost,
                absl::InvalidArgumentError("at most 2 ** 24 bins"));
  }

  void Compute(OpKernelContext* ctx) override {
    for (int i = 0; i < 2; ++i) OP_REQUIRES_OK(ctx, ExpectRank(ctx, i, 2));
    const Tensor& x = ctx->input(0);
    const Tensor& place = ctx->input(1);
    OP_REQUIRES_OK(ctx, ExpectEqual(ctx, "columns of place", place.dim_size(1), x.dim_size(1)));
    OP_REQUIRES_OK(
        ctx, ExpectEqual(ctx, "number of permutations", place.dim_size(0),
                         MinHashPermutations(bins_per_table_ * tables_, bins_per_permutation_)));
    OP_REQUIRES_OK(ctx, ExpectCoordinates(ctx, place, x.dim_size(1)));
    Tensor* codes;
    OP_REQUIRES_OK(ctx, Allocate(ctx, 0, {x.dim_size(0), tables_}, &codes));
    UseHugePages(codes->data(), codes->TotalBytes());
    const MinHash hash = {x.dim_size(1),
                          top_,
                          bins_per_table_,
                          tables_,
                          bins_per_permutation_,
                          address_bits_,
                          place.flat<int32_t>().data()};
    OP_REQUIRES_OK(ctx, NotFinite(ctx, MinHashCodes(hash, x.flat<float>().data(), x.dim_size(0),
                                                    codes->flat<int32_t>().data(), PoolOf(ctx))));
  }

 private:
  int64_t top_, bins_per_table_, tables_, bins_per_permutation_, address_bits_;
};

class BuildTablesOp : public OpKernel {
 public:
  explicit BuildTablesOp(OpKernelConstruction* ctx) : OpKernel(ctx) {
    OP_REQUIRES_OK(ctx, GetCount(ctx, "buckets", &buckets_));
  }

  void Compute(OpKernelContext* ctx) override {
    OP_REQUIRES_OK(ctx, ExpectRank(ctx, 0, 2));
    const Tensor& codes = ctx->input(0);
    const int64_t neurons = codes.dim_size(0), tables = codes.dim_size(1);
    Tensor *ptr, *ids;
    OP_REQUIRES_OK(ctx, Allocate(ctx, 0, {tables, buckets_ + 1}, &ptr));
    OP_REQUIRES_OK(ctx, Allocate(ctx, 1, {tables, neurons}, &ids));
    UseHugePages(ids->data(), ids->TotalBytes());
    OP_REQUIRES_OK(ctx, Invalid(ctx, BuildTables(codes.flat<int32_t>().data(), neurons, tables,
                                                 buckets_, ptr->flat<int32_t>().data(),
                                                 ids->flat<int32_t>().data(), PoolOf(ctx))));
  }

 private:
  int64_t buckets_;
};

class ArrangeBucketsOp : public OpKernel {
 public:
  explicit ArrangeBucketsOp(OpKernelConstruction* ctx) : OpKernel(ctx) {
    std::string policy;
    OP_REQUIRES_OK(ctx, ctx->GetAttr("policy", &policy));
    OP_REQUIRES_OK(ctx, ctx->GetAttr("seed", &seed_));
    policy_ = policy == "fifo" ? BucketPolicy::kFifo : BucketPolicy::kReservoir;
  }

  void Compute(OpKernelContext* ctx) override {
    for (int i = 0; i < 2; ++i) OP_REQUIRES_OK(ctx, ExpectRank(ctx, i, 2));
    OP_REQUIRES_OK(ctx, ExpectRank(ctx, 2, 0));
    const Tensor& ptr = ctx->input(0);
    const Tensor& ids = ctx->input(1);
    const int64_t tables = ptr.dim_size(0), buckets = ptr.dim_size(1) - 1;
    OP_REQUIRES_OK(ctx, ExpectEqual(ctx, "tables in neuron_ids", ids.dim_size(0), tables));
    OP_REQUIRES(ctx, buckets >= 0, absl::InvalidArgumentError("bucket_ptr must have columns"));
    Tensor* arranged;
    OP_REQUIRES_OK(ctx, ctx->forward_input_or_allocate_output({1}, 0, ids.shape(), &arranged));
    int32_t* out = arranged->flat<int32_t>().data();
    if (out != ids.flat<int32_t>().data()) {
      UseHugePages(arranged->data(), arranged->TotalBytes());
      std::copy_n(ids.flat<int32_t>().data(), ids.NumElements(), out);
    }
    const uint64_t seed = Mix(seed_, ctx->input(2).scalar<int64_t>()());
    OP_REQUIRES_OK(ctx,
                   Invalid(ctx, ArrangeBuckets(ptr.flat<int32_t>().data(), tables, buckets,
                                               ids.dim_size(1), policy_, seed, out, PoolOf(ctx))));
  }

 private:
  int64_t seed_;
  BucketPolicy policy_;
};

REGISTER_KERNEL_BUILDER(Name("DslideSimHashParameters").Device(DEVICE_CPU), SimHashParametersOp);
REGISTER_KERNEL_BUILDER(Name("DslideSimHashCodes").Device(DEVICE_CPU), SimHashCodesOp);
REGISTER_KERNEL_BUILDER(Name("DslideProjectionCodes").Device(DEVICE_CPU), ProjectionCodesOp);
REGISTER_KERNEL_BUILDER(Name("DslideLearnProjections").Device(DEVICE_CPU), LearnProjectionsOp);
REGISTER_KERNEL_BUILDER(Name("DslideDwtaParameters").Device(DEVICE_CPU), DwtaParametersOp);
REGISTER_KERNEL_BUILDER(Name("DslideDwtaCodes").Device(DEVICE_CPU), DwtaCodesOp);
REGISTER_KERNEL_BUILDER(Name("DslideMinHashParameters").Device(DEVICE_CPU), MinHashParametersOp);
REGISTER_KERNEL_BUILDER(Name("DslideMinHashCodes").Device(DEVICE_CPU), MinHashCodesOp);
REGISTER_KERNEL_BUILDER(Name("DslideBuildTables").Device(DEVICE_CPU), BuildTablesOp);
REGISTER_KERNEL_BUILDER(Name("DslideArrangeBuckets").Device(DEVICE_CPU), ArrangeBucketsOp);

}  // namespace
}  // namespace dslide
