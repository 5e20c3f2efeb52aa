"""A trained model that answers with its best classes."""

from typing import Any

import keras
import tensorflow as tf

from tf_dslide import lazy
from tf_dslide._checks import require_positive


def top_k_model(
    model: keras.Model, k: int = 5, exclude: Any = None, *, exact: bool = True
) -> keras.Model:
    """A Keras model whose `predict` gives the `k` best scores and labels of each row.

    It shares the weights of `model`, whatever kind of model that is, and nothing of size `(batch,
    units)` exists in it.

    Args:
        model: A model whose output is that of a `DSlideDense` or `DSlideLinear`.
        k: Number of classes.
        exclude: Labels that are not to be given: ids `(n,)` for all rows. With `"input"` the model
            takes a pair, the inputs of `model` and for each row its own ids `(batch, ..., n)`
            padded with -1, such as items that a user has bought.
        exact: Look at all units. Otherwise at those that the sampler picks, which is faster and may
            miss some.

    Returns:
        A model with the outputs logits `(batch, ..., k) float32`, falling, and labels
        `(batch, ..., k) int32`; minus infinity and -1 where fewer than `k` are left.

    Raises:
        ValueError: `k` is not in `1..units`, or the output is not that of such a layer; when the
            model is first called.

    Example:
    >>> import keras, numpy as np
    >>> from tf_dslide import DSlideDense, top_k_model
    >>> model = keras.Sequential([keras.Input((16,)), DSlideDense(1000)])
    >>> scores, labels = top_k_model(model, k=3).predict(np.ones((2, 16)), verbose=0)
    >>> labels.shape
    (2, 3)
    """
    return TopKModel(model, k, exclude, exact=exact)


@keras.saving.register_keras_serializable(package="tf_dslide")
class TopKModel(keras.Model):
    """What `top_k_model` returns."""

    def __init__(
        self,
        model: keras.Model,
        k: int = 5,
        exclude: Any = None,
        *,
        exact: bool = True,
        name: str | None = None,
    ) -> None:
        super().__init__(name=name)
        self.model = model
        self.k = require_positive("k", k)
        self.exclude = (
            exclude if exclude is None or isinstance(exclude, str) else [*map(int, exclude)]
        )
        self.exact = bool(exact)
        self.supports_jit = False

    def call(self, inputs: Any) -> tuple[tf.Tensor, tf.Tensor]:
        """Scores and labels."""
        exclude: Any = None
        if self.exclude == "input":
            inputs, exclude = inputs
        elif self.exclude is not None:
            exclude = tf.constant(self.exclude, tf.int64)
        logits = lazy.find(self.model(inputs, training=False))
        if logits is None:
            raise ValueError(
                f"the output of {self.model.name} is not that of a DSlideDense or DSlideLinear: "
                "give a model that ends in one"
            )
        return logits.best(self.k, exclude, self.exact)

    def get_config(self) -> dict[str, Any]:
        """The arguments that make this model again."""
        return {
            "model": keras.saving.serialize_keras_object(self.model),
            "k": self.k,
            "exclude": self.exclude,
            "exact": self.exact,
            "name": self.name,
        }

    @classmethod
    def from_config(cls, config: dict[str, Any], custom_objects: Any = None) -> "TopKModel":
        """A model from `get_config`."""
        model = keras.saving.deserialize_keras_object(config["model"], custom_objects)
        return cls(**{**config, "model": model})
