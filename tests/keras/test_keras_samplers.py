"""Samplers as chosen by a layer: what is active, what is added to the logits, when it changes."""

from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf
from keras_cases import Labels, active_rows, close, padded, random_labels, wide_model

import tf_dslide
from tf_dslide import (
    DWTA,
    WTA,
    AllNeurons,
    DSlideDense,
    HashFamily,
    LogUniformSampler,
    LshSampler,
    MinHash,
    SimHash,
    SlideCrossentropy,
    SparseAdam,
    UniformSampler,
    samplers,
    selectors,
)
from tf_dslide.labels import to_csr

UNITS, DIM, ROWS = 400, 12, 16


@pytest.fixture
def case():
    keras.utils.set_random_seed(9)
    rng = np.random.default_rng(9)
    x = rng.normal(size=(ROWS, DIM)).astype("float32")
    labels = random_labels(rng, ROWS, UNITS, most=5)
    labels[0] = []
    return x, labels


def select(
    sampler: tf_dslide.Sampler,
    x: np.ndarray,
    labels: Labels | None,
    step: int = 1,
    units: int = UNITS,
    kernel: np.ndarray | None = None,
    bias: np.ndarray | None = None,
) -> selectors.Selection:
    """What a layer with these weights chooses."""
    layer = DSlideDense(units, sampler=sampler)
    layer.build((None, x.shape[1]))
    if kernel is not None:
        layer.kernel.assign(kernel)
    if bias is not None:
        layer.bias.assign(bias)
    selector: Any = layer._sampled_weights.selector
    return selector.select(
        tf.constant(x),
        None if labels is None else to_csr(padded(labels, 6), units),
        layer.kernel,
        layer.bias,
        tf.constant(step, tf.int64),
    )


def own_labels(**options: Any) -> LshSampler:
    """A sampler whose rows have their own labels alone, and whose drawn neurons count in full."""
    return LshSampler(batch_labels=False, importance=1.0, **options)


def choose(*args: Any, **kwargs: Any) -> tuple[list, list]:
    """Active ids and offsets of each row."""
    return active_rows(select(*args, **kwargs))


EVERY = {
    "lsh": LshSampler(active=60),
    "lsh_hashed": LshSampler(active=60, random=0.0, head=0.0),
    "lsh_random": LshSampler(active=60, random=1.0, head=0.0),
    "lsh_head": LshSampler(active=60, random=0.1, head=0.9),
    "lsh_no_head": LshSampler(active=60, random=0.8, head=0.0),
    "dwta": LshSampler(hash=DWTA(tables=9), active=60),
    "min_hash": LshSampler(hash=MinHash(tables=9), active=60),
    "weighted": LshSampler(active=60, head=0.1, importance=1.0),
    "own_labels": LshSampler(active=60, batch_labels=False),
    "reservoir": LshSampler(active=60, random=0.1, bucket_size=2, bucket_policy="reservoir"),
    "fifo": LshSampler(active=60, random=0.1, bucket_size=2, bucket_policy="fifo"),
    "union": LshSampler(active=60, random=0.1, selection="union"),
    "threshold": LshSampler(active=60, random=0.1, selection="threshold", threshold=3),
    "tiny": LshSampler(hash=SimHash(bits=2, tables=1), active=2, bucket_size=1),
    "uniform": UniformSampler(30),
    "log_uniform": LogUniformSampler(30, subtract_log_q=True),
}


@pytest.mark.parametrize("name", EVERY)
def test_labels_are_always_active_and_sets_are_sorted_and_distinct(name, case):
    x, labels = case
    sets, offsets = choose(EVERY[name], x, labels)
    assert len(sets) == ROWS
    for ids, row, added in zip(labels, sets, offsets, strict=True):
        assert set(ids) <= set(row)
        assert not row or (row[0] >= 0 and row[-1] < UNITS)
        assert np.isfinite(added).all()


@pytest.mark.parametrize("name", EVERY)
def test_one_seed_one_choice_and_another_choice_each_step(name, case):
    x, labels = case
    first = choose(EVERY[name], x, labels, step=1, kernel=np.ones((UNITS, DIM)))
    assert choose(EVERY[name], x, labels, step=1, kernel=np.ones((UNITS, DIM))) == first
    config = {**EVERY[name].get_config(), "seed": 5}
    other_seed = type(EVERY[name]).from_config(config)
    others = [
        choose(EVERY[name], x, labels, step=step, kernel=np.ones((UNITS, DIM))) for step in (2, 3)
    ]
    others.append(choose(other_seed, x, labels, step=1, kernel=np.ones((UNITS, DIM))))
    assert any(other != first for other in others)


@pytest.mark.parametrize("name", ["uniform", "log_uniform"])
def test_classic_samplers_draw_one_set_for_the_batch_without_accidental_hits(name, case):
    x, labels = case
    sampler = EVERY[name]
    alone = type(sampler).from_config({**sampler.get_config(), "batch_labels": False})
    sets, _ = choose(alone, x, labels)
    drawn = set(sets[0])
    assert len(drawn) == 30
    for ids, row in zip(labels, sets, strict=True):
        assert set(row) == drawn | set(ids)
        assert len(row) == len(drawn | set(ids))


@pytest.mark.parametrize(
    "sampler",
    [
        LshSampler(active=60, importance=1.0),
        LshSampler(active=40, random=0.5, head=0.2),
        UniformSampler(30),
        LogUniformSampler(30),
    ],
    ids=["hashed", "head", "uniform", "log_uniform"],
)
def test_the_labels_of_all_samples_are_active_in_each(sampler, case):
    x, labels = case
    everything = set().union(*labels)
    sets, offsets = choose(sampler, x, labels)
    alone = type(sampler).from_config({**sampler.get_config(), "batch_labels": False})
    for with_all, without in zip(sets, choose(alone, x, labels)[0], strict=True):
        assert everything <= set(with_all)
        assert not everything <= set(without)
    if isinstance(sampler, LshSampler):
        assert all(len(row) <= sampler.active + len(everything) for row in sets)
        # A label of another sample stands for itself alone.
        for row, added in zip(sets, offsets, strict=True):
            assert all(a == 0 for i, a in zip(row, added, strict=True) if i in everything)


def test_labels_are_among_a_rows_own_neurons(case):
    # Where the softmax looks for them.
    x, labels = case
    for name in EVERY:
        own = select(EVERY[name], x, labels).active.own
        rows = tf.RaggedTensor.from_row_splits(own.ids, own.row_splits).to_list()
        for ids, row in zip(labels, rows, strict=True):
            assert set(ids) <= set(row)


@pytest.mark.parametrize(
    ("active", "random", "head"),
    [
        (3, 0.5, 0.5),
        (7, 0.5, 0.5),
        *((60, 0.5, 0.0), (61, 0.3, 0.3), (2, 0.5, 0.5), (3, 0.9, 0.0), (10**6, 0.5, 0.25)),
        *((60, 0.0, 0.0), (60, 1.0, 0.0), (60, 0.0, 1.0), (40, 0.4, 0.6)),
    ],
)
def test_lsh_budgets(active, random, head, case):
    x, labels = case
    sampler = own_labels(active=active, random=random, head=head, bucket_size=1000)
    counts = sampler.counts_of(UNITS)
    assert sum(counts) == min(active, UNITS)
    assert min(counts) >= 0
    chosen = select(sampler, x, labels).active
    assert len(chosen.shared) == counts.head + counts.random
    for ids, size in zip(labels, chosen.own.row_lengths().numpy(), strict=True):
        assert len(ids) <= size <= max(counts.hashed, len(ids))


@pytest.mark.parametrize(("random", "head"), [(0.4, 0.4), (0.8, 0.0), (0.6, 0.4)])
def test_offsets_stand_for_the_neurons_left_out(random, head, case):
    """Each of the t random ones stands for (units - h) / t neurons; all others for themselves."""
    x, labels = case
    sets, offsets = choose(own_labels(active=60, random=random, head=head), x, labels)
    for ids, row, added in zip(labels, sets, offsets, strict=True):
        added = np.array(added)
        tail = added > 0
        assert not added[[row.index(i) for i in ids]].any(), "labels count once"
        others, drawn = (~tail).sum(), tail.sum()
        assert drawn > 0
        close(added[tail], np.full(drawn, np.log((UNITS - others) / drawn)))


@pytest.mark.parametrize(("count", "power"), [(0, 0.0), (1, 0.0), (2, 0.0), (4, 0.5), (5, 0.6)])
def test_how_far_drawn_neurons_count_follows_the_labels_of_a_sample(count, power, case):
    x, _ = case
    rng = np.random.default_rng(3)
    # Samples without labels do not count.
    labels = [rng.choice(UNITS, count * (i % 2), replace=False).tolist() for i in range(ROWS)]
    kernel = rng.normal(size=(UNITS, DIM))
    found, full, half = (
        choose(
            LshSampler(active=60, random=0.5, head=0.1, importance=importance),
            x,
            labels,
            kernel=kernel,
        )[1]
        for importance in (None, 1.0, 0.5)
    )
    for mine, whole, other in zip(found, full, half, strict=True):
        assert max(whole) > 1
        close(mine, power * np.array(whole))
        close(other, 0.5 * np.array(whole))


def test_the_head_are_the_neurons_of_the_largest_biases(case):
    x, labels = case
    bias = np.random.default_rng(2).normal(size=UNITS)
    sampler = LshSampler(active=60, random=0.3, head=0.5)
    head = set(np.argsort(-bias)[:30].tolist())
    selection = select(sampler, x, labels, bias=bias)
    sets, offsets = active_rows(selection)
    for row, added in zip(sets, offsets, strict=True):
        assert head <= set(row)
        assert all(offset == 0 for i, offset in zip(row, added, strict=True) if i in head)
    # Hashing passes over them: a row's own neurons are labels and others.
    own = selection.active.own
    rows = tf.RaggedTensor.from_row_splits(own.ids, own.row_splits).to_list()
    for ids, row in zip(labels, rows, strict=True):
        assert head & set(row) <= set(ids)
    # Nobody predicts by chance, but the head is likely for every sample.
    assert set(select(sampler, x, None, bias=bias).active.shared.numpy()) == head


def test_the_head_follows_the_biases_when_the_tables_are_rebuilt(case):
    x, labels = case
    layer = DSlideDense(UNITS, sampler=own_labels(active=20, random=0.0, head=0.5))
    layer.build((None, DIM))
    y, step = to_csr(padded(labels), UNITS), tf.constant(1, tf.int64)

    def head():
        chosen = layer._sampled_weights.selector.select(x, y, layer.kernel, layer.bias, step)
        return chosen.active.shared.numpy().tolist()

    layer.bias.assign(np.arange(UNITS))
    assert head() == [*range(UNITS - 10, UNITS)]
    layer.bias.assign(-np.arange(UNITS))
    assert head() == [*range(UNITS - 10, UNITS)]
    layer.rebuild()
    assert head() == [*range(10)]


def test_a_layer_without_biases_has_no_head(case):
    x, labels = case
    layer = DSlideDense(UNITS, use_bias=False, sampler=own_labels(active=60, head=0.1))
    layer.build((None, DIM))
    y, step = to_csr(padded(labels), UNITS), tf.constant(1, tf.int64)
    chosen = layer._sampled_weights.selector.select(x, y, layer.kernel, None, step)
    counts = layer.sampler.counts_of(UNITS)
    # Random ones in its place.
    assert len(chosen.active.shared) == counts.head + counts.random
    shared = set(chosen.active.shared.numpy().tolist())
    own = tf.RaggedTensor.from_row_splits(chosen.active.own.ids, chosen.active.own.row_splits)
    for kept, row, added in zip(own.to_list(), *active_rows(chosen), strict=True):
        assert {i for i, offset in zip(row, added, strict=True) if offset} == shared - set(kept)


@pytest.mark.parametrize(("random", "head"), [(0.5, 0.0), (0.4, 0.4)])
def test_the_random_part_estimates_the_softmax_sum_without_bias(random, head):
    """The mean over many steps of the estimated sum is the sum over all neurons."""
    rng = np.random.default_rng(1)
    x = rng.normal(size=(1, DIM)).astype("float32")
    kernel = rng.normal(size=(UNITS, DIM)).astype("float32") / 3
    bias = rng.normal(size=UNITS).astype("float32") / 3
    scores = np.exp(x @ kernel.T + bias)[0]
    layer = DSlideDense(UNITS, sampler=own_labels(active=80, random=random, head=head))
    layer.build((None, DIM))
    layer.kernel.assign(kernel)
    layer.bias.assign(bias)
    labels = to_csr(np.array([[3]]), UNITS)

    @tf.function
    def select(step):
        return layer._sampled_weights.selector.select(
            tf.constant(x), labels, layer.kernel, layer.bias, step
        )

    sums = []
    for step in range(400):
        (row,), (added,) = active_rows(select(tf.constant(step, tf.int64)))
        sums.append((scores[row] * np.exp(added)).sum())
    error = np.std(sums) / np.sqrt(len(sums))
    assert abs(np.mean(sums) - scores.sum()) < 4 * error
    assert error < 0.02 * scores.sum()


def expected_counts(units, num_sampled, log_uniform, steps=3000):
    """How often each id is among the drawn ones, over many steps, as the op draws."""
    from tf_dslide._native import ops

    @tf.function
    def draw(step):
        ids, _ = ops.sample_neurons(
            step,
            units=units,
            count=num_sampled,
            distribution="log_uniform" if log_uniform else "uniform",
            seed=0,
        )
        return ids

    counts = np.zeros(units)
    for step in range(steps):
        counts[draw(tf.constant(step, tf.int64)).numpy()] += 1
    return counts / steps


@pytest.mark.parametrize("log_uniform", [False, True], ids=["uniform", "log_uniform"])
def test_the_correction_is_the_log_of_how_often_an_id_is_drawn(log_uniform, case):
    units, num_sampled = 60, 15
    sampler = (LogUniformSampler if log_uniform else UniformSampler)(
        num_sampled, subtract_log_q=True
    )
    counts = expected_counts(units, num_sampled, log_uniform)
    found = np.exp(sampler.log_expected_count(tf.range(units), units).numpy())
    close(counts.sum(), num_sampled)
    # 3,000 draws: a standard error of at most 0.01.
    assert np.abs(found - counts).max() < 0.045
    close(found.sum(), num_sampled, relative=1e-2)


def test_the_log_uniform_correction_is_that_of_tensorflow(case):
    """`tf.random.log_uniform_candidate_sampler` tells the same expected counts."""
    units, num_sampled = 500, 40
    _, expected, _ = tf.random.log_uniform_candidate_sampler(
        tf.constant([[0, 1, 7, 100, 499]], tf.int64), 5, num_sampled, True, units, seed=1
    )
    sampler = LogUniformSampler(num_sampled, subtract_log_q=True)
    found = sampler.log_expected_count(tf.constant([0, 1, 7, 100, 499]), units)
    # TensorFlow's counts are those of the tries that one draw happened to need.
    close(np.exp(found), expected.numpy()[0], relative=0.15)


@pytest.mark.parametrize(
    "sampler", [UniformSampler(50, subtract_log_q=True), LogUniformSampler(50, subtract_log_q=True)]
)
def test_corrected_losses_equal_tensorflows_sampled_softmax(sampler, case):
    """The same ids and counts given to TensorFlow give the same loss."""
    x, _ = case
    rng = np.random.default_rng(3)
    y = rng.integers(0, UNITS, ROWS)
    model = wide_model(UNITS, DIM, sampler=sampler)
    layer = model.layers[0]
    found = SlideCrossentropy(reduction=None)(y, layer(x, training=True))
    step = layer._sampled_weights.step.value()
    nothing = to_csr(np.full((ROWS, 1), -1), UNITS)
    selection = layer._sampled_weights.selector.select(
        tf.constant(x), nothing, layer.kernel, layer.bias, step
    )
    drawn = selection.active.shared

    def count(ids):
        return tf.exp(sampler.log_expected_count(tf.cast(ids, tf.int32), UNITS))

    wanted = tf.nn.sampled_softmax_loss(
        layer.kernel.value,
        layer.bias.value,
        tf.constant(y[:, None], tf.int64),
        tf.constant(x),
        num_sampled=50,
        num_classes=UNITS,
        sampled_values=(
            tf.cast(drawn, tf.int64),
            count(tf.constant(y[:, None])),
            count(drawn),
        ),
        remove_accidental_hits=True,
    )
    close(found, wanted)


def test_hashing_finds_the_best_neurons_far_more_often_than_chance():
    rng = np.random.default_rng(5)
    units, dim = 4000, 32
    kernel = rng.normal(size=(units, dim)).astype("float32")
    wanted = rng.integers(0, units, 64)
    x = kernel[wanted] + 0.3 * rng.normal(size=(64, dim)).astype("float32")
    best = np.argsort(-x @ kernel.T, axis=1)[:, 0]
    for family in (SimHash(), DWTA(), WTA(), MinHash()):
        sampler = LshSampler(hash=family, active=400, random=0.0, head=0.0)
        sets, _ = choose(sampler, x, None, units=units, kernel=kernel)
        recall = np.mean([i in row for i, row in zip(best, sets, strict=True)])
        share = np.mean([len(row) for row in sets]) / units
        assert share <= 0.1
        assert recall > 0.9


@pytest.mark.parametrize("selection", ["frequency", "union", "threshold"])
def test_selections_by_votes(selection, case):
    """What a layer chooses without head and chance, against votes counted from its codes."""
    x, labels = case
    hash_family = SimHash(bits=3, tables=12)
    sampler = own_labels(
        hash=hash_family,
        active=70,
        random=0,
        head=0,
        bucket_size=UNITS,
        selection=selection,
        threshold=4,
    )
    kernel = np.random.default_rng(1).normal(size=(UNITS, DIM)).astype("float32")
    sets, _ = choose(sampler, x, labels, kernel=kernel)
    hash_family.build(DIM, UNITS)
    codes, neuron_codes = hash_family.codes(x).numpy(), hash_family.codes(kernel).numpy()
    votes = (codes[:, None] == neuron_codes).sum(-1)
    least = {"frequency": 1, "union": 1, "threshold": 4}[selection]
    assert (votes >= least).sum(1).max() > 70
    for ids, row, found in zip(labels, sets, votes, strict=True):
        added, allowed = set(row) - set(ids), set(np.flatnonzero(found >= least)) - set(ids)
        assert added <= allowed
        assert len(added) == min(len(allowed), 70 - len(ids))
        if selection == "frequency" and allowed > added:
            assert min(found[[*added]]) >= max(found[[*(allowed - added)]])


def test_predictions_take_the_most_voted_whatever_the_selection(case):
    x, _ = case
    kernel = np.random.default_rng(1).normal(size=(UNITS, DIM))
    chosen = [
        choose(LshSampler(active=40, selection=selection), x, None, kernel=kernel)
        for selection in ("frequency", "union", "threshold")
    ]
    assert chosen[0] == chosen[1] == chosen[2]


@pytest.mark.parametrize("policy", ["window", "reservoir", "fifo"])
def test_what_long_buckets_give(policy, case):
    """Between rebuilds a window moves and reservoirs stay; fifo keeps the highest numbers."""
    x, _ = case
    sampler = LshSampler(
        hash=SimHash(bits=2, tables=1),
        active=50,
        random=0,
        head=0,
        bucket_size=9,
        bucket_policy=policy,
    )
    layer = DSlideDense(UNITS, sampler=sampler)
    layer.build((None, DIM))
    nothing = to_csr(np.full((ROWS, 1), -1), UNITS)
    selector: Any = layer._sampled_weights.selector

    def rows(step):
        chosen = selector.select(tf.constant(x), nothing, layer.kernel, layer.bias, step)
        return active_rows(chosen)[0]

    first, second = (rows(tf.constant(step, tf.int64)) for step in (1, 2))
    layer.rebuild()
    third = rows(tf.constant(3, tf.int64))
    assert all(len(row) == 9 for row in first)
    assert (first == second) == (policy != "window")
    assert (second == third) == (policy == "fifo")
    if policy == "fifo":
        selector._hash.build(DIM, UNITS)
        codes, neurons = (
            selector._hash.codes(tf.convert_to_tensor(v))[:, 0].numpy() for v in (x, layer.kernel)
        )
        for code, row in zip(codes, first, strict=True):
            assert row == np.flatnonzero(neurons == code)[-9:].tolist()


def test_families_choose_buckets_of_about_64():
    """So that a neuron shares its bucket with as many of a layer of random weights."""
    units, dim = 8192, 64
    kernel = np.random.default_rng(3).normal(size=(units, dim)).astype("float32")
    for family in (SimHash(), WTA(), DWTA(), MinHash()):
        family.build(dim, units)
        codes = family.codes(tf.constant(kernel)).numpy()
        shared = [(np.bincount(column).astype(float) ** 2).sum() / units for column in codes.T]
        assert 8 < np.mean(shared) < 160, family


def test_approximate_top_k_is_a_part_of_the_exact_one():
    rng = np.random.default_rng(5)
    layer = DSlideDense(2000, sampler=LshSampler(active=200))
    layer.build((None, 16))
    layer.kernel.assign(rng.normal(size=(2000, 16)))
    layer.bias.assign(rng.normal(size=2000))
    x = layer.kernel.numpy()[:40] * 2
    logits = x @ layer.kernel.numpy().T + layer.bias.numpy()
    scores, labels = layer.top_k(x, k=7)
    best = np.argsort(-logits, axis=1, kind="stable")[:, :7]
    assert (labels.numpy() == best).all()
    close(scores, np.take_along_axis(logits, best, 1))
    scores, labels = (t.numpy() for t in layer.top_k(x, k=7, exact=False))
    assert labels.shape == scores.shape == (40, 7)
    found = labels >= 0
    close(scores[found], np.take_along_axis(logits, np.maximum(labels, 0), 1)[found])
    assert (np.diff(scores, axis=1)[found[:, 1:]] <= 0).all()
    assert np.isneginf(scores[~found]).all()
    overlap = np.mean([len(set(a) & set(b)) / 7 for a, b in zip(labels, best, strict=True)])
    assert overlap > 0.5
    again = layer.top_k(x, k=7, exact=False)[1].numpy()
    assert (again == labels).all(), "asking twice must give the same answer"


def test_top_k_arguments():
    layer = DSlideDense(5, sampler=AllNeurons())
    with pytest.raises(ValueError, match="not built"):
        layer.top_k(np.ones((1, 3)))
    layer.build((None, 3))
    x = np.ones((2, 3))
    for k, words in ((0, "`k`.*0"), (6, "6.*5"), (2.5, "2.5")):
        with pytest.raises(ValueError, match=words):
            layer.top_k(x, k=k)
    with pytest.raises(ValueError, match="AllNeurons"):
        layer.top_k(x, k=2, exact=False)
    assert layer.top_k(x.astype("float64"), k=5)[0].shape == (2, 5)
    assert layer.top_k(tf.constant(x), k=5)[0].shape == (2, 5)
    assert layer.top_k([[1, 2, 3]], k=2)[0].shape == (1, 2)
    assert layer.top_k(np.zeros((0, 3), "float32"), k=2)[0].shape == (0, 2)
    with pytest.raises((ValueError, tf.errors.InvalidArgumentError), match="4"):
        layer.top_k(np.ones((2, 4)), k=2)
    with pytest.raises(tf.errors.InvalidArgumentError, match="(?i)nan"):
        layer.top_k(np.array([[1, np.nan, 2]]), k=2)
    _, labels = tf.function(lambda x: layer.top_k(x, k=2))(tf.constant(x, tf.float32))
    assert labels.shape == (2, 2)


def test_training_time_does_not_grow_the_active_set():
    """A batch of many labels: budgets are by row."""
    model = wide_model(UNITS, DIM, sampler=LshSampler(active=3, random=0.5))
    model.compile(SparseAdam(0.01), SlideCrossentropy())
    y = np.tile(np.arange(20), (ROWS, 1))
    model.train_on_batch(np.ones((ROWS, DIM), "float32"), y)


def unchecked(kind: Any, **arguments: Any) -> Any:
    """Calls `kind` with arguments that a type checker would refuse."""
    return kind(**arguments)


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: LshSampler(active=0), "`active`.*0"),
        (lambda: unchecked(LshSampler, active=1.5), "`active`.*1.5"),
        (lambda: LshSampler(random=1.5), "`random`.*1.5"),
        (lambda: LshSampler(random=float("nan")), "`random`.*nan"),
        (lambda: LshSampler(head=-0.5), "`head`.*-0.5"),
        (lambda: LshSampler(head=float("nan")), "`head`.*nan"),
        (lambda: LshSampler(random=0.75, head=0.5), "sum.*0.75 and 0.5"),
        (lambda: LshSampler(bucket_size=0), "`bucket_size`.*0"),
        (lambda: LshSampler(bucket_policy="lifo"), "`bucket_policy`.*window.*fifo.*lifo"),
        (lambda: LshSampler(selection="vanilla"), "`selection`.*frequency.*union.*vanilla"),
        (lambda: LshSampler(selection="threshold", threshold=0), "`threshold`.*0"),
        (lambda: LshSampler(rehash_every=-1), "`rehash_every`.*-1"),
        (lambda: LshSampler(hash=HashFamily(3, 0), rehash_every=1), "`rehash_every`.*HashFamily"),
        (lambda: LshSampler(rebuild_every=0), "`rebuild_every`.*0"),
        (lambda: LshSampler(rebuild_decay=-0.1), "`rebuild_decay`.*-0.1"),
        (lambda: LshSampler(rebuild_decay=float("nan")), "`rebuild_decay`.*nan"),
        (lambda: unchecked(LshSampler, hash="simhash"), "`hash`.*simhash"),
        (lambda: UniformSampler(0), "`num_sampled`.*0"),
        (lambda: LogUniformSampler(-3), "`num_sampled`.*-3"),
        (lambda: SimHash(bits=0), "`bits`.*0"),
        (lambda: SimHash(bits=25), "`bits`.*25"),
        (lambda: unchecked(SimHash, bits=2.5), "`bits`.*2.5"),
        (lambda: SimHash(density=0), "`density`.*0"),
        (lambda: SimHash(tables=0), "`tables`.*0"),
        (lambda: DWTA(bins=0), "`bins`.*0"),
        (lambda: DWTA(bin_size=3), "`bin_size`.*3"),
        (lambda: unchecked(DWTA, bin_size=8.0), "`bin_size`.*8.0"),
        (lambda: DWTA(address_bits=0), "`address_bits`.*0"),
        (lambda: DWTA(bins=30, bin_size=8), "30"),
        (lambda: WTA(bins=0), "`bins`.*0"),
        (lambda: MinHash(bins=0), "`bins`.*0"),
        (lambda: MinHash(top=0), "`top`.*0"),
        (lambda: MinHash(tables=-1), "`tables`.*-1"),
        (lambda: MinHash(address_bits=25), "`address_bits`.*25"),
        (lambda: WTA(bin_size=1), "`bin_size`.*1"),
        (lambda: DSlideDense(5, sampler="nearest"), "`sampler`.*nearest"),
        (lambda: DSlideDense(5, sampler=SimHash()), "`sampler`.*SimHash"),
        (lambda: DSlideDense(5, sampler=LshSampler), "`sampler`.*LshSampler"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_arguments_out_of_range_are_named(make, words):
    with pytest.raises(ValueError, match=words):
        make()


def test_names_stand_for_samplers():
    for name, kind in {
        "lsh": LshSampler,
        "uniform": UniformSampler,
        "log_uniform": LogUniformSampler,
        "all": AllNeurons,
    }.items():
        assert type(samplers.get(name)) is kind
        assert type(DSlideDense(3, sampler=name).sampler) is kind
    assert type(DSlideDense(3).sampler) is LshSampler


@pytest.mark.usefixtures("eager_or_graph")
@pytest.mark.parametrize(("units", "dim"), [(1, 1), (2, 1), (100, 1), (3, 200)])
@pytest.mark.parametrize("name", ["lsh", "dwta", "min_hash", "tiny", "weighted", "log_uniform"])
def test_small_layers_train(name, units, dim):
    model = wide_model(units, dim, sampler=EVERY[name])
    model.compile(SparseAdam(0.1), SlideCrossentropy())
    x = np.random.default_rng(0).normal(size=(6, dim)).astype("float32")
    for step in range(2):
        loss = model.train_on_batch(x, np.arange(6) % units)
        assert np.isfinite(loss), step
    if units == 1:
        close(loss, 0)


@pytest.mark.usefixtures("eager_or_graph")
def test_all_zero_inputs_and_all_zero_kernels_train():
    for family in (SimHash(), DWTA(), WTA(), MinHash()):
        model = wide_model(UNITS, DIM, sampler=LshSampler(hash=family, active=40))
        model.compile(SparseAdam(0.1), SlideCrossentropy())
        model.layers[0].kernel.assign(np.zeros((UNITS, DIM)))
        for _ in range(2):
            assert np.isfinite(model.train_on_batch(np.zeros((4, DIM), "float32"), np.arange(4)))


def test_public_names():
    for name in tf_dslide.__all__:
        assert hasattr(tf_dslide, name)
