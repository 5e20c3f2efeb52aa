"""Where a layer's units are: here all of them in this process.

A strategy has a class like this one for units that lie on several ranks.
"""

from collections.abc import Callable, Sequence
from typing import Any

import tensorflow as tf

from tf_dslide import lazy
from tf_dslide.sharding import Shard


class LayerSharding:
    """The units of a layer that is not split.

    Attributes:
        shard: The units of this process.
    """

    def __init__(self, units: int) -> None:
        self.shard = Shard(0, units, units)

    def initializer(self, whole: Any, shape: tuple[int, ...], axis: int, name: str) -> Any:
        """What makes the first values of this process' part of a variable."""
        return whole

    def mark(self, variable: Any, axis: int) -> None:
        """Notes which part of the whole a variable holds."""

    def enter(self, x: Any) -> Any:
        """An input that every process holds, for a layer whose units may be split."""
        return x

    def activated(
        self, outputs: tf.Tensor, activation: Callable[..., Any], seen: Sequence[tf.Tensor]
    ) -> tf.Tensor:
        """The activations of all units.

        Args:
            outputs: This process' columns, before the activation.
            activation: The layer's.
            seen: The tensors that went in.
        """
        return activation(outputs)

    def gather_logits(self, local: tf.Tensor) -> tf.Tensor:
        """The dense logits of all units."""
        return local

    def lazy_logits(self, *arguments: Any) -> lazy.DenseLogits:
        """Lazy logits of all units; arguments of `lazy.DenseLogits`."""
        return lazy.DenseLogits(self, *arguments)

    def top_k(
        self, weights: lazy.SampledWeights, x: tf.Tensor, k: int, exact: bool
    ) -> tuple[tf.Tensor, tf.Tensor]:
        """Ids and logits of the best `k` of all units for each row of `x`."""
        return weights.exact_top_k(x, k) if exact else weights.likely_top_k(x, k)
