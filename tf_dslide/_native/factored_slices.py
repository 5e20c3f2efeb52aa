"""Row-sparse gradients that remember what they are computed from."""

import math
from typing import Any, NamedTuple

import tensorflow as tf

from tf_dslide._costs import warn_of_dense_cost
from tf_dslide._native.active_sets import CscView


class GradientFactors(NamedTuple):
    """What a row-sparse gradient is computed from: `sum of coef[entry] * x[row]` by neuron.

    `shared_coef (rows, shared)` are the coefficients of the neurons that all rows share.
    """

    x: tf.Tensor
    coef: tf.Tensor
    shared_coef: tf.Tensor
    view: CscView

    def inputs(self) -> dict[str, tf.Tensor]:
        """What the ops call them."""
        return {
            "x": self.x,
            "coef": self.coef,
            "shared_coef": self.shared_coef,
            **self.view._asdict(),
        }


class FactoredSlices(tf.IndexedSlices):
    """A gradient with ascending distinct rows that may remember its factors.

    An optimizer that knows them can sweep gradient and update in one; the values are then an unused
    pure node and never computed.
    """

    def __init__(
        self,
        values: tf.Tensor,
        indices: tf.Tensor,
        dense_shape: tf.Tensor,
        factors: GradientFactors | None = None,
    ) -> None:
        super().__init__(values, indices, dense_shape)
        self.factors = factors

    def __truediv__(self, scale: Any) -> "FactoredSlices":
        """The gradient of a loss that was multiplied by `scale`."""
        factors = self.factors
        if factors is not None:
            factors = factors._replace(
                coef=factors.coef / scale, shared_coef=factors.shared_coef / scale
            )
        return FactoredSlices(self.values / scale, self.indices, self.dense_shape, factors)


def factors_of(gradient: Any) -> GradientFactors | None:
    """What a gradient is computed from, if it remembers."""
    return gradient.factors if isinstance(gradient, FactoredSlices) else None


_MANY_WEIGHTS = 1 << 22
_warned_of_dense_gradient = False


def _notice_dense_gradient(
    value: Any, dtype: Any = None, name: Any = None, as_ref: Any = False
) -> Any:
    """Warns once when somebody makes a large row-sparse gradient dense, and lets it happen."""
    global _warned_of_dense_gradient
    shape = None if value.dense_shape is None else tf.get_static_value(value.dense_shape)
    weights = 0 if shape is None else math.prod(map(int, shape))
    if weights >= _MANY_WEIGHTS and not _warned_of_dense_gradient:
        _warned_of_dense_gradient = True
        warn_of_dense_cost(
            f"the optimizer (or a regularizer) makes a row-sparse gradient dense: each step costs "
            f"as much as all {weights:,} weights. SparseAdam (optimizer='sparse_adam') updates "
            "only the rows that a batch used."
        )
    return NotImplemented


tf.register_tensor_conversion_function(tf.IndexedSlices, _notice_dense_gradient, priority=50)
