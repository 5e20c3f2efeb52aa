"""Networks with one hidden layer that train by `fit`: with DSlideDense, and all stock Keras."""

from typing import Any


def dslide_model(
    features: int, hidden: int, units: int, sampler: Any, learning_rate: float = 1e-3
) -> Any:
    import keras

    from tf_dslide import DSlideDense, SlideCrossentropy, SparseAdam, SparseDense

    model = keras.Sequential(
        [
            keras.Input((features,), sparse=True),
            SparseDense(hidden, activation="relu"),
            DSlideDense(units, sampler=sampler),
        ]
    )
    model.compile(SparseAdam(learning_rate), SlideCrossentropy())
    return model


def dense_model(features: int, hidden: int, units: int) -> Any:
    """Stock Keras with a loss that takes label ids: dense label arrays would slow it down."""
    import keras
    import tensorflow as tf

    def crossentropy(y_true: tf.RaggedTensor, logits: tf.Tensor) -> tf.Tensor:
        rows = y_true.value_rowids()
        picked = tf.gather_nd(logits, tf.stack([rows, y_true.values], axis=1))
        mean = tf.math.segment_mean(picked, rows)
        return tf.reduce_mean(tf.reduce_logsumexp(logits, axis=1) - mean)

    class DenseModel(keras.Sequential):
        def compute_loss(self, x=None, y=None, y_pred=None, sample_weight=None, training=True):
            return crossentropy(y, y_pred)

    model = DenseModel(
        [
            keras.Input((features,), sparse=True),
            keras.layers.Dense(hidden, activation="relu"),
            keras.layers.Dense(units),
        ]
    )
    model.compile(keras.optimizers.Adam(1e-3), jit_compile=False)
    return model
