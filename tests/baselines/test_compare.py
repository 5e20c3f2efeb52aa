"""The whole comparison, as a user starts it: small data, all methods, one and two ranks."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
import typer
from typer.testing import CliRunner

from baselines.command import application, chosen_methods, chosen_rates, command_line
from baselines.dslide import sampler_of
from baselines.methods import GROUPS, METHODS
from baselines.task import Task
from reports.grouping import TITLES
from reports.records import read_run, read_runs
from tests.parallel.mpi import need_mpi
from tf_dslide import LshSampler
from tf_dslide.data import TEST_START, make_synthetic, write_xmc

ROOT = Path(__file__).parents[2]
PROGRAM = str(ROOT / "baselines/compare.py")
SMALL = ("--train-rows", "400", "--test-rows", "60", "--hidden", "8", "--batch-size", "50")


def hears_ctrl_c() -> None:
    """A test run in the background ignores SIGINT, and what it starts would too."""
    signal.signal(signal.SIGINT, signal.default_int_handler)


def start(folder: Path, *options: str, launcher: tuple[str, ...] = ()) -> subprocess.Popen:
    return subprocess.Popen(
        [*launcher, sys.executable, PROGRAM, "--out", str(folder), *SMALL, *options],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        env=os.environ | {"PYTHONPATH": str(ROOT)},
        preexec_fn=hears_ctrl_c,
    )


def compare(folder: Path, *options: str, launcher: tuple[str, ...] = ()) -> tuple[int, str]:
    job = start(folder, *options, launcher=launcher)
    output, _ = job.communicate(timeout=280)
    return job.returncode, output


def runs(folder: Path) -> dict:
    records, problems = read_runs([folder])
    assert not problems
    return {record.run.method: record for record in records}


@pytest.mark.mpi
@pytest.mark.comparison
def test_methods_on_two_ranks(tmp_path):
    """Those that other tests do not start; each is one job or two processes, and takes seconds."""
    launcher = (need_mpi(), "-np", "2")
    methods = {"dslide-lsh", "horovod-dense", "horovod-sampled", "tf-dense", "omikuji"}
    options = ("--epochs", "1", "--methods", ",".join(methods))
    status, output = compare(tmp_path, *options, launcher=launcher)
    assert status == 0, output
    found = runs(tmp_path)
    assert set(found) == methods
    for method, record in found.items():
        kind = METHODS[method]
        if kind.missing():
            assert record.status == "unavailable"
            continue
        assert record.status == "ok", (record, output)
        assert record.run.ranks == (2 if kind.on_all_ranks else 1)
        assert len(record.steps.ranks) == record.run.ranks
        last = record.measures[-1]
        assert 0 <= last.p1 <= 1
        assert last.train_seconds > 0
        if method == "omikuji":
            continue
        assert [measure.step for measure in record.measures] == [8]
        assert record.steps.steps == 8
        sent = [rank.bytes_sent_per_step for rank in record.steps.ranks]
        assert (min(sent) > 0) == kind.on_all_ranks
    if "horovod" not in METHODS["horovod-dense"].missing():
        # The whole gradient crosses, once each way for two ranks.
        record = found["horovod-dense"]
        assert record.steps.ranks[0].bytes_sent_per_step == 4 * record.run.model.parameters


@pytest.mark.comparison
def test_several_data_sets(tmp_path):
    """One of the hash families, and counts that are weighed."""
    folder = tmp_path / "counts"
    folder.mkdir()
    for name, start in (("train", 0), ("test", TEST_START)):
        data = make_synthetic(120, 60, 40, features_per_sample=5, start=start)
        data.features.data[:] = np.arange(data.features.nnz) % 3 + 1
        write_xmc(folder / f"{name}.txt", data)
    options = ("--data", "small", "--data", f"tf-idf:{folder}", "--epochs", "1")
    status, output = compare(tmp_path, *options, "--methods", "dslide-learned")
    assert status == 0, output
    records, problems = read_runs([tmp_path])
    assert not problems
    assert {record.status for record in records} == {"ok"}, output
    steps = {record.run.data.name: record.measures[-1].step for record in records}
    assert steps == {"small": 8, "counts": 2}


def test_methods_have_names_for_people():
    assert METHODS.keys() <= TITLES.keys()


def test_samplers_of_the_study():
    task = Task("", "", {}, "", "", 8, 32, 0.1, 1, None, 20, 3)
    found = {
        name: sampler_of(task, *(*kind.make[2:], None)[:2])
        for name, kind in METHODS.items()
        if kind.make[1] == "DSlide"
    }
    hashes = {
        name: type(sampler.hash).__name__
        for name, sampler in found.items()
        if isinstance(sampler, LshSampler)
    }
    assert hashes == {
        "dslide-lsh": "SimHash",
        "dslide-wta": "WTA",
        "dslide-dwta": "DWTA",
        "dslide-minhash": "MinHash",
        "dslide-learned": "LearnedHash",
    }
    assert all(found[name].active == found[name].seed + 17 == 20 for name in hashes)
    assert found["dslide-uniform"].num_sampled == 20
    assert found["dslide-all"].selects_all


@pytest.mark.comparison
def test_one_rank_for_a_time(tmp_path):
    status, output = compare(tmp_path, "--seconds", "0.5", "--methods", "dslide-lsh")
    assert status == 0, output
    record = runs(tmp_path)["dslide-lsh"]
    assert record.status == "ok", output
    assert record.run.ranks == 1
    assert record.measures[-1].train_seconds >= 0.5
    assert record.run.settings["seconds"] == 0.5
    assert record.run.command.startswith("python baselines/compare.py --out")


@pytest.mark.mpi
@pytest.mark.comparison
def test_more_ranks_have_as_many_cores_each(tmp_path):
    need_mpi()
    options = ("--ranks", "1", "--ranks", "2", "--epochs", "1", "--wire", "bfloat16")
    status, output = compare(tmp_path, *options, "--methods", "dslide-uniform,tf-sampled")
    assert status == 0, output
    records, problems = read_runs([tmp_path])
    assert not problems
    found = {(record.run.method, record.run.ranks): record for record in records}
    cores = len(os.sched_getaffinity(0))
    threads = {key: record.run.threads_per_rank for key, record in found.items()}
    half = max(1, cores // 2)
    assert threads == {
        ("dslide-uniform", 1): half,
        ("dslide-uniform", 2): half,
        ("tf-sampled", 1): cores,
    }
    wires = {key: record.run.settings.get("wire") for key, record in found.items()}
    assert set(wires.values()) == {None, "bfloat16"}
    assert wires["dslide-uniform", 2] == "bfloat16"
    alone, split = (found["dslide-uniform", ranks].steps.ranks for ranks in (1, 2))
    assert alone[0].bytes_sent_per_step == 0 < min(rank.bytes_sent_per_step for rank in split)


@pytest.mark.mpi
def test_no_more_ranks_than_there_are(tmp_path):
    launcher = (need_mpi(), "-np", "2")
    status, output = compare(tmp_path, "--ranks", "3", launcher=launcher)
    assert status == 2, output
    assert "3 ranks are more than the 2 that mpirun has started" in output


def test_records_do_not_name_folders_of_this_machine(monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    words = ["--out", f"{tmp_path}/a/runs", "--data", "tf-idf:/elsewhere/some data", "--data=/x/y"]
    assert command_line([*words, "--methods", "dslide-lsh"]) == (
        "python baselines/compare.py --out a/runs --data 'tf-idf:some data' --data=y "
        "--methods dslide-lsh"
    )


@pytest.mark.mpi
@pytest.mark.comparison
def test_a_method_that_fails_is_a_row_and_the_others_go_on(tmp_path):
    need_mpi()
    if METHODS["horovod-dense"].missing():
        pytest.skip("needs Horovod: make baselines")
    options = ("--ranks", "2", "--epochs", "1", "--batch-size", "51")
    status, output = compare(tmp_path, *options, "--methods", "horovod-dense,tf-sampled")
    assert status == 0, output
    found = runs(tmp_path)
    assert found["horovod-dense"].status == "failed"
    assert "51 samples cannot be cut into 2 equal parts" in found["horovod-dense"].end.message
    assert found["tf-sampled"].status == "ok"
    assert "51 samples" in output


@pytest.mark.comparison
def test_a_time_limit_ends_a_method(tmp_path):
    options = ("--seconds", "1000", "--limit", "1", "--methods", "tf-dense")
    status, output = compare(tmp_path, *options)
    assert status == 0, output
    assert {record.status for record in runs(tmp_path).values()} == {"timed out"}


@pytest.mark.comparison
def test_ctrl_c_keeps_what_was_measured(tmp_path):
    job = start(tmp_path, "--epochs", "100000", "--methods", "tf-dense,tf-sampled")
    path = tmp_path / "small.tf-dense.local.1.jsonl"
    deadline = time.monotonic() + 120
    while time.monotonic() < deadline and job.poll() is None:
        if path.exists() and read_run(path).measures:
            break
        time.sleep(0.1)
    job.send_signal(signal.SIGINT)
    output, _ = job.communicate(timeout=60)
    assert job.returncode == 130, output
    found = runs(tmp_path)
    assert set(found) == {"tf-dense"}
    assert found["tf-dense"].status == "interrupted"
    assert found["tf-dense"].measures


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (("--data", "nowhere"), "neither a preset"),
        (("--data", "small", "--data", "skipgram:nothing"), "no such file"),
        (("--data", "tf-idf:/"), "neither train.txt nor train.txt.gz"),
        (("--network", "fast"), "a link is written as"),
    ],
)
def test_bad_options(tmp_path, options, message):
    words = ["--out", str(tmp_path / "runs"), *options]
    result = CliRunner().invoke(application(), words, obj=["here"])
    assert result.exit_code == 2
    # Long messages are wrapped in a box.
    assert message in " ".join(result.stderr.replace("│", " ").split())
    assert not (tmp_path / "runs").exists()


@pytest.mark.parametrize(
    ("text", "message"), [("dslide-lsh,magic", "no method 'magic'"), (",", "name at least one")]
)
def test_bad_methods(text, message):
    with pytest.raises(typer.BadParameter, match=message):
        chosen_methods(text)


def test_groups_of_methods():
    assert chosen_methods("omikuji, usual")[0] == "omikuji"
    assert sorted(chosen_methods("omikuji, usual")) == sorted(GROUPS["usual"])
    assert set().union(*GROUPS.values()) == set(METHODS)
    rates = chosen_rates(["usual=0.1", "omikuji=0.2"])
    assert rates == {**dict.fromkeys(GROUPS["usual"], 0.1), "omikuji": 0.2}


def test_learning_rates():
    assert chosen_rates(["tf-dense=0.5", "dslide-lsh=1e-3"]) == {
        "tf-dense": 0.5,
        "dslide-lsh": 0.001,
    }
    with pytest.raises(typer.BadParameter, match="METHOD=RATE"):
        chosen_rates(["tf-dense:1"])
