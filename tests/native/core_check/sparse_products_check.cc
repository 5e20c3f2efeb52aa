#include <algorithm>

#include "custom_ops/core/sparse_products.h"
#include "tests/native/core_check/check.h"
#include "tests/native/core_check/layer.h"

namespace dslide {
namespace {

// What the products of a layer must give.
struct Products {
  Sums logits, shared_logits, own_y, y, gradient, entry_sums;

  Products(const Shape& shape, const Layer& layer)
      : logits(layer.own.ids.size()),
        shared_logits(layer.shared_coef.size()),
        own_y(shape.rows * shape.d),
        y(shape.rows * shape.d),
        gradient(shape.units * shape.d),
        entry_sums(shape.units) {
    const int64_t shared = layer.shared.size();
    for (int64_t row = 0; row < shape.rows; ++row) {
      for (int64_t e = layer.own.splits[row]; e < layer.own.splits[row + 1]; ++e) {
        Add(layer, shape.d, row, layer.own.ids[e], layer.coef[e], e, &logits);
        for (int64_t i = 0; i < shape.d; ++i) {
          own_y.Add(row * shape.d + i,
                    double{layer.coef[e]} * layer.w[layer.own.ids[e] * shape.d + i]);
        }
      }
      for (int64_t s = 0; s < shared; ++s) {
        const int64_t at = row * shared + s;
        Add(layer, shape.d, row, layer.shared[s], layer.shared_coef[at], at, &shared_logits);
      }
    }
  }

 private:
  void Add(const Layer& layer, int64_t d, int64_t row, int64_t unit, double coef, int64_t at,
           Sums* to) {
    to->Add(at, layer.bias[unit]);
    entry_sums.Add(unit, coef);
    for (int64_t i = 0; i < d; ++i) {
      const double x = layer.x[row * d + i], w = layer.w[unit * d + i];
      to->Add(at, x * w);
      y.Add(row * d + i, coef * w);
      gradient.Add(unit * d + i, coef * x);
    }
  }
};

void CheckLogits(const Shape& shape, const Layer& layer, const Products& exact,
                 std::vector<Floats>* results, const ParallelFor& pool) {
  const View view(layer, shape.units, Alone);
  Floats logits(layer.own.ids.size()), shared_logits(layer.shared_coef.size());
  ActiveLogits(view.view(), layer.x.data(), layer.w.data(), layer.bias.data(), shape.d,
               logits.data(), pool);
  CheckClose(logits, exact.logits.exact, exact.logits.Bound(), shape.Name("ActiveLogits"));
  SharedLogits(view.view(), layer.x.data(), shape.rows, layer.w.data(), layer.bias.data(), shape.d,
               shared_logits.data(), pool);
  CheckClose(shared_logits, exact.shared_logits.exact, exact.shared_logits.Bound(),
             shape.Name("SharedLogits"));
  results->insert(results->end(), {logits, shared_logits});
  // A layer of biases that are 0 is one without.
  const Floats zeros(shape.units, 0.0f);
  Floats with(shared_logits), without(shared_logits);
  SharedLogits(view.view(), layer.x.data(), shape.rows, layer.w.data(), zeros.data(), shape.d,
               with.data(), pool);
  SharedLogits(view.view(), layer.x.data(), shape.rows, layer.w.data(), nullptr, shape.d,
               without.data(), pool);
  Check(with == without, shape.Name("SharedLogits without bias"));
}

void CheckSumsByRow(const Shape& shape, const Layer& layer, const Products& exact,
                    std::vector<Floats>* results, const ParallelFor& pool) {
  const View view(layer, shape.units, Alone);
  Floats own_y(shape.rows * shape.d), y(shape.rows * shape.d);
  CsrMatMul(layer.own.view(), layer.coef.data(), layer.w.data(), shape.d, own_y.data(), pool);
  CheckClose(own_y, exact.own_y.exact, exact.own_y.Bound(), shape.Name("CsrMatMul"));
  CsrMatMulByNeuron(view.view(), shape.rows, layer.coef.data(), layer.w.data(), shape.d, y.data(),
                    pool);
  CheckClose(y, exact.own_y.exact, exact.own_y.Bound(), shape.Name("CsrMatMulByNeuron"));
  results->insert(results->end(), {own_y, y});
  AddSharedMatMul(view.view(), shape.rows, layer.shared_coef.data(), layer.w.data(), shape.d,
                  y.data(), pool);
  CheckClose(y, exact.y.exact, exact.y.Bound(), shape.Name("AddSharedMatMul"));
  results->push_back(y);
}

void CheckSumsByNeuron(const Shape& shape, const Layer& layer, const Products& exact,
                       std::vector<Floats>* results, const ParallelFor& pool) {
  const View view(layer, shape.units, Alone);
  const int64_t count = view.neurons.size(), d = shape.d;
  Floats rows(count * d), sums(count), gradient(shape.units * d), all_sums(shape.units);
  RowGradient(view.view(), layer.factors(shape), rows.data(), pool);
  GradientFactors factors = layer.factors(shape);
  factors.x = nullptr;  // not used by EntrySums
  EntrySums(view.view(), factors, sums.data(), pool);
  for (int64_t u = 0; u < count; ++u) {
    std::copy_n(rows.begin() + u * d, d, gradient.begin() + view.neurons[u] * d);
    all_sums[view.neurons[u]] = sums[u];
  }
  CheckClose(gradient, exact.gradient.exact, exact.gradient.Bound(), shape.Name("RowGradient"));
  CheckClose(all_sums, exact.entry_sums.exact, exact.entry_sums.Bound(), shape.Name("EntrySums"));
  results->insert(results->end(), {rows, sums});
}

void CheckProducts(const Shape& shape, const Layer& layer) {
  const Products exact(shape, layer);
  std::vector<Floats> first;
  for (const ParallelFor& pool : kPools) {
    std::vector<Floats> all;
    CheckLogits(shape, layer, exact, &all, pool);
    CheckSumsByRow(shape, layer, exact, &all, pool);
    CheckSumsByNeuron(shape, layer, exact, &all, pool);
    CheckSameByThreads(all, &first, shape.Name("products"));
  }
}

void CheckAllProducts() {
  ForLayers(31,
            [](const Shape& shape, const Layer& layer, Source*) { CheckProducts(shape, layer); });
}

const Checks kChecks = {CheckAllProducts};

}  // namespace
}  // namespace dslide
