"""The benchmarks that take a step apart and measure what the machine allows."""

import argparse
import itertools
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tf_dslide.data import Dataset, batches

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "benchmarks"))

import limits
import parts
import roofline

ROWS, UNITS, HIDDEN, ACTIVE = 16, 3000, 24, 200
TINY = [
    *("--units", str(UNITS), "--batch-size", str(ROWS), "--hidden", str(HIDDEN)),
    *("--active", str(ACTIVE), "--warm", "2", "--steps", "2", "--repeats", "2", "--rebuilds", "1"),
]
ROUND = limits.Limits(
    threads=2,
    row_bytes=512,
    read_gb_per_second=10.0,
    update_gb_per_second=20.0,
    row_read_ns=100.0,
    row_update_ns=200.0,
    gflop_per_second=100.0,
)


@pytest.fixture(scope="module")
def args() -> argparse.Namespace:
    return parts.arguments(TINY)


@pytest.fixture(scope="module")
def data(args: argparse.Namespace) -> Dataset:
    return parts.make_data(args)


@pytest.fixture(scope="module")
def step_and_counts(args: argparse.Namespace, data: Dataset) -> tuple[Any, roofline.Counts]:
    """A step on the first batch, with tables of the weights that it began with."""
    step = new_step(args, data)
    return step, step.run(first_batch(data), 1)


def first_batch(data: Dataset) -> tuple[Any, Any]:
    return next(iter(batches(data, ROWS)))


def new_step(args: argparse.Namespace, data: Dataset) -> parts.Step:
    model = parts.make_model(args, data.num_features)
    model.optimizer.build(model.trainable_variables)
    model.layers[-1].rebuild()
    return parts.Step(model, parts.Clock())


def test_limits_are_measured():
    measured = limits.measure(threads=[1, 2], megabytes=1, row_bytes=256, repeats=1)
    assert [one.threads for one in measured] == [1, 2]
    assert all(one.row_bytes == 256 for one in measured)
    for one in measured:
        assert min(vars(one).values()) > 0, one


def test_limits_refuse_nonsense():
    with pytest.raises(subprocess.CalledProcessError):
        limits.measure(threads=[1], megabytes=0)


def test_limits_name_a_missing_compiler(monkeypatch):
    monkeypatch.setenv("CXX", "no-such-compiler")
    with pytest.raises(SystemExit, match="no-such-compiler"):
        limits.measure(threads=[1], megabytes=1)


def test_limits_are_read_as_written(tmp_path):
    limits.write([ROUND], tmp_path / "limits.json")
    assert limits.read(tmp_path / "limits.json") == [ROUND]


def test_counts_of_data(step_and_counts, data):
    _, counts = step_and_counts
    features, labels = data.features[:ROWS], data.labels[:ROWS]
    assert (counts.rows, counts.dim, counts.units) == (ROWS, HIDDEN, UNITS)
    assert counts.features == features.shape[1]
    assert counts.nonzeros == features.nnz
    assert counts.features_seen == len(set(features.indices))
    assert counts.labels == labels.nnz


def test_counts_of_active_sets(step_and_counts):
    step, counts = step_and_counts
    active = step.selection.active
    splits, ids = active.own.row_splits.numpy(), active.own.ids.numpy()
    own = [set(ids[first:last]) for first, last in itertools.pairwise(splits)]
    shared = set(active.shared.numpy())
    assert counts.entries == sum(map(len, own)) > counts.labels
    assert counts.own_neurons == len(set.union(*own))
    assert counts.shared == len(shared)
    assert counts.neurons == len(set.union(shared, *own))
    assert counts.logits == sum(len(row) + len(shared) for row in own)


def test_counts_of_hashing(args, data):
    step = new_step(args, data)
    family = step.sampled.selector._hash
    of_neurons = family.codes(step.sampled.kernel.numpy()).numpy()
    counts = step.run(first_batch(data), 1)
    of_samples = family.codes(step.hidden).numpy()
    found = [
        min((of_neurons[:, table] == code).sum(), step.output.sampler.bucket_size)
        for codes in of_samples
        for table, code in enumerate(codes)
    ]
    assert counts.votes == sum(found) > 0
    assert (counts.tables, counts.buckets) == (family.tables, family.buckets)
    bits = int(np.log2(family.buckets))
    assert counts.products == bits * family.tables * 16  # 16 of 24 coordinates


def test_phases_are_the_step_of_fit(args, data):
    """All phases together change all weights as one step of `fit` does."""
    step = new_step(args, data)
    step.run(first_batch(data), 1)
    model = parts.make_model(args, data.num_features)
    before = [variable.numpy() for variable in model.trainable_variables]
    model.fit(batches(data, ROWS), steps_per_epoch=1, verbose=0, shuffle=False)
    apart = [
        variable.numpy()
        for layer in (step.input, step.output)
        for variable in layer.trainable_variables
    ]
    for old, expected, got in zip(before, model.get_weights(), apart, strict=True):
        assert (expected != old).any()
        np.testing.assert_allclose(got, expected, rtol=1e-5, atol=1e-6)


def test_work_of_the_output_layer(step_and_counts):
    """Bytes are those of the arrays that a phase uses; operations are counted by entry."""
    step, counts = step_and_counts
    view = step.own_view.tensors()
    arrays = [step.hidden, view.neurons, view.neuron_splits, view.entry_row, view.entry_index]
    neurons, entries = len(view.neurons), len(view.entry_row)
    moved = sum(array.numpy().nbytes for array in arrays)
    moved += neurons * (HIDDEN + 1) * 4 + entries * 4  # weights, biases and logits
    work = roofline.output_work(counts)
    assert work["forward own"].bytes(HIDDEN) == pytest.approx(moved, rel=1e-3)
    assert work["forward own"].flops == sum(2 * HIDDEN for _ in range(entries))

    gradients = step.factors.coef.numpy().nbytes + step.factors.shared_coef.numpy().nbytes
    states = 3 * 2 * 4 * HIDDEN * counts.neurons
    update = work["output update"]
    rest = update.bytes(HIDDEN) - states - gradients
    assert 0 < rest < 8 * counts.entries + 13 * counts.neurons + step.hidden.numpy().nbytes
    products = 2 * HIDDEN * (entries + ROWS * counts.shared)
    assert update.flops == products + 14 * HIDDEN * counts.neurons


def test_the_limit_is_the_longer_of_two():
    rows = roofline.Rows(number=1000, of=10**6)
    slow_memory = roofline.Work(handed=2e7, read=rows, flops=1e7)
    result = roofline.share(4e-3, slow_memory, 128, ROUND)
    assert result.limit_seconds == pytest.approx(1e-3 + 1e-4)
    assert result.strict_seconds == pytest.approx(1e-4)
    assert (result.bound, result.share) == ("memory", pytest.approx(0.275))
    busy = roofline.share(4e-3, slow_memory._replace(flops=2e8), 128, ROUND)
    assert (busy.bound, busy.limit_seconds) == ("arithmetic", pytest.approx(2e-3))


def test_nearly_all_rows_cost_what_all_in_order_do():
    all_in_order = 512e6 / 10e9
    seconds = [
        roofline.Work(read=roofline.Rows(number, 10**6)).memory_seconds(128, ROUND)
        for number in (1000, 900_000)
    ]
    assert seconds == pytest.approx([1000 * 100e-9, all_in_order])
    update = roofline.Work(updated=roofline.Rows(1000, 10**6, 3)).memory_seconds(128, ROUND)
    assert update == pytest.approx(3 * 1000 * 200e-9)


def test_the_whole_benchmark(tmp_path, capsys):
    limits.write([ROUND], tmp_path / "limits.json")
    out = tmp_path / "parts.json"
    parts.main([*TINY, "--limits", str(tmp_path / "limits.json"), "--out", str(out)])
    result = json.loads(out.read_text())
    printed = capsys.readouterr().out
    assert next(iter(result["phases"])) == "pipeline"
    for group in ("phases", "rebuild"):
        for name, phase in result[group].items():
            assert f"\n{name} " in printed
            assert phase["seconds"] > 0, name
            assert phase["bytes"] > 0, name
            assert phase["share"] == pytest.approx(phase["limit_seconds"] / phase["seconds"])
    step = result["step"]
    phases = result["phases"].values()
    assert step["limit_seconds"] == pytest.approx(sum(phase["limit_seconds"] for phase in phases))
    assert step["share"] == pytest.approx(step["limit_seconds"] / step["step_seconds"])
    assert 0 < step["strict_share"] < step["share"]
