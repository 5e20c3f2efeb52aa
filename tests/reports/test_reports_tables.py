"""Tables and comparisons of the stored made-up runs, against numbers worked out by hand."""

import pandas as pd
import pytest
from reports_cases import DENSE, HOROVOD, LSH, RUNS, SHARED, copied

from reports.comparisons import (
    same_time_table,
    speedups_table,
    targets_table,
    traffic_table,
)
from reports.grouping import bandwidth, by_data, by_network, labels
from reports.reading import read_runs
from reports.tables import accuracy_table, curves_table, ranks_table, runs_table, speed_table

OURS = "D-SLIDE, LSH per sample · 2 processes"


@pytest.fixture(scope="module")
def records():
    return read_runs([RUNS])[0]


def read(*paths):
    return read_runs(paths)[0]


def the(table, **wanted):
    """The one row of a table with these values."""
    for column, value in wanted.items():
        table = table[table[column] == value]
    assert len(table) == 1, table
    return table.iloc[0]


def test_each_run_has_a_row_with_its_ending_and_its_file(records):
    table = runs_table(records)
    assert len(table) == 10
    assert sorted(table["file"]) == sorted(path.name for path in RUNS.glob("*.jsonl"))
    ended = dict(zip(table["file"], table["status"] + ": " + table["message"], strict=True))
    assert ended[LSH] == "ok: "
    assert ended[SHARED] == "incomplete: the file has no end event; line 4: cut short"
    assert ended["made-up.horovod-sampled.1gbit-0.2ms.2.jsonl"] == (
        "failed: made up: rank 1 raised ValueError"
    )
    assert the(table, file=LSH)["environment.processor"] == "made-up processor"
    assert the(table, file=LSH)["settings.batch_size"] == 100


def test_speed_is_summed_and_averaged_over_the_ranks(records):
    table = speed_table(records)
    row = the(table, source=f"{LSH}:5")
    assert row["samples_per_second"] == 1000
    assert (row["bytes_per_step"], row["bytes_per_rank_and_step"]) == (200, 100)
    assert (row["seconds_computing"], row["seconds_waiting"]) == (0.08, 0.02)
    assert row["peak_mb"] == 51  # of ranks with 50 and 51
    assert row["epoch_seconds"] == 1.0


def test_speed_without_a_rate_comes_from_the_epoch_and_a_failed_run_has_none(records):
    table = speed_table(records)
    assert the(table, source=f"{SHARED}:3")["samples_per_second"] == 1000 / 0.5
    failed = the(table, method="horovod-sampled")
    assert failed["status"] == "failed"
    assert pd.isna(failed["samples_per_second"])
    assert pd.isna(failed["bytes_per_step"])


def test_bytes_are_unknown_if_one_rank_does_not_know_them(tmp_path):
    text = (RUNS / LSH).read_text()
    place = text.rindex('"bytes_sent_per_step": 100')
    (tmp_path / "a.jsonl").write_text(
        text[:place] + '"bytes_sent_per_step": null' + text[place + 26 :]
    )
    table = speed_table(read(tmp_path))
    assert pd.isna(table["bytes_per_step"].item())
    assert table["peak_mb"].item() == 51


def test_accuracy_names_the_first_evaluation_with_the_best_p1(records):
    table = accuracy_table(records)
    row = the(table, method="tf-dense")
    assert (row["best_p1"], row["train_seconds"], row["epoch"]) == (0.5, 50.0, 2)
    assert (row["p3"], row["p5"], row["last_p1"]) == (0.25, 0.125, 0.5)
    assert row["source"] == f"{DENSE}:3"


def test_curves_and_ranks_have_a_row_for_each_event(records):
    curves, ranks = curves_table(records), ranks_table(records)
    assert len(curves) == 3 + 1 + 2 + 3 + 1 + 1 + 1 + 1
    assert the(curves, source=f"{LSH}:3")["p1"] == 0.5
    assert len(ranks) == 2 + 2 + 2 + 1 + 1 + 1 + 4
    assert list(ranks[ranks["source"] == f"{LSH}:5"]["peak_mb"]) == [50, 51]


@pytest.mark.parametrize(
    ("against", "speedup"),
    [
        ("Horovod dense · 2 processes", 100.0),
        ("TensorFlow dense · 1 process", 50.0),
        ("TensorFlow sampled, row Adam · 1 process", 2.0),
    ],
)
def test_speedups_are_ratios_of_samples_a_second(records, against, speedup):
    row = the(speedups_table(records), label=OURS, against=against)
    assert row["speedup"] == speedup
    assert row["source"].split("; ")[0] == f"{LSH}:5"


def test_a_speedup_without_basis_says_why(records):
    table = speedups_table(records)
    reasons = table[table["label"] == OURS].set_index("against")["note"]
    assert reasons["Horovod sampled"] == (
        "Horovod sampled: failed (made up: rank 1 raised ValueError)"
    )
    assert reasons["TensorFlow sampled"] == "TensorFlow sampled: out of memory (made up: killed)"
    other = table[table["data"] == "made-up-2"]
    assert set(other["note"]) == {
        f"no {name} run on this data"
        for name in ("Horovod dense", "Horovod sampled", "TensorFlow dense", "TensorFlow sampled")
    }
    assert other["speedup"].isna().all()


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"network": "10gbit,0.2ms"}, "no Horovod dense run under this network (1gbit,0.2ms)"),
        ({"ranks": 4}, "no Horovod dense run with 2 processes"),
        ({"settings": {"batch_size": 50}}, "no Horovod dense run with batches of 100"),
        (
            {"model": {"hidden": 16, "units": 500}},
            "no Horovod dense run of a network of this size",
        ),
    ],
)
def test_runs_on_unequal_terms_are_not_compared(tmp_path, changes, reason):
    copied(HOROVOD, tmp_path / "horovod.jsonl", **changes)
    table = speedups_table(read(RUNS / LSH, tmp_path / "horovod.jsonl"))
    row = the(table, against="Horovod dense")
    assert row["note"] == reason
    assert pd.isna(row["speedup"])


def test_data_of_one_name_and_different_sizes_is_not_compared(tmp_path):
    copied(HOROVOD, tmp_path / "horovod.jsonl", {"data": {"num_train": 999}})
    records = read(RUNS / LSH, tmp_path / "horovod.jsonl")
    assert len(by_data(records)) == 2
    row = the(speedups_table(records), against="Horovod dense")
    assert row["note"] == "no Horovod dense run on this data"


def test_a_run_that_ended_well_is_preferred_as_basis(tmp_path):
    text = (RUNS / HOROVOD).read_text().replace('"status": "ok"', '"status": "failed"')
    (tmp_path / "bad.jsonl").write_text(text.replace('_second": 10.0', '_second": 5.0'))
    both = read(RUNS / LSH, RUNS / HOROVOD, tmp_path / "bad.jsonl")
    row = the(speedups_table(both), against="Horovod dense · 2 processes")
    assert row["speedup"] == 100
    only = read(RUNS / LSH, tmp_path / "bad.jsonl")
    row = the(speedups_table(only), against="Horovod dense · 2 processes")
    assert (row["speedup"], row["note"]) == (200, "the other: failed")


def test_traffic_is_saved_relative_to_dense_horovod(records):
    table = traffic_table(records)
    row = the(table, label=OURS)
    assert row["saved_percent"] == pytest.approx(100 * (1 - 200 / 200_000))
    assert (row["bytes_per_step"], row["basis_bytes_per_step"]) == (200, 200_000)
    assert row["source"] == f"{LSH}:5; {HOROVOD}:4"
    assert the(table, data="made-up-2")["note"] == "no Horovod dense run on this data"


def test_time_to_the_best_p1_of_dense_training(records):
    table = targets_table(records)
    assert set(table["data"]) == {"made-up"}  # the other has no dense run
    row = the(table, label=OURS)
    assert (row["target_p1"], row["seconds"], row["dense_seconds"]) == (0.5, 2.0, 50.0)
    assert (row["times_as_fast"], row["dense_epoch"]) == (25.0, 2)
    assert row["source"] == f"{LSH}:3; {DENSE}:3"
    assert the(table, label="TensorFlow dense · 1 process")["note"] == "sets the target"
    missed = the(table, label="Horovod dense · 2 processes")
    assert pd.isna(missed["seconds"])
    assert missed["note"] == "not reached: 30.00 % at best in 100 s"
    assert the(table, label="Omikuji · 1 process")["seconds"] == 3.0
    assert the(table, label="TensorFlow sampled · 1 process")["note"] == (
        "no P@1 measured; out of memory"
    )


def test_horovod_sets_the_target_where_tensorflow_has_no_dense_run():
    table = targets_table(read(RUNS / LSH, RUNS / HOROVOD))
    row = the(table, label=OURS)
    assert (row["target_p1"], row["dense_seconds"], row["seconds"]) == (0.3, 100.0, 2.0)


def test_accuracy_in_the_same_time_takes_the_last_evaluations_within_it(records):
    table = same_time_table(records)
    row = the(table, label=OURS, against="TensorFlow sampled, row Adam · 1 process")
    assert (row["within_seconds"], row["p1"], row["basis_p1"]) == (2.0, 0.5, 0.55)
    assert row["points"] == pytest.approx(-5.0)
    row = the(table, label=OURS, against="Omikuji · 1 process")
    assert (row["within_seconds"], row["p1"]) == (3.0, 0.5)  # not the 0.6 after 4 s
    row = the(table, label=OURS, against="Random forest · 1 process")
    assert (row["p1"], row["basis_p1"]) == (0.2, 0.1)
    assert row["note"] == "the other under network local; the other: interrupted"


def test_accuracy_in_the_same_time_says_when_ours_was_first_evaluated_later(tmp_path):
    text = (RUNS / "made-up.tf-rowadam.local.1.jsonl").read_text()
    (tmp_path / "fast.jsonl").write_text(
        text.replace('"train_seconds": 2.0', '"train_seconds": 0.9')
    )
    row = the(
        same_time_table(read(RUNS / LSH, tmp_path / "fast.jsonl")),
        against="TensorFlow sampled, row Adam · 1 process",
    )
    assert pd.isna(row["p1"])
    assert row["note"].startswith("first evaluated after 1 s")


def test_an_evaluation_a_little_later_still_counts(tmp_path):
    text = (RUNS / "made-up.tf-rowadam.local.1.jsonl").read_text()
    for seconds, expected in ((3.81, 0.6), (3.80, 0.5)):  # 4.0 s is 5 % more than 3.8095 s
        (tmp_path / "a.jsonl").write_text(
            text.replace('"train_seconds": 2.0', f'"train_seconds": {seconds}')
        )
        row = the(
            same_time_table(read(RUNS / LSH, tmp_path / "a.jsonl")),
            against="TensorFlow sampled, row Adam · 1 process",
        )
        assert row["p1"] == expected


def test_runs_of_one_process_stand_beside_those_of_a_network(records):
    group = by_data(records)[next(key for key in by_data(records) if key.name == "made-up")]
    networks = by_network(group)
    assert list(networks) == ["1gbit,0.2ms"]
    assert len(networks["1gbit,0.2ms"]) == 9
    alone = by_network([record for record in group if record.run.network == "local"])
    assert list(alone) == ["local"]


def test_labels_tell_apart_runs_that_differ_in_batch_seed_or_nothing(tmp_path):
    copied(LSH, tmp_path / "a.jsonl")
    copied(LSH, tmp_path / "b.jsonl", settings={"batch_size": 2000})
    copied(LSH, tmp_path / "c.jsonl", seed=5)
    copied(LSH, tmp_path / "d.jsonl", run_id="d1")
    found = labels(read(tmp_path))
    assert len(set(found.values())) == 4
    assert found["b.jsonl"] == f"{OURS} · batch 2,000"
    assert found["c.jsonl"] == f"{OURS} · batch 100 · seed 5"
    assert found["d.jsonl"].endswith("seed 0 · d1")


def test_the_gpu_column_is_there_only_with_a_gpu_and_marks_the_comparison(tmp_path, records):
    assert "gpu" not in runs_table(records).columns
    assert "gpu" not in speed_table(records).columns
    copied(DENSE, tmp_path / "gpu.jsonl", environment={"gpu": "made-up GPU"})
    with_gpu = read(RUNS / LSH, tmp_path / "gpu.jsonl")
    assert set(runs_table(with_gpu)["gpu"].dropna()) == {"made-up GPU"}
    assert "gpu" in speed_table(with_gpu).columns
    row = the(speedups_table(with_gpu), against="TensorFlow dense · 1 process")
    assert "the other on made-up GPU" in row["note"]
    both = read(RUNS / LSH, RUNS / DENSE, tmp_path / "gpu.jsonl")
    row = the(speedups_table(both), against="TensorFlow dense · 1 process")
    assert "GPU" not in row["note"]  # a run on equal terms goes first


@pytest.mark.parametrize(
    ("network", "rate"),
    [("1gbit,0.2ms", 1e9), ("100mbit", 1e8), ("2.5Gbit,1ms", 2.5e9), ("local", float("inf"))],
)
def test_bandwidth_of_a_network(network, rate):
    assert bandwidth(network) == rate
