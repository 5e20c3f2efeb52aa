"""Products between samples, weights and active sets."""

from typing import Any

import tensorflow as tf

from tf_dslide._native.active_sets import CscView, csc_from_csr
from tf_dslide._native.factored_slices import FactoredSlices, GradientFactors
from tf_dslide._native.loader import load
from tf_dslide._native.types import ActiveLogits, ActiveSet, Csr, no_neurons
from tf_dslide._native.variables import bias_handles, handle, shape_of

_ops = load()


def active_logits(x: tf.Tensor, view: CscView, kernel: Any, bias: Any = None) -> ActiveLogits:
    """`<x[row], kernel[id]> + bias[id]` of each row's own and shared neurons."""
    return ActiveLogits(
        *_ops.dslide_active_logits(
            x=x,
            **view._asdict(),
            kernel=handle(kernel),
            bias=bias_handles(bias),
        )
    )


@tf.RegisterGradient("DslideActiveLogits")
def _active_logits_gradient(
    op: tf.Operation, upstream: tf.Tensor, shared_upstream: tf.Tensor
) -> list[Any]:
    x, view, kernel, *bias = op.inputs
    factors = GradientFactors(x, upstream, shared_upstream, CscView(view))
    x_gradient = _ops.dslide_active_mat_mul(
        coef=upstream, shared_coef=shared_upstream, view=view, like=x, kernel=kernel
    )
    gradients = [x_gradient, None, row_gradient(factors, kernel)]
    for b in bias:
        sums = _ops.dslide_entry_sums(**factors.inputs())
        gradients.append(FactoredSlices(sums, factors.view.neurons, shape_of(b)))
    return gradients


def csr_mat_mul(coef: tf.Tensor, rows: Csr, kernel: Any) -> tf.Tensor:
    """The sum of `coef * kernel[id]` over each row's ids, `(rows, d) float32`."""
    return _ops.dslide_csr_mat_mul(
        coef=coef,
        row_splits=rows.row_splits,
        ids=rows.ids,
        kernel=handle(kernel),
        columns=kernel.shape[0],
    )


@tf.RegisterGradient("DslideCsrMatMul")
def _csr_mat_mul_gradient(op: tf.Operation, upstream: tf.Tensor) -> list[Any]:
    coef, row_splits, ids, kernel = op.inputs
    active = ActiveSet(Csr(row_splits, ids), no_neurons())
    view = csc_from_csr(active, op.get_attr("columns"))
    # `upstream` is nobody's input: what is not finite in it is for the optimizer to see.
    coef_gradient, nothing_shared = _ops.dslide_active_logits(
        x=upstream, **view._asdict(), kernel=kernel, bias=[], check_input=False
    )
    factors = GradientFactors(upstream, coef, nothing_shared, view)
    return [coef_gradient, None, None, row_gradient(factors, kernel)]


def row_gradient(factors: GradientFactors, variable: tf.Tensor) -> FactoredSlices:
    """The gradient of the weights behind a resource."""
    values = _ops.dslide_row_gradient(**factors.inputs())
    return FactoredSlices(values, factors.view.neurons, shape_of(variable), factors)
