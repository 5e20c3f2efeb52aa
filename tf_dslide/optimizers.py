"""Optimizers that touch only the rows that a batch used."""

from abc import abstractmethod
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import keras
import tensorflow as tf

from tf_dslide import sharding
from tf_dslide._native import ops
from tf_dslide.constraints import UnitRows


class _RowOptimizer(keras.optimizers.Optimizer):
    """What the two optimizers share: gradients of rows, clipping, decay, rows of length 1."""

    def build(self, variables: list[Any]) -> None:
        """Makes the optimizer's own variables."""
        if self.built:
            return
        if (self.clipnorm or self.global_clipnorm) and any(map(sharding.shard_of, variables)):
            raise ValueError(
                "`clipnorm` and `global_clipnorm` need the norm of a whole gradient, but under an "
                "MPIModelParallel each rank has a part of it; use `clipvalue`"
            )
        super().build(variables)
        self._add_own_variables(variables)

    @abstractmethod
    def _add_own_variables(self, variables: list[Any]) -> None:
        """Makes what the optimizer keeps of each variable."""

    def apply(self, grads: list[Any], trainable_variables: Any = None) -> None:
        """One step; rows that are to have length 1 get it in the update, not afterwards."""
        variables = trainable_variables
        if variables is None:
            variables = getattr(self, "_trainable_variables", [])
        with _with_unit_rows(list(variables)):
            super().apply(grads, trainable_variables)

    def _backend_update_step(
        self, grads: list[Any], trainable_variables: list[Any], learning_rate: Any
    ) -> None:
        """Updates in place; Keras' own way copies the gradients through tf.distribute."""
        if tf.distribute.get_strategy().num_replicas_in_sync > 1:
            raise ValueError(
                f"{type(self).__name__} does not work with several replicas of tf.distribute; "
                f"received {tf.distribute.get_strategy()!r}"
            )
        for gradient, variable in zip(grads, trainable_variables, strict=True):
            if gradient is not None:
                self.update_step(gradient, variable, learning_rate)

    def _apply_weight_decay(self, variables: list[Any]) -> None:
        """Nothing here: the update decays the rows that it touches."""

    def _decay_of(self, variable: Any) -> tf.Tensor:
        decays = self.weight_decay is not None and self._use_weight_decay(variable)
        return tf.constant(self.weight_decay if decays else 0.0, tf.float32)

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
        arguments = self._arguments(variable, tf.cast(learning_rate, tf.float32))
        dense, rows, row_gradient = self._ops
        if not isinstance(gradient, tf.IndexedSlices):
            dense(arguments, tf.cast(gradient, tf.float32))
            return
        parts = ops.factors_of(gradient)
        if parts is not None:
            row_gradient(arguments, parts)
        else:
            rows(
                arguments,
                tf.cast(gradient.indices, tf.int32),
                tf.cast(gradient.values, tf.float32),
            )

    # The ops of a dense gradient, of rows, and of rows that remember their parts.
    _ops: tuple[Any, Any, Any]

    @abstractmethod
    def _arguments(self, variable: Any, learning_rate: tf.Tensor) -> Any:
        """What the ops need beside the gradient."""


@contextmanager
def _with_unit_rows(variables: list[Any]) -> Iterator[None]:
    """Marks the variables whose rows the updates keep at length 1; Keras then leaves them alone."""
    marked = [(v, v.constraint) for v in variables if isinstance(v.constraint, UnitRows)]
    for variable, _ in marked:
        variable.constraint, variable._dslide_unit_rows = None, True
    try:
        yield
    finally:
        for variable, constraint in marked:
            variable.constraint, variable._dslide_unit_rows = constraint, False


def _has_unit_rows(variable: Any) -> bool:
    return getattr(variable, "_dslide_unit_rows", False)


@keras.saving.register_keras_serializable(package="tf_dslide")
class SparseAdam(_RowOptimizer):
    """Adam at the cost of the rows that a gradient names: others catch up when they are next used.

    For a gradient that is a `tf.IndexedSlices`, as `DSlideDense` and `SparseDense` give, the
    moments and weights of its rows alone change. Adam also moves rows without a gradient: their
    moments decay, and their weights move on by what is left of them. Here each row remembers its
    last step (4 bytes), and when a gradient next names it, it first makes up for the steps that it
    missed. From the same gradients the weights are then those of Keras' `Adam`, but for two
    simplifications: missed steps take the present learning rate, and the share of `epsilon` in them
    is rounded (by less than a hundredth with the usual betas). A row that is read before it catches
    up, by its next forward pass, by hashing or by `evaluate`, is some steps behind; `fit` brings
    all weights up to date at its end, `catch_up` at any time.

    With `lazy=True` rows miss nothing: the algorithm that `torch.optim.SparseAdam` names so. It
    costs accuracy where rows are seldom used. For a dense gradient both are
    `keras.optimizers.Adam`, but for the default of `epsilon`. The bias corrections count all steps.

    A step on rows of `d` weights moves 28 bytes a weight; a `DSlideDense` gradient is summed in the
    same sweep and never stored.

    Args:
        learning_rate: A float or a schedule.
        beta_1: Decay of the first moment.
        beta_2: Decay of the second moment; more than `beta_1 ** 2`, unless `lazy`.
        epsilon: Added to the root of the second moment. Keras' 1e-7 is not small beside the
            gradients of one class among tens of thousands, which are means over a batch.
        weight_decay: Decoupled decay, times the learning rate, for each step that a row takes part
            in and, unless `lazy`, for each that it missed; `None` for none.
        lazy: Whether rows without a gradient stay as they are for good.
        clipnorm: As in Keras, as are `clipvalue`, `global_clipnorm` and the other arguments.
        **kwargs: Of `keras.optimizers.Optimizer`. Averaging and gradient accumulation work, at the
            cost of all weights.

    Raises:
        ValueError: `beta_1 ** 2 >= beta_2` without `lazy`; under a `tf.distribute` strategy with
            several replicas, or for clipping by norm of a model that is split over ranks.

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
        epsilon: float = 1e-8,
        weight_decay: float | None = None,
        lazy: bool = False,
        name: str = "sparse_adam",
        **kwargs: Any,
    ) -> None:
        super().__init__(
            learning_rate=learning_rate, weight_decay=weight_decay, name=name, **kwargs
        )
        self.beta_1 = float(beta_1)
        self.beta_2 = float(beta_2)
        self.epsilon = float(epsilon)
        self.lazy = bool(lazy)
        if not self.lazy and self.beta_1**2 >= self.beta_2:
            raise ValueError(
                "`beta_2` must be more than `beta_1 ** 2`, or missed steps would grow without end; "
                f"received beta_1={beta_1!r}, beta_2={beta_2!r}. `lazy=True` takes any"
            )

    def _add_own_variables(self, variables: list[Any]) -> None:
        """Two moments for each variable, and for each of its rows the last step."""
        self._momentums, self._velocities = self.add_optimizer_variables(
            variables, ["momentum", "velocity"]
        )
        self._last_steps = [
            self.add_variable(
                tuple(v.shape[:1]), dtype="int32", name=f"{v.path.replace('/', '_')}_last_step"
            )
            for v in variables
        ]

    _ops = (ops.dense_adam, ops.row_adam, ops.row_gradient_adam)

    def _arguments(self, variable: Any, learning_rate: tf.Tensor) -> ops.AdamArguments:
        index = self._get_variable_index(variable)
        return ops.AdamArguments(
            weight=ops.handle(variable),
            momentum=ops.handle(self._momentums[index]),
            velocity=ops.handle(self._velocities[index]),
            last_step=ops.handle(self._last_steps[index]),
            step=tf.cast(tf.convert_to_tensor(self.iterations), tf.int64) + 1,
            learning_rate=learning_rate,
            weight_decay=self._decay_of(variable),
            beta_1=self.beta_1,
            beta_2=self.beta_2,
            epsilon=self.epsilon,
            # Accumulated gradients are dense, and the steps between them no steps of Adam.
            lazy=self.lazy or self.gradient_accumulation_steps is not None,
            unit_rows=_has_unit_rows(variable),
        )

    def catch_up(self) -> None:
        """Makes up for the steps that rows have missed, so that all weights are Adam's.

        Time: as one step on all weights, less where few rows are behind. `fit` ends with it, and
        loops of one's own may.
        """
        if not self.built:
            return
        rate = tf.cast(self.learning_rate, tf.float32)
        with _with_unit_rows(self._trainable_variables):
            for variable in self._trainable_variables:
                ops.catch_up_adam(self._arguments(variable, rate))

    def finalize_variable_values(self, var_list: Any) -> None:
        """Brings the weights up to date, as Keras asks at the end of `fit`."""
        self.catch_up()
        super().finalize_variable_values(var_list)

    def get_config(self) -> dict[str, Any]:
        """The arguments that make this optimizer again."""
        return {
            **super().get_config(),
            "lazy": self.lazy,
            "beta_1": self.beta_1,
            "beta_2": self.beta_2,
            "epsilon": self.epsilon,
        }


@keras.saving.register_keras_serializable(package="tf_dslide")
class SparseAdagrad(_RowOptimizer):
    """Adagrad on the rows that a gradient names, and on no others.

    A row that is not named has no gradient, and Adagrad would not move it either: this is the same
    algorithm, and there is nothing to catch up with. A weight's steps become shorter with the
    gradients that it has seen, so rare features and classes move far and frequent ones little.
    `epsilon` is added to the root, where `keras.optimizers.Adagrad` adds it under the root and so
    shortens the first steps of weights with small gradients.

    A step on rows of `d` weights moves 20 bytes a weight, and there is one number a weight beside
    it where Adam has two.

    Args:
        learning_rate: A float or a schedule.
        initial_accumulator_value: What the sums of squared gradients start from; not negative.
        epsilon: Added to the root of the sum.
        weight_decay: Decoupled decay of the rows touched, times the learning rate; `None` for none.
        clipnorm: As in Keras, as are `clipvalue`, `global_clipnorm` and the other arguments.
        **kwargs: Of `keras.optimizers.Optimizer`.

    Raises:
        ValueError: `initial_accumulator_value` is negative; as for `SparseAdam` otherwise.

    Example:
    >>> import keras
    >>> from tf_dslide import SparseAdagrad
    >>> optimizer = SparseAdagrad(keras.optimizers.schedules.PolynomialDecay(0.05, 1000, 0.0))
    """

    def __init__(
        self,
        learning_rate: Any = 0.05,
        initial_accumulator_value: float = 0.0,
        epsilon: float = 1e-7,
        weight_decay: float | None = None,
        name: str = "sparse_adagrad",
        **kwargs: Any,
    ) -> None:
        super().__init__(
            learning_rate=learning_rate, weight_decay=weight_decay, name=name, **kwargs
        )
        self.initial_accumulator_value = float(initial_accumulator_value)
        if not self.initial_accumulator_value >= 0:
            raise ValueError(
                "`initial_accumulator_value` must not be negative; received "
                f"{initial_accumulator_value!r}"
            )
        self.epsilon = float(epsilon)

    def _add_own_variables(self, variables: list[Any]) -> None:
        """An accumulator for each variable."""
        start = keras.initializers.Constant(self.initial_accumulator_value)
        self._accumulators = self.add_optimizer_variables(
            variables, "accumulator", initializer=start
        )

    _ops = (ops.dense_adagrad, ops.row_adagrad, ops.row_gradient_adagrad)

    def _arguments(self, variable: Any, learning_rate: tf.Tensor) -> ops.AdagradArguments:
        accumulator = self._accumulators[self._get_variable_index(variable)]
        return ops.AdagradArguments(
            weight=ops.handle(variable),
            accumulator=ops.handle(accumulator),
            learning_rate=learning_rate,
            weight_decay=self._decay_of(variable),
            epsilon=self.epsilon,
            unit_rows=_has_unit_rows(variable),
        )

    def get_config(self) -> dict[str, Any]:
        """The arguments that make this optimizer again."""
        return {
            **super().get_config(),
            "initial_accumulator_value": self.initial_accumulator_value,
            "epsilon": self.epsilon,
        }


def _without_repeats(gradient: Any) -> Any:
    """The same slices with each row named once."""
    if not isinstance(gradient, tf.IndexedSlices) or ops.factors_of(gradient) is not None:
        return gradient
    rows, places = tf.unique(gradient.indices)
    values = tf.math.unsorted_segment_sum(gradient.values, places, tf.size(rows))
    return tf.IndexedSlices(values, rows, gradient.dense_shape)


# Names for `compile(optimizer="sparse_adam")`.
keras.saving.get_custom_objects().update(sparse_adam=SparseAdam, sparse_adagrad=SparseAdagrad)
