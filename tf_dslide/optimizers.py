"""An optimizer that touches only the rows that a batch used."""

from typing import Any

import keras
import tensorflow as tf

from tf_dslide._native import ops
from tf_dslide.parallel import sharding


@keras.saving.register_keras_serializable(package="tf_dslide")
class SparseAdam(keras.optimizers.Optimizer):
    """Adam on the rows that a gradient names, and on no others.

    For a gradient that is a `tf.IndexedSlices`, as `DSlideDense` and `SparseDense` give, the
    moments and weights of its rows alone change. Those of other rows stay, where Adam would let
    their moments fade and go on moving their weights: this is another algorithm, the one that
    `torch.optim.SparseAdam` names so. The bias corrections count all steps. For a dense gradient it
    is `keras.optimizers.Adam`.

    A step on rows of `d` weights moves 28 bytes a weight; a `DSlideDense` gradient is summed in the
    same sweep and never stored.

    Args:
        learning_rate: A float or a schedule.
        beta_1: Decay of the first moment.
        beta_2: Decay of the second moment.
        epsilon: Added to the root of the second moment.
        weight_decay: Decoupled decay of the rows touched, times the learning rate; `None` for none.
        clipnorm: As in Keras, as are `clipvalue`, `global_clipnorm` and the other arguments.
        **kwargs: Of `keras.optimizers.Optimizer`. Averaging and gradient accumulation work, at the
            cost of all weights.

    Raises:
        ValueError: Under a `tf.distribute` strategy with several replicas, or for clipping by norm
            of a model that is split over ranks.

    Example:
    >>> import keras
    >>> from tf_dslide import SparseAdam
    >>> optimizer = SparseAdam(keras.optimizers.schedules.CosineDecay(1e-2, 1000))
    """

    def __init__(
        self,
        learning_rate: Any = 1e-3,
        beta_1: float = 0.9,
        beta_2: float = 0.999,
        epsilon: float = 1e-7,
        weight_decay: float | None = None,
        name: str = "sparse_adam",
        **kwargs: Any,
    ) -> None:
        super().__init__(
            learning_rate=learning_rate, weight_decay=weight_decay, name=name, **kwargs
        )
        self.beta_1 = float(beta_1)
        self.beta_2 = float(beta_2)
        self.epsilon = float(epsilon)

    def build(self, variables: list[Any]) -> None:
        """Makes two moments for each variable."""
        if self.built:
            return
        if (self.clipnorm or self.global_clipnorm) and any(map(sharding.shard_of, variables)):
            raise ValueError(
                "`clipnorm` and `global_clipnorm` need the norm of a whole gradient, but under an "
                "MPIModelParallel each rank has a part of it; use `clipvalue`"
            )
        super().build(variables)
        self._momentums, self._velocities = self.add_optimizer_variables(
            variables, ["momentum", "velocity"]
        )

    def _backend_update_step(
        self, grads: list[Any], trainable_variables: list[Any], learning_rate: Any
    ) -> None:
        """Updates in place; Keras' own way copies the gradients through tf.distribute."""
        if tf.distribute.get_strategy().num_replicas_in_sync > 1:
            raise ValueError(
                "SparseAdam does not work with several replicas of tf.distribute; received "
                f"{tf.distribute.get_strategy()!r}"
            )
        for gradient, variable in zip(grads, trainable_variables, strict=True):
            if gradient is not None:
                self.update_step(gradient, variable, learning_rate)

    def _apply_weight_decay(self, variables: list[Any]) -> None:
        """Nothing here: the update decays the rows that it touches."""

    def _clip_gradients(self, grads: list[Any]) -> list[Any]:
        """Clips the values of row-sparse gradients: rows are distinct, so norms are right."""
        plain = [_without_repeats(g) for g in grads] if self._clips() else grads
        values = [g.values if isinstance(g, tf.IndexedSlices) else g for g in plain]
        clipped = super()._clip_gradients(values)
        return [
            tf.IndexedSlices(c, g.indices, g.dense_shape)
            if isinstance(g, tf.IndexedSlices) and c is not g.values
            else (g if isinstance(g, tf.IndexedSlices) else c)
            for g, c in zip(plain, clipped, strict=True)
        ]

    def _clips(self) -> bool:
        return any((self.clipnorm, self.global_clipnorm, self.clipvalue))

    def update_step(self, gradient: Any, variable: Any, learning_rate: Any) -> None:
        """One step for one variable; `gradient` is a tensor or `tf.IndexedSlices`."""
        index = self._get_variable_index(variable)
        decays = self.weight_decay is not None and self._use_weight_decay(variable)
        arguments = ops.AdamArguments(
            weight=ops.handle(variable),
            momentum=ops.handle(self._momentums[index]),
            velocity=ops.handle(self._velocities[index]),
            step=tf.cast(tf.convert_to_tensor(self.iterations), tf.int64) + 1,
            learning_rate=tf.cast(learning_rate, tf.float32),
            weight_decay=tf.constant(self.weight_decay if decays else 0.0, tf.float32),
            beta_1=self.beta_1,
            beta_2=self.beta_2,
            epsilon=self.epsilon,
        )
        if not isinstance(gradient, tf.IndexedSlices):
            ops.dense_adam(arguments, tf.cast(gradient, tf.float32))
            return
        parts = ops.parts_of(gradient)
        if parts is not None:
            ops.row_gradient_adam(arguments, parts)
        else:
            ops.row_adam(
                arguments,
                tf.cast(gradient.indices, tf.int32),
                tf.cast(gradient.values, tf.float32),
            )

    def get_config(self) -> dict[str, Any]:
        """The arguments that make this optimizer again."""
        return {
            **super().get_config(),
            "beta_1": self.beta_1,
            "beta_2": self.beta_2,
            "epsilon": self.epsilon,
        }


def _without_repeats(gradient: Any) -> Any:
    """The same slices with each row named once."""
    if not isinstance(gradient, tf.IndexedSlices) or ops.parts_of(gradient) is not None:
        return gradient
    rows, places = tf.unique(gradient.indices)
    values = tf.math.unsorted_segment_sum(gradient.values, places, tf.size(rows))
    return tf.IndexedSlices(values, rows, gradient.dense_shape)
