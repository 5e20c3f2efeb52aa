"""Passes over all units, block by block."""

from typing import Any

import tensorflow as tf

from tf_dslide._native.loader import load
from tf_dslide._native.softmax import SoftmaxParts, SoftmaxTotals
from tf_dslide._native.types import Csr
from tf_dslide._native.variables import bias_handles, handle

_ops = load()


def top_k(x: tf.Tensor, kernel: Any, bias: Any, k: int) -> tuple[tf.Tensor, tf.Tensor]:
    """The `k` best of all units for each row of `x`: ids `int32` and logits, `(rows, k)`."""
    return _ops.dslide_top_k(x=x, kernel=handle(kernel), bias=bias_handles(bias), k=k)


def _full_crossentropy(x: tf.Tensor, labels: Csr, kernel: Any, bias: Any) -> Any:
    return _ops.dslide_full_crossentropy(
        x=x,
        label_splits=labels.row_splits,
        label_ids=labels.ids,
        kernel=handle(kernel),
        bias=bias_handles(bias),
    )


def full_crossentropy(x: tf.Tensor, labels: Csr, kernel: Any, bias: Any) -> tf.Tensor:
    """Cross-entropy of each row over all units, `(rows,) float32`, block by block."""
    return _full_crossentropy(x, labels, kernel, bias)[0]


@tf.RegisterGradient("DslideFullCrossentropy")
def _full_crossentropy_gradient(op: tf.Operation, upstream: tf.Tensor, *_: Any) -> list[Any]:
    x, label_splits, label_ids, *variables = op.inputs
    labels = Csr(label_splits, label_ids)
    label_count = tf.cast(labels.row_lengths(), tf.float32)
    totals = SoftmaxTotals(op.outputs[1], op.outputs[2], label_count)
    x_gradient, kernel_gradient, bias_gradient = full_crossentropy_gradient(
        x, labels, variables[0], variables[1:], totals, upstream
    )
    return [x_gradient, None, None, kernel_gradient, *bias_gradient]


def full_softmax_parts(x: tf.Tensor, labels: Csr, kernel: Any, bias: Any) -> SoftmaxParts:
    """What a layer's units add to softmaxes over more units than these, block by block.

    It has no gradient; `full_crossentropy_gradient` is that of the whole.
    """
    return SoftmaxParts(*map(tf.stop_gradient, _full_crossentropy(x, labels, kernel, bias)[1:]))


def crossentropy_of_parts(
    losses: tf.Tensor, x: tf.Tensor, labels: Csr, kernel: Any, bias: Any, totals: SoftmaxTotals
) -> tf.Tensor:
    """The given losses, with their gradient by the part of the units that a layer has."""
    return _ops.dslide_crossentropy_of_parts(
        x=x,
        label_splits=labels.row_splits,
        label_ids=labels.ids,
        losses=losses,
        **totals._asdict(),
        kernel=handle(kernel),
        bias=bias_handles(bias),
    )


@tf.RegisterGradient("DslideCrossentropyOfParts")
def _crossentropy_of_parts_gradient(op: tf.Operation, upstream: tf.Tensor) -> list[Any]:
    x, label_splits, label_ids, _, *totals = op.inputs[:7]
    kernel, *bias = op.inputs[7:]
    x_gradient, kernel_gradient, bias_gradient = full_crossentropy_gradient(
        x, Csr(label_splits, label_ids), kernel, bias, SoftmaxTotals(*totals), upstream
    )
    nothing = [None] * (3 + len(totals))
    return [x_gradient, *nothing, kernel_gradient, *bias_gradient]


def full_crossentropy_gradient(
    x: tf.Tensor,
    labels: Csr,
    kernel: tf.Tensor,
    bias: list[tf.Tensor],
    totals: SoftmaxTotals,
    upstream: tf.Tensor,
) -> tuple[tf.Tensor, tf.Tensor, list[tf.Tensor]]:
    """Gradients of cross-entropies by `x`, the kernel and the bias (both given by handle)."""
    return _ops.dslide_full_crossentropy_gradient(
        x=x,
        label_splits=labels.row_splits,
        label_ids=labels.ids,
        **totals._asdict(),
        upstream=upstream,
        kernel=kernel,
        bias=bias,
    )
