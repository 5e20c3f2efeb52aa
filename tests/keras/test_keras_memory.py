"""Nothing of size (batch, units) exists in fit and evaluate: shown by the peak of memory."""

import json

import pytest
from keras_cases import run_python

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
uniform = UniformSampler(500, correction=True)


def metrics():
    return [PrecisionAtK(1), PrecisionAtK(5), NDCGAtK(5),
            PropensityScoredPrecisionAtK(3, label_counts=counts, num_samples=10**6)]


def compiled(model, outputs=1, optimizer=None, **kwargs):
    losses = [SlideCrossentropy() for _ in range(outputs)]
    measured = [metrics() for _ in range(outputs)]
    model.compile(optimizer or SparseAdam(1e-3), losses if outputs > 1 else losses[0],
                  metrics=measured if outputs > 1 else measured[0], **kwargs)
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


def sampled_and_clipped():
    optimizer = SparseAdam(1e-3, global_clipnorm=1.0, weight_decay=0.1)
    run(compiled(sequential(wide(uniform)), optimizer=optimizer), evaluate=False,
        sample_weight=np.ones(BATCH, "float32"))


def all_neurons():
    run(compiled(sequential(wide(AllNeurons()))))


def steps_per_execution():
    model = compiled(sequential(wide(lsh)), steps_per_execution=2)
    run(model, np.tile(y, (2, 1)), np.tile(x, (2, 1)))


def softmax_in_half_precision():
    layers = [keras.layers.Dense(DIM, activation="relu"), wide(lsh, activation="softmax")]
    keras.config.set_dtype_policy("mixed_float16")
    layers = [type(layer).from_config({**layer.get_config(), "dtype": "mixed_float16"})
              for layer in layers]
    keras.config.set_dtype_policy("float32")
    run(compiled(sequential(*layers)), evaluate=False)


def two_outputs():
    inputs = keras.Input((DIM,))
    model = keras.Model(inputs, [wide(lsh)(inputs), wide(uniform)(inputs)])
    run(compiled(model, 2), [y, y], evaluate=False)


def sequences():
    model = sequential(wide(lsh), shape=(4, DIM))
    run(compiled(model), y[:, 0].reshape(-1, 4), x.reshape(-1, 4, DIM), evaluate=False)


def sequences_with_a_mask():
    model = sequential(keras.layers.Masking(), wide(lsh), shape=(None, DIM))
    run(compiled(model), y[:, 0].reshape(-1, 4), x.reshape(-1, 4, DIM), evaluate=False)


def by_hand():
    layer, loss_fn, metric = wide(lsh), SlideCrossentropy(), PrecisionAtK(1)
    optimizer = SparseAdam()
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
    #Memory now; what earlier cases freed is no longer part of it.
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * resource.getpagesize() // 2**20


def peak():
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024


# What TensorFlow and Keras themselves need is no case's.
small = sequential(DSlideDense(300))
small.compile(SparseAdam(), SlideCrossentropy())
run(small, y[:8] % 300, x[:8])
cases = [plain, sampled_and_clipped, all_neurons, steps_per_execution, softmax_in_half_precision,
         two_outputs, by_hand, sequences, sequences_with_a_mask, control]
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
    "sampled_and_clipped",
    "all_neurons",
    "steps_per_execution",
    "softmax_in_half_precision",
    "two_outputs",
    "by_hand",
    "sequences",
    "sequences_with_a_mask",
]


@pytest.mark.parametrize("case", CASES)
def test_no_array_of_batch_by_units(case, grown):
    # In half precision dense logits are half as large.
    assert grown[case] < 0.45 * DENSE_LOGITS_MB, grown


def test_the_measurement_would_show_dense_logits(grown):
    assert grown["control"] > 0.6 * DENSE_LOGITS_MB, grown
