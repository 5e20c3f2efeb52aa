"""The Keras layers."""

from typing import Any, Self

import keras
import numpy as np
import tensorflow as tf

from tf_dslide import lazy, samplers, selectors
from tf_dslide._checks import of_format, require_positive
from tf_dslide._compat import gradient_is_recorded
from tf_dslide._costs import DenseLogitsNotice
from tf_dslide._native import ops
from tf_dslide.constraints import UnitRows
from tf_dslide.layer_sharding import LayerSharding
from tf_dslide.sharding import Shard, current_strategy

# Raised when the meaning of a saved layer changes; older and newer files are then refused.
FORMAT = 2


def in_training(training: bool | None) -> bool:
    """Whether a call is one of training.

    A model whose own `call` takes no `training` does not tell its layers. Then it is training if a
    gradient may be asked for.
    """
    return gradient_is_recorded() if training is None else bool(training)


# The arguments that the layers and Dense share.
_OF_DENSE = (
    *("units", "activation", "use_bias", "kernel_initializer", "bias_initializer"),
    *("kernel_regularizer", "bias_regularizer", "activity_regularizer"),
    *("kernel_constraint", "bias_constraint", "name", "trainable", "dtype"),
)


class _RowLayer(keras.layers.Layer):
    """What the layers share with `keras.layers.Dense`: arguments, weights, configuration."""

    # Whether a neuron is a row of `kernel`, where Dense has it as a column.
    _neurons_are_rows = True

    def __init__(
        self,
        units: int,
        activation: Any,
        use_bias: bool,
        kernel_initializer: Any,
        bias_initializer: Any,
        kernel_regularizer: Any,
        bias_regularizer: Any,
        activity_regularizer: Any,
        kernel_constraint: Any,
        bias_constraint: Any,
        strategy: Any,
        **settings: Any,
    ) -> None:
        super().__init__(activity_regularizer=activity_regularizer, **settings)
        self.strategy = strategy
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
        self._sharding = LayerSharding(self.units)

    @property
    def shard(self) -> Shard:
        """The units that `kernel` holds: all, unless a strategy splits the layer over ranks."""
        return self._sharding.shard

    def _split_units(self, parameters: int, is_output: bool) -> None:
        if self.strategy is not None:
            self._sharding = self.strategy.shard(self, self.units, parameters, is_output)

    def _add_weights(self, dim: int, kernel_shape: tuple[int, int], axis: int) -> None:
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
        """A weight, or this process' part of it along the units' axis."""
        local = tuple(self.shard.units if i == axis else length for i, length in enumerate(shape))
        initializer = self._sharding.initializer(initializer, shape, axis, f"{self.name}/{name}")
        weight = self.add_weight(name=name, shape=local, initializer=initializer, **settings)
        self._sharding.mark(weight, axis)
        return weight

    def _expect_whole(self, what: str) -> None:
        if self.shard.units != self.units:
            raise ValueError(
                f"{what} needs all of {self.name}, but this rank holds units "
                f"{self.shard.begin} to {self.shard.end} of {self.units}. Use "
                "tf_dslide.checkpoints: save_checkpoint on all ranks, then export."
            )

    def save_own_variables(self, store: Any) -> None:
        """Saves the weights.

        Raises:
            ValueError: This rank holds only a part of them.
        """
        self._expect_whole("saving a model")
        super().save_own_variables(store)

    def load_own_variables(self, store: Any) -> None:
        """Restores what `save_own_variables` saved.

        Raises:
            ValueError: The file holds nothing for this layer, or the weights of a `Dense`.
        """
        self._expect_own_file(store, [])
        super().load_own_variables(store)

    def _expect_own_file(self, store: Any, more: list[str]) -> None:
        """Checks that a file has this layer's weights and the entries `more`."""
        names = [str(i) for i in range(len(self.weights))]
        missing = [name for name in (*names, *more) if name not in store]
        if not missing:
            return
        kind = type(self).__name__
        hash_family = getattr(getattr(self, "sampler", None), "hash", None)
        raise ValueError(
            f"the saved weights of {self.name} lack {missing}: they were not written by a {kind} "
            f"of this version of tf_dslide (format {FORMAT}) with use_bias={self.use_bias}"
            + (f" and hash={type(hash_family).__name__}" if len(more) > 1 else "")
            + ". Weights of a keras.layers.Dense are brought over by "
            f"{kind}.from_dense(layer), once they are loaded into a model with that Dense."
        )

    @classmethod
    def from_dense(cls, dense: keras.layers.Dense, **options: Any) -> Self:
        """A layer with the arguments and weights of a `keras.layers.Dense`.

        Args:
            dense: The layer; built or not.
            **options: Arguments that `Dense` does not have, such as `sampler`, and others that are
                to differ, such as `name`.

        Raises:
            ValueError: `dense` is no `Dense`, or is quantized, or the new layer is split over
                ranks.

        Memory: a second copy of the weights.

        Example:
        >>> import keras
        >>> from tf_dslide import DSlideDense
        >>> dense = keras.layers.Dense(1000)
        >>> dense.build((None, 16))
        >>> DSlideDense.from_dense(dense, sampler="lsh").kernel.shape
        TensorShape([1000, 16])
        """
        if not isinstance(dense, keras.layers.Dense) or dense.quantization_mode is not None:
            raise ValueError(
                f"`dense` must be a keras.layers.Dense that is not quantized; received {dense!r}"
            )
        config = {name: value for name, value in dense.get_config().items() if name in _OF_DENSE}
        layer = cls.from_config({**config, **options, "format": FORMAT})
        if dense.built:
            layer.build((None, dense.kernel.shape[0]))
            layer._expect_whole("from_dense")
            values = [keras.ops.convert_to_numpy(dense.kernel)]
            if layer._neurons_are_rows:
                values[0] = values[0].T
            if dense.use_bias:
                values.append(keras.ops.convert_to_numpy(dense.bias))
            layer.set_weights(values)
        return layer

    def to_dense(self) -> keras.layers.Dense:
        """A `keras.layers.Dense` with the same arguments and weights, which needs nothing of ours.

        Raises:
            ValueError: This rank holds only a part of the weights.

        Memory: a second copy of the weights.

        Example:
        >>> from tf_dslide import DSlideDense
        >>> layer = DSlideDense(1000)
        >>> layer.build((None, 16))
        >>> layer.to_dense().kernel.shape
        TensorShape([16, 1000])
        """
        self._expect_whole("to_dense")
        config = {name: value for name, value in self.get_config().items() if name in _OF_DENSE}
        dense = keras.layers.Dense.from_config(config)
        if self.built:
            kernel, *bias = self.get_weights()
            dense.build((None, kernel.shape[1 if self._neurons_are_rows else 0]))
            dense.set_weights([kernel.T if self._neurons_are_rows else kernel, *bias])
        return dense

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


@keras.saving.register_keras_serializable(package="tf_dslide")
class SparseDense(_RowLayer):
    """A `Dense` layer for sparse features, whose gradient names only the features seen.

    `output = activation(input @ kernel + bias)`. With a `tf.SparseTensor` the work and the gradient
    depend on the number of non-zeros, not on the width: the gradient of `kernel` is a
    `tf.IndexedSlices` with distinct rows. What is sparse may be the activations of a `DSlideHidden`
    too: the gradient goes on to the values. A dense tensor works as in `keras.layers.Dense`.

    Args:
        units: Width of the output.
        activation: The activation function; none by default.
        use_bias: Whether a bias is added.
        kernel_initializer: What `kernel` starts from.
        bias_initializer: What `bias` starts from.
        kernel_regularizer: A penalty on `kernel`, at the cost of all weights a step.
        bias_regularizer: A penalty on `bias`.
        activity_regularizer: A penalty on the output.
        kernel_constraint: What `kernel` is projected to after a step, at the cost of all
            weights.
        bias_constraint: What `bias` is projected to after a step.
        strategy: An `MPIModelParallel` that splits the units over ranks; by default the one whose
            `scope()` is open, if any.
        name: Name of the layer.
        dtype: Its dtype or dtype policy; weights are `float32` in each.
        trainable: Whether the weights are trained.

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

    _neurons_are_rows = False

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
        *,
        strategy: Any = None,
        name: str | None = None,
        dtype: Any = None,
        trainable: bool = True,
    ) -> None:
        super().__init__(
            units,
            activation,
            use_bias,
            kernel_initializer,
            bias_initializer,
            kernel_regularizer,
            bias_regularizer,
            activity_regularizer,
            kernel_constraint,
            bias_constraint,
            current_strategy() if strategy is None else strategy,
            name=name,
            dtype=dtype,
            trainable=trainable,
        )

    def build(self, input_shape: Any) -> None:
        """Makes `kernel` `(features, units)` and `bias` `(units,)`."""
        dim = self._input_dim(input_shape)
        if self.strategy is not None and isinstance(self.kernel_constraint, UnitRows):
            raise ValueError(
                "UnitRows needs whole rows, but under an MPIModelParallel a rank holds a part "
                "of each feature's row of a SparseDense; leave the constraint out"
            )
        self._split_units(dim + self.use_bias, is_output=False)
        self._add_weights(dim, (dim, self.units), 1)
        self.built = True

    def call(self, inputs: Any) -> tf.Tensor:
        """Applies the layer."""
        if isinstance(inputs, tf.SparseTensor):
            # SciPy's matrices need not have ascending features; costs one look if they do.
            inputs = tf.sparse.reorder(tf.cast(inputs, tf.float32))
            inputs = inputs.with_values(self._sharding.enter(inputs.values))
            rows = ops.csr_from_sparse(inputs, self.kernel.shape[0])
            outputs = ops.csr_mat_mul(inputs.values, rows, self.kernel)
            width = self.kernel.shape[1]
            outputs = tf.cast(tf.ensure_shape(outputs, (None, width)), self.compute_dtype)
            if self.bias is not None:
                outputs = keras.ops.add(outputs, self.bias)
            seen = [inputs.indices, inputs.values]
        else:
            inputs = self._sharding.enter(inputs)
            outputs = _product(inputs, self.kernel, self.bias)
            seen = [tf.convert_to_tensor(inputs)]
        return self._sharding.activated(outputs, self.activation, seen)


class HashedLayer(_RowLayer):
    """What the layers share whose neurons a sampler picks: its state, its schedule, saving."""

    def __init__(self, sampler: samplers.Sampler, *dense: Any, **settings: Any) -> None:
        super().__init__(*dense, **settings)
        self.sampler = sampler
        self._built_weights: lazy.SampledWeights | None = None

    def build(self, input_shape: Any) -> None:
        """Makes `kernel` `(units, d)`, `bias` `(units,)` and the sampler's state."""
        dim = self._input_dim(input_shape)
        self._split_units(dim + self.use_bias, is_output=True)
        self._add_weights(dim, (self.units, dim), 0)
        with tf.init_scope():
            step = tf.Variable(0, dtype=tf.int64, trainable=False, name="sampler_step")
        selector = None if self.sampler.selects_all else self.sampler.selector(self.shard, dim)
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
        learned = self._learned()
        self._expect_own_file(store, ["sampler_schedule", *learned])
        names = [str(i) for i in range(len(self.weights))]
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

    With any other loss or metric, or a layer behind it, the logits are computed after all; in
    training that costs as much as `Dense`, and a `DenseCostWarning` says so once. Called eagerly,
    outside `tf.function`, they are computed although nobody needs them: wrap a training step of
    your own in `tf.function`.

    Args:
        units: Number of classes.
        activation: The activation function; none by default. With `"softmax"` or `"sigmoid"` the
            losses and metrics of this package still use the logits behind it; with another one
            they treat the output as any other tensor, at dense cost.
        use_bias: Whether a bias is added.
        kernel_initializer: What `kernel` starts from.
        bias_initializer: What `bias` starts from.
        kernel_regularizer: A penalty on `kernel`, at the cost of all weights a step.
        bias_regularizer: A penalty on `bias`.
        activity_regularizer: A penalty on the output, at dense cost.
        kernel_constraint: What `kernel` is projected to after a step, at the cost of all
            weights, but for `UnitRows`.
        bias_constraint: What `bias` is projected to after a step.
        sampler: Chooses the neurons that take part in a training step: a sampler of this package,
            its name, or `None` for `LshSampler()`.
        strategy: An `MPIModelParallel` that splits the units over ranks; by default the one whose
            `scope()` is open, if any.
        name: Name of the layer.
        dtype: Its dtype or dtype policy; weights are `float32` in each.
        trainable: Whether the weights are trained.

    Input: `(batch, ..., d)`; a `tf.SparseTensor` `(batch, d)` is made dense. Output:
        `(batch, ..., units)`.

    Randomness: `sampler` and its hash family have seeds; the result does not depend on the number
    of threads. Memory: `kernel` `(units, d)` (a neuron is one contiguous row), and the sampler's
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
        *,
        sampler: Any = None,
        strategy: Any = None,
        name: str | None = None,
        dtype: Any = None,
        trainable: bool = True,
    ) -> None:
        super().__init__(
            samplers.get(sampler),
            units,
            activation,
            use_bias,
            kernel_initializer,
            bias_initializer,
            kernel_regularizer,
            bias_regularizer,
            activity_regularizer,
            kernel_constraint,
            bias_constraint,
            current_strategy() if strategy is None else strategy,
            name=name,
            dtype=dtype,
            trainable=trainable,
        )
        self._notice = DenseLogitsNotice(self.name, 0 if self.sampler.selects_all else self.units)

    def call(self, inputs: tf.Tensor, training: bool | None = None) -> tf.Tensor:
        """The dense logits, carrying what computes with them lazily."""
        training = in_training(training)
        inputs = self._sharding.enter(inputs)
        logits = _product(inputs, keras.ops.transpose(self.kernel), self.bias)
        if training:
            logits = self._notice.attach(logits)
        logits = self._sharding.gather_logits(logits)
        outputs = self.activation(logits)
        if self.activation not in MONOTONE:
            return outputs
        self._notice.eager(outputs)
        return lazy.attach(outputs, self._lazy_logits(inputs, logits, training))

    def _lazy_logits(
        self, inputs: Any, logits: tf.Tensor | None, training: bool
    ) -> lazy.DenseLogits:
        if isinstance(inputs, tf.SparseTensor):
            inputs = tf.sparse.to_dense(inputs)
        leading = tf.shape(inputs)[:-1]
        x = tf.cast(tf.reshape(inputs, [-1, self.kernel.shape[1]]), tf.float32)
        return self._sharding.lazy_logits(self._sampled_weights, x, leading, logits, training)

    def top_k(
        self, hidden: Any, k: int = 5, exclude: Any = None, *, exact: bool = True
    ) -> tuple[tf.Tensor, tf.Tensor]:
        """The best classes for given inputs of this layer.

        `tf_dslide.top_k_model` does so for the inputs of a whole model.

        Args:
            hidden: `(batch, ..., d)`, what the layer is called on.
            k: Number of classes, at most `units`.
            exclude: Labels that are not to be given: ids `(n,)` for all rows, or for each row its
                own, as ids `(batch, ..., n)` padded with -1 or in another form that labels have.
            exact: Look at all units, block by block. Otherwise at those that the sampler picks for
                the input, which is faster and may miss some.

        Returns:
            Logits `(batch, ..., k) float32`, falling, and labels `(batch, ..., k) int32`, the lower
            label first among equals. Minus infinity and -1 where fewer than `k` are left, or were
            picked with `exact=False`.

        Raises:
            ValueError: `k` is not in `1..units`, or the sampler has nothing to pick from, or the
                excluded labels have no form that is known.
            tf.errors.InvalidArgumentError: `hidden` is not finite, or an excluded label is out of
                range.

        Memory: `(64, k)` a row and the output, never `(batch, units)`; with `exclude` as for so
        many more classes as a row excludes at most.

        Example:
        >>> import numpy as np
        >>> from tf_dslide import DSlideDense
        >>> layer = DSlideDense(1000)
        >>> layer.build((None, 16))
        >>> scores, labels = layer.top_k(np.ones((2, 16), "float32"), k=3)
        >>> labels.shape
        TensorShape([2, 3])
        """
        weights = self._sampled_weights
        hidden = tf.cast(tf.convert_to_tensor(hidden), tf.float32)
        if hidden.shape.rank < 2 or hidden.shape[-1] != weights.kernel.shape[1]:
            raise ValueError(
                f"`hidden` must be (batch, ..., {weights.kernel.shape[1]}), as the input of "
                f"{self.name}; received shape {hidden.shape}"
            )
        return self._lazy_logits(hidden, None, training=False).best(k, exclude, exact)


# Activations that keep the order of the logits, and whose losses are computed from these.
MONOTONE = (
    keras.activations.linear,
    keras.activations.softmax,
    keras.activations.sigmoid,
)
