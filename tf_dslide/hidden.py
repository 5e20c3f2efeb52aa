"""A hidden layer whose neurons hashing picks."""

from typing import Any

import keras
import numpy as np
import tensorflow as tf

from tf_dslide import samplers, selectors
from tf_dslide._native import ops
from tf_dslide._native.ops import ActiveLogits, ActiveSet
from tf_dslide.layers import HashedLayer, in_training

# Activations with no slope where they are 0: such values need not be handed on.
_FLAT_WHERE_ZERO = (keras.activations.relu, keras.activations.relu6)

_INFERENCE = ("sampled", "all")


@keras.saving.register_keras_serializable(package="tf_dslide")
class DSlideHidden(HashedLayer):
    """A wide hidden layer that computes only the neurons hashing picks, for each sample its own.

    Each sample's input is hashed; the neurons of its buckets are its active ones, and the others
    count as 0 (SLIDE, arXiv 1903.03129, section 3; D-SLIDE, arXiv 2201.12667, section 3). The
    output is a `tf.SparseTensor` of their activations. A `SparseDense` takes it, and its work is
    then proportional to the active neurons too. Nothing of size `(batch, units)` exists in
    training. The choice itself has no gradient; the active neurons' activations have theirs, and
    the gradients of `kernel` and `bias` name the active neurons only, so that `SparseAdam` and
    `SparseAdagrad` move no others.

    `DSlideDense` and `keras.layers.Dense` take the output as well, and so does another
    `DSlideHidden`. These hold `units` weights for each of their own neurons, and the ones of this
    package make the batch's input dense, `(batch, units)`. So put a narrow `SparseDense` between
    two very wide layers.

    Args:
        units: Number of neurons.
        activation: An elementwise function with `f(0) = 0`: `"relu"`, `"linear"`, `"tanh"`,
            `"gelu"`, and others like them. Behind `"relu"` and `"relu6"` the values that are 0 are
            left out.
        use_bias: Whether a bias is added.
        kernel_initializer: What `kernel` starts from.
        bias_initializer: What `bias` starts from.
        kernel_regularizer: A penalty on `kernel`, at the cost of all weights a step.
        bias_regularizer: A penalty on `bias`.
        activity_regularizer: `None`: it would need a dense output.
        kernel_constraint: What `kernel` is projected to after a step, at the cost of all weights,
            but for `UnitRows`.
        bias_constraint: What `bias` is projected to after a step.
        sampler: Chooses the active neurons: `LshSampler` or `AllNeurons`, or
            its name; `None` is `LshSampler(random=0, head=0)`. A share of `random` neurons is
            active in training only; nothing is added to their logits.
        inference: `"sampled"`: outside training the sampler chooses too, the same neurons for the
            same input whatever batch it is in. It takes up to four times as many from a bucket as
            in training, and hashed neurons instead of random ones. `"all"`: all neurons are
            active, and an array `(batch, units)` exists meanwhile.
        strategy: `None`: the layer cannot be split over ranks yet.
        name: Name of the layer.
        dtype: Its dtype or dtype policy; weights are `float32` in each.
        trainable: Whether the weights are trained.

    Input: `(batch, d)`, a dense tensor or a `tf.SparseTensor`. Output:
        `tf.SparseTensor` `(batch, units)`, in ascending order.

    Randomness: as in `DSlideDense`. Memory: `kernel` `(units, d)`, and the sampler's tables. Time a
        sample: `active * d`.

    Raises:
        ValueError: `units` is not positive; `activation` is not elementwise or not 0 at 0; the
            sampler chooses by chance alone; `strategy` or `activity_regularizer` is given; the
            input's last axis is unknown or empty, or its rank is not 2.
        tf.errors.InvalidArgumentError: The input, or weights at a rebuild, are not finite.

    Example:
    >>> import keras, numpy as np
    >>> from tf_dslide import DSlideDense, DSlideHidden, SlideCrossentropy, SparseAdam, SparseDense
    >>> model = keras.Sequential([
    ...     keras.Input((16,)),
    ...     DSlideHidden(4096),
    ...     SparseDense(32, activation="relu"),
    ...     DSlideDense(1000),
    ... ])
    >>> model.compile(SparseAdam(), SlideCrossentropy())
    >>> x, y = np.ones((8, 16), "float32"), np.arange(8)
    >>> history = model.fit(x, y, verbose=0)
    >>> model.predict(x, verbose=0).shape
    (8, 1000)
    """

    def __init__(
        self,
        units: int,
        activation: Any = "relu",
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
        inference: str = "sampled",
        strategy: Any = None,
        name: str | None = None,
        dtype: Any = None,
        trainable: bool = True,
    ) -> None:
        if strategy is not None:
            raise ValueError(
                "a DSlideHidden is not split over ranks yet: leave `strategy` out (every rank then "
                "holds and trains the whole layer), or use a SparseDense with the strategy"
            )
        if activity_regularizer is not None:
            raise ValueError(
                "`activity_regularizer` needs a dense output, but that of a DSlideHidden is "
                "sparse; use `kernel_regularizer`, or regularize the layer behind it"
            )
        if inference not in _INFERENCE:
            raise ValueError(f"`inference` must be one of {_INFERENCE}; received {inference!r}")
        sampler = (
            samplers.LshSampler(random=0.0, head=0.0) if sampler is None else samplers.get(sampler)
        )
        if isinstance(sampler, (samplers.UniformSampler, samplers.LogUniformSampler)):
            raise ValueError(
                f"`sampler` of a DSlideHidden must look at the input; {type(sampler).__name__} "
                "chooses by chance. Use LshSampler or AllNeurons."
            )
        super().__init__(
            sampler,
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
            strategy,
            name=name,
            dtype=dtype,
            trainable=trainable,
        )
        _check_activation(self.activation)
        self.inference = inference
        self.input_spec = keras.layers.InputSpec(ndim=2)

    def build(self, input_shape: Any) -> None:
        """Makes `kernel` `(units, d)`, `bias` `(units,)` and the sampler's state."""
        super().build(input_shape)
        self.input_spec = keras.layers.InputSpec(ndim=2, axes={-1: self.kernel.shape[1]})

    def call(self, inputs: Any, training: bool | None = None) -> tf.SparseTensor:
        """The active neurons' activations."""
        if isinstance(inputs, tf.SparseTensor):
            inputs = tf.sparse.to_dense(tf.sparse.reorder(inputs))
        x = tf.cast(inputs, tf.float32)
        active = self._choose(tf.stop_gradient(x), in_training(training))
        view = ops.csc_from_csr(active, self.units)
        logits = ops.active_logits(x, view, self.kernel, self.bias)
        outputs = ops.sparse_from_active(
            ActiveLogits(*map(self.activation, logits)),
            active,
            self.units,
            keep_zeros=self.activation not in _FLAT_WHERE_ZERO,
        )
        return tf.cast(outputs, self.compute_dtype)

    def _choose(self, x: tf.Tensor, training: bool) -> ActiveSet:
        """The neurons to compute for each row of `x`."""
        sampled = self._sampled_weights
        if training:
            sampled.advance()
        labels = selectors.no_labels(x)
        if sampled.selector is None or (self.inference == "all" and not training):
            return ActiveSet(labels, tf.range(self.units))
        # Inside a layer with mixed precision the public values are cast copies.
        kernel, bias = (v if v is None else v._value for v in (self.kernel, self.bias))
        return sampled.selector.select(
            x, labels if training else None, kernel, bias, sampled.step
        ).active

    def compute_output_spec(self, inputs: Any, training: bool | None = None) -> keras.KerasTensor:
        """A sparse tensor `(batch, units)`."""
        shape = self.compute_output_shape(inputs.shape)
        return keras.KerasTensor(shape, dtype=self.compute_dtype, sparse=True)

    def get_config(self) -> dict[str, Any]:
        """The arguments that make this layer again, and the format of its file."""
        return {**super().get_config(), "inference": self.inference}


def _check_activation(activation: Any) -> None:
    """Raises a `ValueError` unless values that are left out may count as 0."""
    name = getattr(activation, "__name__", repr(activation))
    if isinstance(activation, keras.layers.Layer):
        raise ValueError(f"`activation` must be a function or its name; received the layer {name}")
    values = np.array([[-3.0, -0.6, 0.0], [0.3, 1.2, 4.0]], np.float32)
    with tf.init_scope():
        together = np.asarray(activation(tf.constant(values)))
        apart = [np.asarray(activation(tf.constant([[value]]))) for value in values.flat]
    if together.shape != values.shape or not np.allclose(
        together, np.reshape(apart, -1)[: values.size].reshape(values.shape), atol=1e-5
    ):
        raise ValueError(
            f"`activation` of a DSlideHidden must act on each value alone; {name} does not"
        )
    if together[0, 2] != 0:
        raise ValueError(
            f"`activation` of a DSlideHidden must be 0 at 0, since neurons that are not active "
            f"count as 0; {name} gives {together[0, 2]}. Use 'relu', 'tanh', 'gelu' or 'linear'."
        )
