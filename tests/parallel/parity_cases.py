"""The ranks' model against the same model in one process, case by case."""

from typing import Any
from unittest import mock

import keras
import numpy as np
import tensorflow as tf

from tf_dslide import (
    AllNeurons,
    DSlideDense,
    DSlideHidden,
    LearnedHash,
    LogUniformSampler,
    LshSampler,
    NDCGAtK,
    PrecisionAtK,
    SimHash,
    SlideCrossentropy,
    SparseAdam,
    SparseDense,
    UniformSampler,
    lazy,
    samplers,
    selectors,
    sharding,
)
from tf_dslide._native import ops
from tf_dslide._native.ops import ActiveSet, Csr
from tf_dslide.parallel.exchanges import labels_within

FEATURES, ROWS = 30, 13


class Tables(samplers.Sampler):
    """One process whose tables are split in ranges: the reference for hashing on ranks."""

    def __init__(self, sampler, ranks):
        self.sampler, self.ranks = sampler, ranks

    def selector(self, shard, dim):
        ranges = sharding.equal_ranges(shard.total, self.ranks)
        return TablesSelector(self.sampler, shard.total, dim, ranges)


class TablesSelector(selectors.Selector):
    def __init__(self, sampler, units, dim, ranges):
        self.parts = [sharding.Shard(*edges, units) for edges in ranges]
        self.selectors = [sampler.selector(part, dim) for part in self.parts]

    def select(self, x, labels, kernel, bias, step, labels_per_row=None):
        assert labels_per_row is None
        kernel, bias = (tf.convert_to_tensor(v) for v in (kernel, bias))
        chosen = []
        mean = None if labels is None else selectors.mean_labels(labels)
        for part, selector in zip(self.parts, self.selectors, strict=True):
            mine = None if labels is None else labels_within(labels, part.begin, part.end)
            cut = slice(part.begin, part.end)
            chosen.append(selector.select(x, mine, kernel[cut], bias[cut], step, mean))
        return joined(chosen, self.parts, tf.shape(x)[0])

    def invalidate(self):
        for selector in self.selectors:
            selector.invalidate()


def joined(chosen, parts, rows):
    """One selection for all parts; its offsets are a matrix."""
    own = tf.concat(
        [
            tf.RaggedTensor.from_row_splits(
                c.active.own.ids + part.begin, c.active.own.row_splits, validate=False
            )
            for c, part in zip(chosen, parts, strict=True)
        ],
        axis=1,
    )
    shared = tf.concat([c.active.shared + p.begin for c, p in zip(chosen, parts, strict=True)], 0)
    matrix = [
        tf.zeros([rows, tf.size(c.active.shared)])
        if c.logit_adjustment[1] is None
        else c.logit_adjustment[1].rows[:, None] * c.logit_adjustment[1].neurons[None, :]
        for c in chosen
    ]
    active = ActiveSet(Csr(own.row_splits, tf.cast(own.values, tf.int32)), shared)
    return selectors.Selection(active, (None, tf.concat(matrix, axis=1)))


softmax_crossentropy = ops.softmax_crossentropy


def with_matrix(logits, active, labels, offsets=None):
    if isinstance(offsets, tf.Tensor):
        logits, offsets = logits._replace(shared=logits.shared + offsets), None
    return softmax_crossentropy(logits, active, labels, offsets)


def data(seed, rows, units, sparse):
    """Features and labels padded with -1: some rows without, some with the same label twice."""
    rng = np.random.default_rng(seed)
    x = rng.normal(size=(rows, FEATURES)).astype("float32")
    x *= rng.random(x.shape) < 0.4
    y = rng.integers(-1, units, (rows, 4))
    y[rows // 2] = -1
    y[0] = y[0, 0]
    y[1] = np.clip([0, units // 2, units - 1, units // 3], 0, units - 1)
    return (tf.sparse.from_dense(x) if sparse else tf.constant(x)), y


def build(case, strategy, ranks, eager):
    keras.utils.set_random_seed(3)
    sampler = case["sampler"]()
    if strategy is None and isinstance(sampler, LshSampler):
        sampler = Tables(sampler, ranks)
    inputs = keras.Input((FEATURES,), sparse=case.get("sparse", True))
    activation = case.get("activation", "relu")
    x = SparseDense(case.get("hidden", 10), activation=activation, strategy=strategy)(inputs)
    if case.get("second"):
        x = SparseDense(case["second"], activation="relu", strategy=strategy)(x)
    if case.get("between"):
        x = keras.layers.Dense(7, activation="tanh")(x)
        x = keras.layers.Dropout(0.3, seed=5)(x)
    if case.get("wide"):
        # Every rank holds all of it.
        x = DSlideHidden(case["wide"], sampler=case["wide_sampler"])(x)
        x = SparseDense(6, activation="relu", strategy=strategy)(x)
    output = DSlideDense(
        case["units"], sampler=sampler, strategy=strategy, use_bias=case.get("bias", True)
    )
    model = keras.Model(inputs, output(x))
    loss = case.get("loss", SlideCrossentropy)()
    metrics = [PrecisionAtK(1), PrecisionAtK(5), NDCGAtK(3)] if "loss" not in case else []
    optimizer = SparseAdam(case.get("rate", 0.02))
    model.compile(optimizer, loss, metrics=metrics, run_eagerly=eager)
    return model


def close(what, got, wanted, tolerance):
    np.testing.assert_allclose(
        np.asarray(got), np.asarray(wanted), rtol=tolerance, atol=tolerance, err_msg=what
    )


class Whole:
    """The same model in one process: that of rank 0, so that the others need not train it too."""

    def __init__(self, case, strategy, eager):
        self._allgather = strategy.communicator.allgather
        self._model = build(case, None, strategy.size, eager) if strategy.rank == 0 else None

    def asked(self, question):
        """What `question(model)` gives on rank 0, on all ranks."""
        return self._allgather(None if self._model is None else question(self._model))[0]


def check(name: str, strategy: Any, eager: bool = False) -> None:
    """Compares a case's model, split by a strategy of its wire, with the whole one on rank 0.

    Eagerly, which needs no graphs to be built, in fewer steps.
    """
    case = CASES[name]
    model = build(case, strategy, strategy.size, eager)
    whole = Whole(case, strategy, eager)
    units, tolerance = case["units"], case.get("tolerance", 2e-5)
    for step in range(6 if eager else case.get("steps", 12)):
        rows = ROWS if step % 5 else ROWS // 2  # as the last batch of an epoch
        x, y = data(step % 7, rows, units, case.get("sparse", True))
        if "loss" in case:
            y = np.maximum(y[:, 0], 0)
        got = model.train_on_batch(x, y, return_dict=True)
        wanted = whole.asked(lambda m: m.train_on_batch(x, y, return_dict=True))  # noqa: B023
        assert got.keys() == wanted.keys()
        # What is rounded on the wire may change the order of close logits.
        compared = ["loss"] if tolerance > 1e-3 else list(got)
        close(
            f"{name}, step {step}, {got}, {wanted}",
            [got[key] for key in compared],
            [wanted[key] for key in compared],
            tolerance,
        )
    weights = whole.asked(lambda m: m.get_weights())
    for mine, all_of_it in zip(model.weights, weights, strict=True):
        shard, all_of_it = sharding.shard_of(mine), np.asarray(all_of_it)
        if shard is not None:
            cut = slice(shard.begin, shard.end)
            all_of_it = all_of_it[cut] if sharding.axis_of(mine) == 0 else all_of_it[:, cut]
        close(f"{name}, {mine.path}", mine, all_of_it, 5 * tolerance)
    if case.get("thorough"):
        check_answers(name, case, model, whole)


def check_answers(name, case, model, whole):
    """Evaluation, predictions and best classes."""
    units, tolerance = case["units"], case.get("tolerance", 2e-5)
    x, y = data(99, 2 * ROWS, units, case.get("sparse", True))
    if "loss" not in case:
        got = model.test_on_batch(x, y, return_dict=True)
        wanted = whole.asked(lambda m: m.test_on_batch(x, y, return_dict=True))
        assert got.keys() == wanted.keys()
        compared = [got[key] for key in got], [wanted[key] for key in got]
        close(f"{name}, evaluate", *compared, 5 * tolerance)
    scores = whole.asked(lambda m: m.predict_on_batch(x))
    close(f"{name}, predict", model.predict_on_batch(x), scores, 20 * tolerance)
    hidden = keras.Model(model.input, model.layers[-1].input)(x)
    for k in {1, min(5, units), units}:
        best = (
            [a.numpy() for a in model.layers[-1].top_k(hidden, k)],
            whole.asked(lambda m: [a.numpy() for a in m.layers[-1].top_k(hidden, k)]),  # noqa: B023
        )
        (scores, ids), (other_scores, other_ids) = best
        close(f"{name}, scores of the best {k}", scores, other_scores, 20 * tolerance)
        assert np.mean(ids == np.asarray(other_ids)) > 0.9, name
    if isinstance(model.layers[-1].sampler, LshSampler):
        scores, ids = model.layers[-1].top_k(hidden, 3, exact=False)
        logits = model.layers[-1](hidden).numpy()
        found = ids.numpy() >= 0
        rows = np.arange(len(logits))[:, None].repeat(3, 1)[found]
        close(f"{name}, hashed", scores.numpy()[found], logits[rows, ids.numpy()[found]], 1e-4)


def stock_loss():
    return keras.losses.SparseCategoricalCrossentropy(from_logits=True)


def wire_of(name: str) -> str:
    """The wire of a case's strategy."""
    return CASES[name].get("wire", "float32")


def reference() -> Any:
    """While in force, the model in one process takes the matrices that `Tables` makes."""
    return mock.patch.object(lazy.ops, "softmax_crossentropy", with_matrix)


TABLES = {"units": 60, "steps": 20}
CASES = {
    "all neurons": {"sampler": AllNeurons, "units": 23, "steps": 50, "thorough": True},
    "bfloat16": {
        "sampler": AllNeurons,
        "units": 23,
        "steps": 50,
        "thorough": True,
        "wire": "bfloat16",
        "tolerance": 0.03,
    },
    "divisible": {"sampler": AllNeurons, "units": 24, "hidden": 12},
    "few units": {"sampler": AllNeurons, "units": 3, "hidden": 1, "thorough": True},
    "without bias": {"sampler": AllNeurons, "units": 23, "bias": False},
    "tanh": {"sampler": AllNeurons, "units": 23, "activation": "tanh"},
    "softmax inside": {"sampler": AllNeurons, "units": 23, "activation": "softmax"},
    "layers between": {"sampler": AllNeurons, "units": 23, "between": True},
    "two split layers": {"sampler": AllNeurons, "units": 23, "second": 5},
    "many layers": {
        "sampler": AllNeurons,
        "units": 23,
        "second": 8,
        "between": True,
        "wide": 300,
        "wide_sampler": LshSampler(hash=SimHash(3, tables=4), active=50, random=0.1),
    },
    "dense input": {"sampler": AllNeurons, "units": 23, "sparse": False},
    "stock loss": {"sampler": AllNeurons, "units": 23, "loss": stock_loss, "thorough": True},
    "uniform": {"sampler": lambda: UniformSampler(8), "units": 41},
    "corrected": {"sampler": lambda: UniformSampler(8, subtract_log_q=True), "units": 41},
    "log_uniform": {"sampler": lambda: LogUniformSampler(9, subtract_log_q=True), "units": 41},
    "lsh": {
        "sampler": lambda: LshSampler(hash=SimHash(3, tables=4), active=30, rebuild_every=3),
        "thorough": True,
        **TABLES,
    },
    "lsh, hashed only": {
        "sampler": lambda: LshSampler(
            hash=SimHash(3, tables=4), active=30, random=0, head=0, rebuild_every=3
        ),
        **TABLES,
    },
    "lsh, new functions": {
        "sampler": lambda: LshSampler(
            hash=SimHash(3, tables=4),
            active=30,
            bucket_size=8,
            rebuild_every=3,
            bucket_policy="reservoir",
            selection="threshold",
            rehash_every=1,
        ),
        **TABLES,
    },
    "lsh, learned": {
        "sampler": lambda: LshSampler(hash=LearnedHash(3, tables=4), active=30, rebuild_every=3),
        **TABLES,
    },
    # On three ranks one has none.
    "few units, lsh": {
        "sampler": lambda: LshSampler(hash=SimHash(2, tables=3), active=2, rebuild_every=3),
        "units": 2,
    },
    "few units, uniform": {"sampler": lambda: UniformSampler(2, subtract_log_q=True), "units": 3},
    "lsh, weighted": {
        "sampler": lambda: LshSampler(
            hash=SimHash(3, tables=4),
            active=30,
            random=0.7,
            head=0.1,
            importance=1.0,
            rebuild_every=3,
        ),
        **TABLES,
    },
}
