"""What the Keras tests share: NumPy references in float64, random data, and a fresh process."""

import os
import subprocess
import sys
import textwrap
from collections.abc import Sequence
from pathlib import Path

import keras
import numpy as np
import tensorflow as tf

from tf_dslide import AllNeurons, DSlideDense
from tf_dslide.selectors import Selection

ROOT = Path(__file__).resolve().parents[2]

Labels = list[list[int]]


def multi_hot(labels: Labels, units: int) -> np.ndarray:
    """`(rows, units)` of 0 and 1."""
    hot = np.zeros((len(labels), units), "float32")
    for row, ids in enumerate(labels):
        hot[row, ids] = 1
    return hot


def padded(labels: Labels, width: int | None = None, dtype: str = "int64") -> np.ndarray:
    """Ids `(rows, width)`, -1 where a row has no more."""
    width = max([1, *map(len, labels)]) if width is None else width
    out = np.full((len(labels), width), -1, dtype)
    for row, ids in enumerate(labels):
        out[row, : len(ids)] = ids
    return out


def random_labels(
    rng: np.random.Generator, rows: int, units: int, most: int = 4, least: int = 0
) -> Labels:
    """Distinct labels, unsorted, between `least` and `most` a row."""
    counts = rng.integers(min(least, units), min(most, units) + 1, rows)
    return [rng.choice(units, n, replace=False).tolist() for n in counts]


def targets(labels: Labels, units: int) -> np.ndarray:
    """The uniform distribution over a row's labels; zeros without labels."""
    hot = multi_hot(labels, units).astype("float64")
    return hot / np.maximum(hot.sum(axis=1, keepdims=True), 1)


def softmax_crossentropy(logits: np.ndarray, wanted: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Loss of each row and its gradient with respect to the logits."""
    logits = logits.astype("float64")
    shifted = logits - logits.max(axis=1, keepdims=True)
    log_softmax = shifted - np.log(np.exp(shifted).sum(axis=1, keepdims=True))
    has_labels = wanted.sum(axis=1, keepdims=True) > 0
    return -(wanted * log_softmax).sum(axis=1), (np.exp(log_softmax) - wanted) * has_labels


def sampled_crossentropy(
    logits: np.ndarray, wanted: np.ndarray, active: Labels
) -> tuple[np.ndarray, np.ndarray]:
    """The same over each row's active set: other logits count as -infinity."""
    out = np.full(logits.shape, -1e30)
    for row, ids in enumerate(active):
        out[row, ids] = logits[row, ids]
    return softmax_crossentropy(out, wanted)


def active_rows(selection: Selection) -> tuple[Labels, list[list[float]]]:
    """Each row's active neurons, ascending, and what is added to the logit of each."""
    own, shared = selection.active
    splits, own_ids, shared_ids = own.row_splits.numpy(), own.ids.numpy(), shared.numpy()
    rows = len(splits) - 1
    assert (np.diff(shared_ids) > 0).all()
    own_added, offsets = selection.logit_adjustment
    own_added = tf.zeros(own.ids.shape) if own_added is None else own_added
    shared_added = np.zeros((rows, len(shared_ids)), np.float32)
    if offsets is not None:
        shared_added += np.outer(offsets.rows, offsets.neurons)
    sets, added = [], []
    for row in range(rows):
        entries = slice(*splits[row : row + 2])
        assert (np.diff(own_ids[entries]) > 0).all()
        # A shared neuron that is among the row's own counts once, as its own.
        offsets = dict(zip(shared_ids.tolist(), shared_added[row].tolist(), strict=True))
        offsets.update(zip(own_ids[entries].tolist(), own_added[entries].numpy(), strict=True))
        sets.append(sorted(offsets))
        added.append([float(offsets[i]) for i in sets[-1]])
    return sets, added


class RowAdam:
    """Adam on the rows of a gradient's support, which first make the steps missed; in float64."""

    def __init__(self, shape: Sequence[int], rate: float, decay: float = 0.0) -> None:
        self.m, self.v, self.t = np.zeros(shape), np.zeros(shape), 0
        self.rate, self.decay = rate, decay
        self.last = np.zeros(shape[0], int)

    def update(self, weight: np.ndarray, gradient: np.ndarray, rows: np.ndarray) -> None:
        self.catch_up(weight, rows)
        self.t += 1
        self._step(weight, gradient[rows], rows, self.t)
        self.last[rows] = self.t

    def catch_up(self, weight: np.ndarray, rows: np.ndarray) -> None:
        for step in range(1, self.t + 1):
            late = rows[self.last[rows] < step]
            self._step(weight, 0.0, late, step)
        self.last[rows] = self.t

    def _step(self, weight: np.ndarray, g: np.ndarray | float, rows: np.ndarray, t: int) -> None:
        self.m[rows] = 0.9 * self.m[rows] + 0.1 * g
        self.v[rows] = 0.999 * self.v[rows] + 0.001 * np.square(g)
        m, v = self.m[rows] / (1 - 0.9**t), self.v[rows] / (1 - 0.999**t)
        # Keras adds epsilon before the bias correction of the second moment.
        epsilon = 1e-8 / np.sqrt(1 - 0.999**t)
        weight[rows] -= self.rate * (m / (np.sqrt(v) + epsilon) + self.decay * weight[rows])


def close(found: object, wanted: object, relative: float = 1e-5, floor: float = 1e-6) -> None:
    """Asserts that the largest error is `relative` to the largest value, or below `floor`."""
    a, b = np.asarray(found, "float64"), np.asarray(wanted, "float64")
    assert a.shape == b.shape, f"shapes {a.shape} and {b.shape}"
    if b.size == 0:
        return
    error, scale = np.abs(a - b).max(), np.abs(b).max()
    assert error <= max(relative * scale, floor * min(1.0, relative / 1e-5)), (
        f"error {error:.3g} at scale {scale:.3g}"
    )


def dense_twin(layer: DSlideDense) -> keras.layers.Dense:
    """A `Dense` layer with the same weights."""
    kernel = layer.kernel.numpy()
    twin = keras.layers.Dense(
        layer.units, use_bias=layer.use_bias, activation=layer.activation, dtype=layer.dtype_policy
    )
    twin.build((None, kernel.shape[1]))
    twin.kernel.assign(kernel.T)
    if layer.use_bias:
        twin.bias.assign(layer.bias.numpy())
    return twin


def wide_model(units: int, dim: int, **kwargs: object) -> keras.Sequential:
    """One `DSlideDense` with random bias, all neurons active by default."""
    kwargs = {"sampler": AllNeurons(), "bias_initializer": "random_normal", **kwargs}
    return keras.Sequential([keras.Input((dim,)), DSlideDense(units, **kwargs)])


def dense(gradient: object) -> np.ndarray:
    """A gradient as an array."""
    return tf.convert_to_tensor(gradient).numpy()


def run_python(code: str, *args: object, limit_s: int = 120, **environment: str) -> str:
    """Runs `code` in a fresh process and returns what it printed."""
    program = f"import tests.fewer_imports\n{textwrap.dedent(code)}"
    done = subprocess.run(
        [sys.executable, "-c", program, *map(str, args)],
        env={
            **os.environ,
            "PYTHONPATH": str(ROOT),
            "TF_CPP_MIN_LOG_LEVEL": "3",
            "CUDA_VISIBLE_DEVICES": "",
            **environment,
        },
        capture_output=True,
        text=True,
        timeout=limit_s,
        check=False,
    )
    assert done.returncode == 0, f"exit status {done.returncode}:\n{done.stderr[-4000:]}"
    return done.stdout
