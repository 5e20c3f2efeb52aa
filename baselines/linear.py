"""D-SLIDE's linear classifier: features as buckets, without a hidden layer, in one process."""

from typing import TYPE_CHECKING

import numpy as np

from baselines.dslide import schedule, step_of_fit
from baselines.training import Session, StepMethod, stream_of

if TYPE_CHECKING:
    import tensorflow as tf


class DSlideLinear(StepMethod):
    """A `DSlideLinear`, trained as by `fit`. Its time has the finding of connections in it."""

    def __init__(self, session: Session) -> None:
        import keras

        import tf_dslide
        from tf_dslide.linear import usual_optimizer

        self._layer = tf_dslide.DSlideLinear(session.train.num_labels)
        self._train = session.train
        self._stream = stream_of(session)
        self._optimizer = usual_optimizer(schedule(session), session.task.batch_size)
        self._loss = tf_dslide.SlideBinaryCrossentropy()
        self._input = keras.Input((session.train.num_features,), sparse=True)

    def prepare(self) -> None:
        """Finds the connections."""
        import keras

        self._layer.adapt(self._train)
        model = keras.Sequential([self._input, self._layer])
        model.compile(self._optimizer, self._loss)
        model.make_train_function()
        self._model = model

    def step(self) -> float:
        """One step of `fit`."""
        return step_of_fit(self._model, self._stream)

    def best(self, features: "tf.SparseTensor", k: int) -> np.ndarray:
        """Exact."""
        return self._layer.top_k(features, k)[1].numpy()
