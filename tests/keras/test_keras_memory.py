"""Nothing of size (batch, units) exists in fit and evaluate: shown by the peak of memory."""

import json

import pytest
from keras_cases import run_python

pytestmark = pytest.mark.slow

UNITS, BATCH = 300_000, 512
DENSE_LOGITS_MB = UNITS * BATCH * 4 // 2**20

MEASURE = """
import json, resource, sys
import keras, numpy as np, tensorflow as tf
from tf_dslide import *

UNITS, BATCH, DIM = int(sys.argv[1]), int(sys.argv[2]), 8
rng = np.random.default_rng(0)
x = rng.normal(size=(BATCH, DIM)).astype("float32")
y = rng.integers(0, UNITS, (BATCH, 3))
counts = rng.integers(0, 100, UNITS)
lsh = LshSampler(hash=SimHash(bits=12, tables=4), active=200)
uniform = UniformSampler(500, subtract_log_q=True)


def metrics():
    return [PrecisionAtK(1), PrecisionAtK(5), NDCGAtK(5),
            PropensityScoredPrecisionAtK(3, label_counts=counts, num_samples=10**6)]


def compiled(model, measured=None):
    model.compile(SparseAdam(1e-3), SlideCrossentropy(), metrics=measured or metrics())
    return model


def run(model, labels=y, inputs=x, evaluate=True, **kwargs):
    model.fit(inputs, labels, batch_size=BATCH, epochs=2, verbose=0, **kwargs)
    if evaluate:
        model.evaluate(inputs, labels, batch_size=BATCH, verbose=0, **kwargs)


def wide(sampler, **kwargs):
    return DSlideDense(UNITS, sampler=sampler, **kwargs)


def sequential(*layers, shape=(DIM,)):
    return keras.Sequential([keras.Input(shape), *layers])


def plain():
    run(compiled(sequential(wide(lsh))))


def all_neurons():
    run(compiled(sequential(wide(AllNeurons())), measured=[PrecisionAtK(1)]))


def two_outputs_clipped_and_several_steps():
    inputs = keras.Input((DIM,))
    model = keras.Model(inputs, [wide(lsh)(inputs), wide(uniform)(inputs)])
    optimizer = SparseAdam(1e-3, global_clipnorm=1.0, weight_decay=0.1)
    losses = [SlideCrossentropy(), SlideCrossentropy()]
    model.compile(optimizer, losses, metrics=[[PrecisionAtK(1)], [NDCGAtK(5)]],
                  steps_per_execution=2)
    twice = np.tile(y, (2, 1))
    run(model, [twice, twice], np.tile(x, (2, 1)), evaluate=False)


def sequences_with_a_mask_in_half_precision():
    layers = [keras.layers.Masking(), wide(lsh, activation="softmax", dtype="mixed_float16")]
    model = compiled(sequential(*layers, shape=(4, DIM)), measured=[PrecisionAtK(1)])
    weights = np.ones((BATCH // 4, 4), "float32")
    run(model, y[:, 0].reshape(-1, 4), x.reshape(-1, 4, DIM), sample_weight=weights)


def hidden_layer():
    hashed = LshSampler(hash=SimHash(bits=12, tables=4), active=200, random=0.0, head=0.0)
    hidden = [DSlideHidden(UNITS, sampler=hashed), SparseDense(8, activation="relu")]
    model = compiled(sequential(*hidden, DSlideDense(300)), measured=[PrecisionAtK(1)])
    run(model, y % 300)
    model.predict(x, batch_size=BATCH, verbose=0)


def by_hand():
    layer, optimizer = wide(lsh), SparseAdam()
    loss_fn, metric = SlideCrossentropy(), PrecisionAtK(1)
    layer.build((None, DIM))
    optimizer.build(layer.trainable_variables)

    @tf.function
    def step(x, y):
        with tf.GradientTape() as tape:
            logits = layer(x, training=True)
            loss = loss_fn(y, logits)
        optimizer.apply(tape.gradient(loss, layer.trainable_variables))
        metric.update_state(y, logits)
        return loss

    for _ in range(2):
        step(tf.constant(x), tf.constant(y))
    layer.top_k(x, k=10)
    layer.top_k(x, k=10, exact=False)


def control():
    model = sequential(wide(lsh))
    model.predict_on_batch(x)


def in_use():
    # Memory now; what earlier cases freed is no longer part of it.
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * resource.getpagesize() // 2**20


def peak():
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024


# What TensorFlow and Keras themselves need is no case's.
small = sequential(DSlideDense(300))
small.compile(SparseAdam(), SlideCrossentropy())
run(small, y[:8] % 300, x[:8])
cases = [plain, all_neurons, two_outputs_clipped_and_several_steps,
         sequences_with_a_mask_in_half_precision, hidden_layer, by_hand, control]
grown = {}
for case in cases:
    # Each case alone would take a process; so each must not raise the peak of those before it.
    before = in_use() if case is control else peak()
    case()
    keras.backend.clear_session()
    grown[case.__name__] = peak() - before
print(json.dumps(grown))
"""


@pytest.fixture(scope="module")
def grown() -> dict[str, int]:
    """MB by which each case raised the peak of a fresh process, in this order."""
    return json.loads(run_python(MEASURE, UNITS, BATCH).splitlines()[-1])


CASES = [
    "plain",
    "all_neurons",
    "two_outputs_clipped_and_several_steps",
    "sequences_with_a_mask_in_half_precision",
    "hidden_layer",
    "by_hand",
]


@pytest.mark.parametrize("case", CASES)
def test_no_array_of_batch_by_units(case, grown):
    # In half precision dense logits are half as large.
    assert grown[case] < 0.45 * DENSE_LOGITS_MB, grown


def test_the_measurement_would_show_dense_logits(grown):
    assert grown["control"] > 0.6 * DENSE_LOGITS_MB, grown
