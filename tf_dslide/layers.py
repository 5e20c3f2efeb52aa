"""The Keras layers."""

import warnings
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from tf_dslide import lazy, samplers, selectors
from tf_dslide._checks import of_format, require_positive
from tf_dslide._native import ops
from tf_dslide.constraints import UnitRows

# Raised when the meaning of a saved layer changes; older and newer files are then refused.
FORMAT = 1


class _RowLayer(keras.layers.Layer):
    """What the two layers share with `keras.layers.Dense`: arguments, weights, configuration."""

    def __init__(
        self,
        units: int,
        activation: Any = None,
        use_bias: bool = True,
        kernel_initializer: Any = "glorot_uniform",
        bias_initializer: Any = "zeros",
        kernel_regularizer: Any = None,
        bias_regularizer: Any = None,
        activity_regularizer: Any = None,
        kernel_constraint: Any = None,
        bias_constraint: Any = None,
        strategy: Any = None,
        **kwargs: Any,
    ) -> None:
        super().__init__(activity_regularizer=activity_regularizer, **kwargs)
        self.strategy = strategy
        self._split: Any = None
        self.units = require_positive("units", units)
        self.activation = keras.activations.get(activation)
        self.use_bias = bool(use_bias)
        self.kernel_initializer = keras.initializers.get(kernel_initializer)
        self.bias_initializer = keras.initializers.get(bias_initializer)
        self.kernel_regularizer = keras.regularizers.get(kernel_regularizer)
        self.bias_regularizer = keras.regularizers.get(bias_regularizer)
        self.kernel_constraint = keras.constraints.get(kernel_constraint)
        self.bias_constraint = keras.constraints.get(bias_constraint)
        self.supports_masking = True
        # XLA knows nothing of the compiled ops.
        self.supports_jit = False
        self.input_spec = keras.layers.InputSpec(min_ndim=2)
        self.kernel: Any = None
        self.bias: Any = None

    def _add_weights(self, dim: Any, kernel_shape: tuple[int, int], axis: int) -> None:
        if keras.backend.standardize_dtype(self.variable_dtype) != "float32":
            raise ValueError(
                f"{type(self).__name__} keeps its weights in float32; received the dtype policy "
                f"{self.dtype_policy.name!r}. Use 'float32', 'mixed_float16' or 'mixed_bfloat16'."
            )
        self.kernel = self._add_part(
            "kernel",
            kernel_shape,
            axis,
            self.kernel_initializer,
            regularizer=self.kernel_regularizer,
            constraint=self.kernel_constraint,
        )
        if self.use_bias:
            self.bias = self._add_part(
                "bias",
                (self.units,),
                0,
                self.bias_initializer,
                regularizer=self.bias_regularizer,
                constraint=self.bias_constraint,
            )
        self.input_spec = keras.layers.InputSpec(min_ndim=2, axes={-1: dim})

    def _add_part(
        self, name: str, shape: tuple[int, ...], axis: int, initializer: Any, **settings: Any
    ) -> Any:
        """A weight, or this rank's part of it along the units' axis."""
        if self._split is None:
            return self.add_weight(name=name, shape=shape, initializer=initializer, **settings)
        local = tuple(self._split.units if i == axis else length for i, length in enumerate(shape))
        initializer = self._split.initializer(initializer, shape, axis, f"{self.name}/{name}")
        weight = self.add_weight(name=name, shape=local, initializer=initializer, **settings)
        self._split.mark(weight, axis)
        return weight

    def _expect_whole(self, what: str) -> None:
        if self._split is not None and self._split.units != self.units:
            raise ValueError(
                f"{what} needs all of {self.name}, but this rank holds units "
                f"{self._split.begin} to {self._split.end} of {self.units}. Use "
                "tf_dslide.checkpoints: save_checkpoint on all ranks, then export."
            )

    def save_own_variables(self, store: Any) -> None:
        """Saves the weights.

        Raises:
            ValueError: This rank holds only a part of them.
        """
        self._expect_whole("saving a model")
        super().save_own_variables(store)

    def _input_dim(self, input_shape: Any) -> int:
        dim = input_shape[-1]
        if not dim:
            raise ValueError(
                f"{type(self).__name__} needs an input whose last axis is known and not empty; "
                f"received shape {tuple(input_shape)}"
            )
        return int(dim)

    def compute_output_shape(self, input_shape: Any) -> tuple[int | None, ...]:
        """The input's shape with `units` in the last place."""
        return (*input_shape[:-1], self.units)

    def get_config(self) -> dict[str, Any]:
        """The arguments that make this layer again, and the format of its file."""
        return {
            **super().get_config(),
            "units": self.units,
            "activation": keras.activations.serialize(self.activation),
            "use_bias": self.use_bias,
            "kernel_initializer": keras.initializers.serialize(self.kernel_initializer),
            "bias_initializer": keras.initializers.serialize(self.bias_initializer),
            "kernel_regularizer": keras.regularizers.serialize(self.kernel_regularizer),
            "bias_regularizer": keras.regularizers.serialize(self.bias_regularizer),
            "activity_regularizer": keras.regularizers.serialize(self.activity_regularizer),
            "kernel_constraint": keras.constraints.serialize(self.kernel_constraint),
            "bias_constraint": keras.constraints.serialize(self.bias_constraint),
            "format": FORMAT,
        }

    @classmethod
    def from_config(cls, config: dict[str, Any]) -> "_RowLayer":
        """A layer from `get_config`.

        Raises:
            ValueError: The configuration was saved in another format.
        """
        return cls(**of_format(cls.__name__, config, FORMAT))


def _product(inputs: Any, matrix: Any, bias: Any) -> tf.Tensor:
    """`inputs @ matrix + bias`; a rank's part of a narrow layer may have no columns."""
    if matrix.shape[-1] == 0:  # TensorFlow's oneDNN ends the process on such a product
        return tf.zeros([*tf.unstack(tf.shape(inputs))[:-1], 0], inputs.dtype)
    outputs = keras.ops.matmul(inputs, matrix)
    return outputs if bias is None else keras.ops.add(outputs, bias)


# Activations that look at each value alone: a rank can apply them to its own columns.
_OF_EACH_VALUE = (
    keras.activations.linear,
    keras.activations.relu,
    keras.activations.tanh,
    keras.activations.sigmoid,
    keras.activations.gelu,
    keras.activations.silu,
    keras.activations.elu,
    keras.activations.selu,
    keras.activations.softplus,
)


@keras.saving.register_keras_serializable(package="tf_dslide")
class SparseDense(_RowLayer):
    """A `Dense` layer for sparse features, whose gradient names only the features seen.

    `output = activation(input @ kernel + bias)`. With a `tf.SparseTensor` the work and the gradient
    depend on the number of non-zeros, not on the width: the gradient of `kernel` is a
    `tf.IndexedSlices` with distinct rows. What is sparse may be the activations of a `DSlideHidden`
    too: the gradient goes on to the values. A dense tensor works as in `keras.layers.Dense`.

    Args:
        units: Width of the output.
        activation: As in `Dense`.
        use_bias: As in `Dense`.
        kernel_initializer: As in `Dense`.
        bias_initializer: As in `Dense`.
        kernel_regularizer: As in `Dense`, at the cost of all weights a step.
        bias_regularizer: As in `Dense`.
        activity_regularizer: As in `Dense`.
        kernel_constraint: As in `Dense`, at the cost of all weights a step.
        bias_constraint: As in `Dense`.
        strategy: An `MPIModelParallel` that splits the units over ranks.
        **kwargs: Of `keras.layers.Layer`, such as `name` and `dtype`.

    Input: `(batch, features)`, `tf.SparseTensor` with ascending indices or a dense tensor (then of
        any
    rank from 2). Output: `(batch, units)`.

    Raises:
        ValueError: `units` is not positive, or the last axis is unknown or empty.
        tf.errors.InvalidArgumentError: A feature is out of range, or NaN or infinite; the message
            names row, feature and value.

    Memory: `kernel` `(features, units)`. Time a step: `non-zeros * units`.

    Example:
    >>> import tensorflow as tf
    >>> from tf_dslide import SparseDense
    >>> x = tf.sparse.from_dense([[0.0, 2.0, 0.0], [0.0, 0.0, 0.0]])
    >>> SparseDense(4, activation="relu")(x).shape
    TensorShape([2, 4])
    """

    def build(self, input_shape: Any) -> None:
        """Makes `kernel` `(features, units)` and `bias` `(units,)`."""
        dim = self._input_dim(input_shape)
        if self.strategy is not None:
            if isinstance(self.kernel_constraint, UnitRows):
                raise ValueError(
                    "UnitRows needs whole rows, but under an MPIModelParallel a rank holds a part "
                    "of each feature's row of a SparseDense; leave the constraint out"
                )
            self._split = self.strategy.split(self, self.units, dim + self.use_bias, False)
        self._add_weights(dim, (dim, self.units), 1)
        self.built = True

    def call(self, inputs: Any) -> tf.Tensor:
        """Applies the layer."""
        if isinstance(inputs, tf.SparseTensor):
            # SciPy's matrices need not have ascending features; costs one look if they do.
            inputs = tf.sparse.reorder(tf.cast(inputs, tf.float32))
            if self._split is not None:
                inputs = inputs.with_values(self._split.enter(inputs.values))
            rows = ops.csr_from_sparse(inputs, self.kernel.shape[0])
            outputs = ops.csr_mat_mul(inputs.values, rows, self.kernel)
            width = self.kernel.shape[1]
            outputs = tf.cast(tf.ensure_shape(outputs, (None, width)), self.compute_dtype)
            if self.bias is not None:
                outputs = keras.ops.add(outputs, self.bias)
        else:
            if self._split is not None:
                inputs = self._split.enter(inputs)
            outputs = _product(inputs, self.kernel, self.bias)
        if self._split is None:
            return self.activation(outputs)
        return self._gathered(inputs, outputs)

    def _gathered(self, inputs: Any, outputs: tf.Tensor) -> tf.Tensor:
        """The whole layer's output from this rank's part before the activation."""
        if isinstance(inputs, tf.SparseTensor):
            seen = [inputs.indices, inputs.values]
        else:
            seen = [tf.convert_to_tensor(inputs)]
        alone = self.activation in _OF_EACH_VALUE
        if alone:
            outputs = self.activation(outputs)
        outputs = tf.cast(outputs, tf.float32)
        leading, width = tf.shape(outputs)[:-1], outputs.shape[-1]
        # Where a ReLU gives 0 its gradient is 0.
        sparse = self.activation is keras.activations.relu
        if outputs.shape.rank != 2:
            outputs = tf.reshape(outputs, [-1, width])
            whole = self._split.gather(outputs, sparse, seen)
            whole = tf.reshape(whole, tf.concat([leading, [self.units]], axis=0))
        else:
            whole = self._split.gather(outputs, sparse, seen)
        if self.compute_dtype != "float32":
            whole = tf.cast(whole, self.compute_dtype)
        return whole if alone else self.activation(whole)


class HashedLayer(_RowLayer):
    """What the layers share whose neurons a sampler picks: its state, its schedule, saving."""

    def __init__(
        self, units: int, sampler: samplers.Sampler, activation: Any = None, **kwargs: Any
    ) -> None:
        super().__init__(units, activation=activation, **kwargs)
        self.sampler = sampler
        self._built_weights: lazy.SampledWeights | None = None

    def build(self, input_shape: Any) -> None:
        """Makes `kernel` `(units, d)`, `bias` `(units,)` and the sampler's state."""
        dim = self._input_dim(input_shape)
        part = {}
        if self.strategy is not None:
            self._split = self.strategy.split(self, self.units, dim + self.use_bias, True)
            part = {"part": selectors.Part(self._split.begin, self._split.end)}
        self._add_weights(dim, (self.units, dim), 0)
        with tf.init_scope():
            step = tf.Variable(0, dtype=tf.int64, trainable=False, name="sampler_step")
        selector = (
            None if self.sampler.selects_all else self.sampler.selector(self.units, dim, **part)
        )
        self._built_weights = lazy.SampledWeights(self.kernel, self.bias, selector, step)
        if selector is not None:
            self._watch_kernel(selector)
        self.built = True

    def _watch_kernel(self, selector: selectors.Selector) -> None:
        """Lets the tables follow weights that are replaced rather than trained.

        `set_weights`, `load_weights`, a callback that restores the best weights: all end in the
        variable's `assign`. Optimizers reach the weights another way.
        """
        assign = self.kernel.assign

        def assign_and_invalidate(value: Any) -> Any:
            # In a graph it is a constraint that assigns, after every step: the schedule covers it.
            if tf.executing_eagerly():
                selector.invalidate()
            return assign(value)

        self.kernel.assign = assign_and_invalidate

    @property
    def _sampled_weights(self) -> lazy.SampledWeights:
        if self._built_weights is None:
            raise ValueError(f"{self.name} is not built: call it on an input first")
        return self._built_weights

    def rebuild(self) -> None:
        """Rebuilds the sampler's hash tables from the weights now.

        Training does so on schedule, and before the next use of weights that were replaced.

        Raises:
            tf.errors.InvalidArgumentError: A weight is NaN or infinite; names neuron and value.
        """
        sampled = self._sampled_weights
        if sampled.selector is not None:
            sampled.selector.rebuild(sampled.kernel, sampled.bias, sampled.step)

    def save_own_variables(self, store: Any) -> None:
        """Saves the weights, the sampler's schedule and what it learned.

        Tables are rebuilt on load.
        """
        super().save_own_variables(store)
        sampled = self._sampled_weights
        state = sampled.selector.get_state() if sampled.selector else []
        store["sampler_schedule"] = np.array([int(sampled.step), *state], np.int64)
        for name, variable in self._learned().items():
            store[name] = variable.numpy()

    def _learned(self) -> dict[str, tf.Variable]:
        """What the sampler learned, by its name in files."""
        selector = self._sampled_weights.selector
        return {} if selector is None else {f"sampler_{k}": v for k, v in selector.learned.items()}

    def load_own_variables(self, store: Any) -> None:
        """Restores what `save_own_variables` saved.

        Raises:
            ValueError: The file was not written by a layer of this version and sampler.
        """
        names = [str(i) for i in range(len(self.weights))]
        learned = self._learned()
        missing = [name for name in (*names, "sampler_schedule", *learned) if name not in store]
        if missing:
            hash_family = getattr(self.sampler, "hash", None)
            raise ValueError(
                f"the saved weights of {self.name} lack {missing}: they were not written by a "
                f"{type(self).__name__} of this version of tf_dslide (format {FORMAT}) with "
                f"use_bias={self.use_bias}"
                + (f" and hash={type(hash_family).__name__}" if learned else "")
            )
        super().load_own_variables({name: store[name] for name in names})
        step, *state = (int(value) for value in np.asarray(store["sampler_schedule"]))
        sampled = self._sampled_weights
        sampled.step.assign(step)
        if sampled.selector is not None and state:
            sampled.selector.set_state(state)
        for name, variable in learned.items():
            variable.assign(np.asarray(store[name]))

    def get_config(self) -> dict[str, Any]:
        """The arguments that make this layer again, and the format of its file."""
        return {
            **super().get_config(),
            "sampler": keras.saving.serialize_keras_object(self.sampler),
        }


@keras.saving.register_keras_serializable(package="tf_dslide")
class DSlideDense(HashedLayer):
    """A `Dense` layer for very many classes that computes only the neurons hashing picks.

    Called on `(batch, d)` it returns `(batch, units)` logits exactly as `Dense(units)` does, and
    any Keras loss or metric works on them, at dense cost. `SlideCrossentropy` and the metrics of
    this package do not look at those logits: they compute what they need from the layer's input,
    and inside `fit` and `evaluate` nothing of size `(batch, units)` ever exists. Training then
    costs as much as the active neurons do (SLIDE, arXiv 1903.03129; D-SLIDE, arXiv 2201.12667,
    section 3).

    Called eagerly, outside `tf.function`, TensorFlow computes the dense logits although nobody
    needs them; the layer warns once. Wrap a custom training step in `tf.function`.

    Args:
        units: Number of classes.
        sampler: Chooses the neurons that take part in a training step: a sampler of this package,
            its name, or `None` for `SharedLshSampler()`.
        activation: As in `Dense`. With an activation other than `None` or `"softmax"` the losses
            and metrics of this package treat the output as any other tensor, at dense cost.
        use_bias: As in `Dense`.
        kernel_initializer: As in `Dense`.
        bias_initializer: As in `Dense`.
        kernel_regularizer: As in `Dense`, at the cost of all weights a step.
        bias_regularizer: As in `Dense`.
        activity_regularizer: As in `Dense`, at dense cost.
        kernel_constraint: As in `Dense`, at the cost of all weights a step, but for `UnitRows`.
        bias_constraint: As in `Dense`.
        strategy: An `MPIModelParallel` that splits the classes over ranks.
        **kwargs: Of `keras.layers.Layer`, such as `name` and `dtype`.

    Input: `(batch, ..., d)`; a `tf.SparseTensor` `(batch, d)` is made dense. Output:
        `(batch, ..., units)`.

    Randomness: `sampler` and its hash family have seeds; the result does not depend on the number
        of
    threads. Memory: `kernel` `(units, d)` (a neuron is one contiguous row), and the sampler's
    tables.

    Raises:
        ValueError: `units` is not positive, or the last axis of the input is unknown or empty.
        tf.errors.InvalidArgumentError: Inputs of the loss or weights at a rebuild are not finite.

    Example:
    >>> import keras, numpy as np
    >>> from tf_dslide import DSlideDense, SlideCrossentropy, SparseAdam
    >>> model = keras.Sequential([keras.Input((16,)), DSlideDense(1000)])
    >>> model.compile(SparseAdam(), SlideCrossentropy())
    >>> x, y = np.ones((8, 16), "float32"), np.arange(8)
    >>> history = model.fit(x, y, verbose=0)
    >>> model.predict(x, verbose=0).shape
    (8, 1000)
    """

    def __init__(
        self, units: int, sampler: Any = None, activation: Any = None, **kwargs: Any
    ) -> None:
        super().__init__(units, samplers.get(sampler), activation=activation, **kwargs)

    @property
    def units_here(self) -> tuple[int, int]:
        """First unit that `kernel` holds, and one past its last: all, unless ranks share them."""
        return (0, self.units) if self._split is None else (self._split.begin, self._split.end)

    def call(self, inputs: tf.Tensor, training: bool | None = None) -> tf.Tensor:
        """The dense logits, carrying what computes with them lazily."""
        if self._split is not None:
            inputs = self._split.enter(inputs)
        logits = _product(inputs, keras.ops.transpose(self.kernel), self.bias)
        if self._split is not None:
            logits = self._split.gather_logits(logits)
        outputs = self.activation(logits)
        if self.activation not in (keras.activations.linear, keras.activations.softmax):
            return outputs
        if tf.executing_eagerly():
            self._warn_of_eager_cost(outputs)
        if isinstance(inputs, tf.SparseTensor):
            inputs = tf.sparse.to_dense(inputs)
        leading = tf.shape(inputs)[:-1]
        x = tf.cast(tf.reshape(inputs, [-1, self.kernel.shape[1]]), tf.float32)
        make = lazy.DenseLogits if self._split is None else self._split.lazy_logits
        return lazy.attach(
            outputs, make(self._sampled_weights, x, leading, outputs, bool(training))
        )

    def _warn_of_eager_cost(self, outputs: tf.Tensor) -> None:
        if getattr(self, "_warned", False) or outputs.shape.num_elements() < 1 << 22:
            return
        self._warned = True
        warnings.warn(
            f"{self.name} was called eagerly and computed all {outputs.shape} dense logits. Inside "
            "tf.function (so in fit and evaluate without run_eagerly) they are left out when "
            "nobody uses them.",
            stacklevel=3,
        )

    def top_k(self, hidden: Any, k: int = 5, exact: bool = True) -> tuple[tf.Tensor, tf.Tensor]:
        """The best classes for given inputs of this layer.

        Args:
            hidden: `(batch, d)`, what the layer is called on.
            k: Number of classes, at most `units`.
            exact: Look at all units, block by block. Otherwise at those that the sampler picks for
                the input, which is faster and may miss some.

        Returns:
            Labels `(batch, k) int32` and logits `(batch, k) float32`, falling, the lower label
            first among equals. With `exact=False`, -1 and -infinity where fewer than `k` were
            picked.

        Raises:
            ValueError: `k` is not in `1..units`, or the sampler has nothing to pick from.
            tf.errors.InvalidArgumentError: `hidden` is not finite.

        Memory: `(64, k)` a row and the output, never `(batch, units)`.

        Example:
        >>> import numpy as np
        >>> from tf_dslide import DSlideDense
        >>> layer = DSlideDense(1000)
        >>> layer.build((None, 16))
        >>> labels, scores = layer.top_k(np.ones((2, 16), "float32"), k=3)
        >>> labels.shape
        TensorShape([2, 3])
        """
        if require_positive("k", k) > self.units:
            raise ValueError(f"`k` is {k} but the layer has only {self.units} units")
        hidden = tf.cast(tf.convert_to_tensor(hidden), tf.float32)
        if self._split is not None:
            return self._split.top_k(
                self._sampled_weights, hidden, k, exact or self.sampler.selects_all
            )
        if exact:
            return self._sampled_weights.exact_top_k(hidden, k)
        if self.sampler.selects_all:
            raise ValueError(
                "`exact=False` needs a sampler that picks neurons; this layer has AllNeurons"
            )
        return self._sampled_weights.likely_top_k(hidden, k)
