"""A linear classifier whose kernel is sparse: a feature has weights for labels it occurs with."""

from typing import Any

import keras
import numpy as np
import tensorflow as tf

from tf_dslide import lazy
from tf_dslide._checks import of_format, require_positive
from tf_dslide._costs import DenseLogitsNotice
from tf_dslide._native import ops
from tf_dslide._native.ops import Csr, Features, SparseKernel
from tf_dslide.data.dataset import Dataset
from tf_dslide.layers import MONOTONE, in_training
from tf_dslide.optimizers import SparseAdagrad

# Active neurons by default. P@1 of yso-finna, 2.4 labels a sample, after two epochs: 44.3 % with
# 15, 44.5 % with 25, 43.9 % with 50.
_LEAST_ACTIVE = 25
_ACTIVE_FOR_EACH_LABEL = 10

# Raised when the meaning of a saved layer changes; files of another one are then refused.
FORMAT = 2


@keras.saving.register_keras_serializable(package="tf_dslide")
class DSlideLinear(keras.layers.Layer):
    """A linear one-vs-rest classifier of sparse features with very many classes.

    `logits = input @ kernel + bias`, where the kernel has a weight only for features and labels
    that occur together in the training data: `adapt` finds these pairs and starts each weight at
    the share of the feature's samples that have the label. A feature is thus a bucket of neurons,
    as those of a hash table, and a sample's active set are the neurons of the highest logits. In
    training only these and the labels are computed and updated.

    Words decide much in tagging, and a hidden layer of some hundred neurons cannot tell ten
    thousand words apart: on short texts this layer is more accurate than a network, and it is
    trained in a pass or two. Train it with `SlideBinaryCrossentropy` and `SparseAdagrad`.

    Args:
        units: Number of classes.
        activation: `None`, `"softmax"` or `"sigmoid"`.
        use_bias: Whether each class has a bias.
        bias_initializer: What `bias` starts from; by default such that a class for which no feature
            speaks has a probability below 1 %.
        active: Neurons besides its labels that are active in a sample in training, at most; by
            default ten for each label that a sample of the data has on average, 25 at least. Few
            are good for the first place: the best wrong labels are learned from. More are good for
            the places after it.
        weights_per_feature: Classes that a feature has a weight for, at most.
        scale: The weight to start with if every sample with the feature has the label.
        smoothing: Samples without any label that each feature is taken to have besides, so that a
            rare feature says less.
        train_bias: Whether the biases are trained. Only active neurons' are, which are hard
            negatives most of the time: on short texts a point of precision is lost by it.
        name: Name of the layer.
        dtype: Its dtype or dtype policy; weights are `float32` in each.
        trainable: Whether the weights are trained.

    Input: `(batch, features)`, `tf.SparseTensor` or dense, best with TF-IDF features in rows of
        length 1. Output: `(batch, units)` logits, which the losses and metrics of this package do
        not look at: inside `fit` and `evaluate` nothing of size `(batch, units)` exists.

    Raises:
        ValueError: An argument is out of range, or the layer is built before `adapt`.
        tf.errors.InvalidArgumentError: A feature is out of range, or NaN or infinite; the message
            names row, feature and value.

    Randomness: none. The result does not depend on the number of threads. Memory: 8 bytes a weight
    (`weights_per_feature * features` at most) and what the optimizer keeps of it. Time a step: the
    weights of the batch's features, `non-zeros * weights_per_feature` at most.

    Example:
    >>> import keras
    >>> from tf_dslide import DSlideLinear, PrecisionAtK, SlideBinaryCrossentropy, SparseAdagrad
    >>> from tf_dslide.data import batches, make_preset
    >>> data = make_preset("small", num_samples=300)
    >>> layer = DSlideLinear(data.num_labels)
    >>> layer.adapt(data)
    >>> model = keras.Sequential([keras.Input((data.num_features,), sparse=True), layer])
    >>> model.compile(SparseAdagrad(1.0, initial_accumulator_value=1e-6), SlideBinaryCrossentropy())
    >>> history = model.fit(batches(data, 64, shuffle=True), epochs=2, verbose=0, shuffle=False)
    >>> history.history["loss"][1] < history.history["loss"][0]
    True
    """

    def __init__(
        self,
        units: int,
        activation: Any = None,
        use_bias: bool = True,
        bias_initializer: Any = None,
        *,
        active: int | None = None,
        weights_per_feature: int = 1000,
        scale: float = 7.0,
        smoothing: float = 3.0,
        train_bias: bool = False,
        name: str | None = None,
        dtype: Any = None,
        trainable: bool = True,
    ) -> None:
        super().__init__(name=name, dtype=dtype, trainable=trainable)
        self.activation = keras.activations.get(activation)
        if self.activation not in MONOTONE:
            raise ValueError(
                "`activation` must be None, 'softmax' or 'sigmoid', which the losses and metrics "
                f"look behind; received {activation!r}"
            )
        self.units = require_positive("units", units)
        self.active = None if active is None else require_positive("active", active)
        self.weights_per_feature = require_positive("weights_per_feature", weights_per_feature)
        if scale < 0 or smoothing < 0:
            raise ValueError(
                f"`scale` and `smoothing` must not be negative; received {scale} and {smoothing}"
            )
        self.scale = float(scale)
        self.smoothing = float(smoothing)
        self.use_bias = bool(use_bias)
        if bias_initializer is None:
            bias_initializer = keras.initializers.Constant(-5.0)
        self.bias_initializer = keras.initializers.get(bias_initializer)
        self.train_bias = bool(train_bias)
        self.supports_jit = False
        self._notice = DenseLogitsNotice(self.name, self.units)
        self.input_spec = keras.layers.InputSpec(ndim=2)
        self._size: tuple[int, int] | None = None  # features and weights
        self._found: tuple[Any, Any, Any] | None = None
        self.splits: Any = None
        self.neurons: Any = None
        self.kernel: Any = None
        self.bias: Any = None

    def adapt(self, data: Any, labels: Any = None) -> None:
        """Finds features and labels that occur together; call it before the layer is built.

        Args:
            data: A `tf_dslide.data.Dataset`, or features as a SciPy matrix `(samples, features)`.
            labels: With a matrix of features, the labels as a sparse multi-hot matrix
                `(samples, units)`.

        Raises:
            ValueError: The layer is built already, or the data have another number of labels than
                the layer has units.

        Time: one pass over the pairs of features and labels of each sample. Memory: as much again
        as the weights take.

        Example:
        >>> from tf_dslide import DSlideLinear
        >>> from tf_dslide.data import make_preset
        >>> layer = DSlideLinear(3000)
        >>> layer.adapt(make_preset("small", num_samples=300))
        """
        if self.built:
            raise ValueError(
                f"{self.name} is built already: call `adapt` before it is called or added to a "
                "model, or make a new layer"
            )
        dataset = data if isinstance(data, Dataset) else Dataset(data, labels)
        if dataset.num_labels != self.units:
            raise ValueError(
                f"{self.name} has {self.units} units, but the data have {dataset.num_labels} labels"
            )
        splits, neurons, together = ops.cooccurrences(
            _csr(dataset.features),
            dataset.num_features,
            _csr(dataset.labels),
            self.units,
            self.weights_per_feature,
            self.smoothing,
        )
        if self.active is None:
            labels_a_sample = dataset.labels.nnz / max(1, dataset.num_samples)
            self.active = max(_LEAST_ACTIVE, round(_ACTIVE_FOR_EACH_LABEL * labels_a_sample))
        counts = np.bincount(dataset.features.indices, minlength=dataset.num_features)
        with np.errstate(divide="ignore"):
            weight_of_one = np.float32(self.scale) / (counts + self.smoothing)
        weights = together.numpy() * np.repeat(weight_of_one, np.diff(splits.numpy()))
        self._size = dataset.num_features, int(neurons.shape[0])
        self._found = splits, neurons, weights.astype(np.float32)

    def build(self, input_shape: Any) -> None:
        """Makes `splits`, `neurons`, `kernel` `(weights,)` and `bias` `(units,)`."""
        if self._size is None:
            raise ValueError(
                f"{self.name} does not know yet which features and labels belong together: call "
                "`adapt` with the training data first"
            )
        features, weights = self._size
        if input_shape[-1] != features:
            raise ValueError(
                f"{self.name} was adapted to data with {features} features, but its input has the "
                f"shape {tuple(input_shape)}"
            )
        if keras.backend.standardize_dtype(self.variable_dtype) != "float32":
            raise ValueError(
                f"DSlideLinear keeps its weights in float32; received the dtype policy "
                f"{self.dtype_policy.name!r}. Use 'float32', 'mixed_float16' or 'mixed_bfloat16'."
            )
        # Initializers, since Keras may make the values later than it builds the layer.
        splits, neurons, kernel = (_starting_from(value) for value in self._found or [None] * 3)
        self._found = None
        self.splits = self.add_weight(
            name="splits", shape=(features + 1,), dtype="int64", initializer=splits, trainable=False
        )
        self.neurons = self.add_weight(
            name="neurons", shape=(weights,), dtype="int32", initializer=neurons, trainable=False
        )
        self.kernel = self.add_weight(name="kernel", shape=(weights,), initializer=kernel)
        if self.use_bias:
            self.bias = self.add_weight(
                name="bias",
                shape=(self.units,),
                initializer=self.bias_initializer,
                trainable=self.train_bias,
            )
        self.built = True

    def _sparse_kernel(self) -> SparseKernel:
        splits, neurons = ops.value_of(self.splits), ops.value_of(self.neurons)
        return SparseKernel(splits, neurons, self.kernel, self.bias, self.units)

    def call(self, inputs: Any, training: bool | None = None) -> tf.Tensor:
        """The dense logits, carrying what computes with them lazily."""
        x, kernel = self._features(inputs), self._sparse_kernel()
        training = in_training(training)
        logits = tf.ensure_shape(ops.sparse_linear_logits(x, kernel), (None, self.units))
        if training:
            logits = self._notice.attach(logits)
        outputs = self.activation(tf.cast(logits, self.compute_dtype))
        return lazy.attach(outputs, self._lazy_logits(x, kernel, logits, training))

    def _lazy_logits(
        self, x: Features, kernel: SparseKernel, logits: tf.Tensor | None, training: bool
    ) -> lazy.SparseLinearLogits:
        leading = tf.shape(x.rows.row_splits)[:1] - 1
        assert self.active is not None, "`adapt` sets it"
        return lazy.SparseLinearLogits(kernel, x, self.active, leading, logits, training)

    def _features(self, inputs: Any) -> Features:
        if not isinstance(inputs, tf.SparseTensor):
            inputs = tf.sparse.from_dense(tf.convert_to_tensor(inputs))
        inputs = tf.sparse.reorder(tf.cast(inputs, tf.float32))
        return Features(ops.csr_from_sparse(inputs, self.splits.shape[0] - 1), inputs.values)

    def top_k(self, inputs: Any, k: int = 5, exclude: Any = None) -> tuple[tf.Tensor, tf.Tensor]:
        """The best classes, exactly.

        Args:
            inputs: `(batch, features)`, what the layer is called on.
            k: Number of classes, at most `units`.
            exclude: Labels that are not to be given, as in `DSlideDense.top_k`.

        Returns:
            Logits `(batch, k) float32`, falling, and labels `(batch, k) int32`, the lower label
            first among equals; minus infinity and -1 where fewer than `k` are left.

        Raises:
            ValueError: `k` is not in `1..units`, or the layer is not built.

        Memory: the output and the neurons that a row's features have weights for.

        Example:
        >>> from tf_dslide import DSlideLinear
        >>> layer = DSlideLinear(2)
        >>> layer.adapt([[1.0, 0.0], [0.0, 1.0]], [[1, 0], [0, 1]])
        >>> layer.build((None, 2))
        >>> layer.top_k([[0.0, 1.0]], k=1)[1].numpy().tolist()
        [[1]]
        """
        if not self.built:
            raise ValueError(f"{self.name} is not built: call it on an input first")
        logits = self._lazy_logits(self._features(inputs), self._sparse_kernel(), None, False)
        return logits.best(k, exclude, exact=True)

    def compute_output_shape(self, input_shape: Any) -> tuple[int | None, ...]:
        """`(batch, units)`."""
        return (*input_shape[:-1], self.units)

    def compute_output_spec(self, inputs: Any, training: bool | None = None) -> keras.KerasTensor:
        """Dense, although the input is sparse."""
        return keras.KerasTensor(self.compute_output_shape(inputs.shape), self.compute_dtype)

    def get_config(self) -> dict[str, Any]:
        """The arguments that make this layer again, its size, and the format of its file."""
        return {
            **super().get_config(),
            "units": self.units,
            "activation": keras.activations.serialize(self.activation),
            "active": self.active,
            "weights_per_feature": self.weights_per_feature,
            "scale": self.scale,
            "smoothing": self.smoothing,
            "use_bias": self.use_bias,
            "bias_initializer": keras.initializers.serialize(self.bias_initializer),
            "train_bias": self.train_bias,
            "size": self._size,
            "format": FORMAT,
        }

    @classmethod
    def from_config(cls, config: dict[str, Any]) -> "DSlideLinear":
        """A layer from `get_config`, whose sparse kernel comes with its weights.

        Raises:
            ValueError: The configuration was saved in another format.
        """
        config = of_format(cls.__name__, config, FORMAT)
        size = config.pop("size", None)
        layer = cls(**config)
        layer._size = tuple(size) if size else None
        return layer


def _starting_from(value: Any) -> Any:
    """An initializer that gives `value`, or zeros to be loaded over."""
    if value is None:
        return "zeros"
    return lambda shape, dtype=None: tf.convert_to_tensor(value, dtype)


def usual_optimizer(learning_rate: Any, batch_size: int) -> SparseAdagrad:
    """The optimizer that suits a `DSlideLinear`.

    A loss is a mean over the batch, so that gradients are as small as the batch is large: the
    accumulator starts at what a few samples bring, and epsilon is too small to damp them.

    Args:
        learning_rate: Of the first step, as Keras takes it; 1 is usual, best with decay.
        batch_size: Samples a step.

    Example:
    >>> from tf_dslide.linear import usual_optimizer
    >>> optimizer = usual_optimizer(1.0, batch_size=256)
    """
    return SparseAdagrad(
        learning_rate, initial_accumulator_value=0.1 / batch_size**2, epsilon=1e-12
    )


def _csr(matrix: Any) -> Csr:
    return Csr(tf.constant(matrix.indptr, tf.int64), tf.constant(matrix.indices.astype(np.int32)))
