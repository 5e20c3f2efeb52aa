"""One step of Adam or Adagrad on a variable."""

from typing import NamedTuple

import tensorflow as tf

from tf_dslide._native.factored_slices import GradientFactors
from tf_dslide._native.loader import load

_ops = load()


class AdamArguments(NamedTuple):
    """What the Adam ops share; with `unit_rows` rows that move get length 1.

    `last_step` counts for each row, `int32`, the last step that it took part in. Unless `lazy`, a
    row first makes up for the steps that it missed.
    """

    weight: tf.Tensor
    momentum: tf.Tensor
    velocity: tf.Tensor
    last_step: tf.Tensor
    step: tf.Tensor
    learning_rate: tf.Tensor
    weight_decay: tf.Tensor
    beta_1: float
    beta_2: float
    epsilon: float
    lazy: bool = False
    unit_rows: bool = False


class AdagradArguments(NamedTuple):
    """What the three Adagrad ops share; with `unit_rows` rows that move get length 1."""

    weight: tf.Tensor
    accumulator: tf.Tensor
    learning_rate: tf.Tensor
    weight_decay: tf.Tensor
    epsilon: float
    unit_rows: bool = False


def dense_adam(arguments: AdamArguments, gradient: tf.Tensor) -> tf.Operation:
    """One step of Adam on all weights."""
    return _ops.dslide_dense_adam(**arguments._asdict(), gradient=gradient)


def row_adam(arguments: AdamArguments, rows: tf.Tensor, gradient: tf.Tensor) -> tf.Operation:
    """One step of Adam on the rows named; gradients of a row named twice add up."""
    return _ops.dslide_row_adam(**arguments._asdict(), rows=rows, gradient=gradient)


def row_gradient_adam(arguments: AdamArguments, factors: GradientFactors) -> tf.Operation:
    """One step of Adam on the neurons of a view, whose gradients never reach memory."""
    return _ops.dslide_row_gradient_adam(**arguments._asdict(), **factors.inputs())


def catch_up_adam(arguments: AdamArguments) -> tf.Operation:
    """Makes up for what all rows missed before the step, which itself is not done."""
    return _ops.dslide_catch_up_adam(**arguments._asdict())


def dense_adagrad(arguments: AdagradArguments, gradient: tf.Tensor) -> tf.Operation:
    """One step of Adagrad on all weights."""
    return _ops.dslide_dense_adagrad(**arguments._asdict(), gradient=gradient)


def row_adagrad(arguments: AdagradArguments, rows: tf.Tensor, gradient: tf.Tensor) -> tf.Operation:
    """One step of Adagrad on the rows named; gradients of a row named twice add up."""
    return _ops.dslide_row_adagrad(**arguments._asdict(), rows=rows, gradient=gradient)


def row_gradient_adagrad(arguments: AdagradArguments, factors: GradientFactors) -> tf.Operation:
    """One step of Adagrad on the neurons of a view, whose gradients never reach memory."""
    return _ops.dslide_row_gradient_adagrad(**arguments._asdict(), **factors.inputs())
