"""Exchanges between ranks against what was sent, and what is counted of them."""

import doctest
import importlib
import json
import os
import subprocess
import sys

import pytest

from tests.parallel.mpi import PROGRAMS, ROOT, Outcome, run_ranks
from tf_dslide.parallel.communicator import (
    HEADER,
    Communicator,
    LoneCommunicator,
    MPICommunicator,
    RankError,
)
from tf_dslide.parallel.statistics import Counts, Statistics

CASES = ("random_sizes", "large", "many", "buffers", "values", "threads")


def check(outcome: Outcome, ranks: int) -> list[dict]:
    """What each rank has found."""
    assert outcome.code == 0, str(outcome)
    assert outcome.stderr == ""
    results = json.loads(outcome.stdout)
    assert len(results) == ranks
    return results


@pytest.mark.parametrize("ranks", [1, 2, 3, 4])
def test_every_parcel_arrives_and_is_counted_to_the_byte(ranks):
    results = check(
        run_ranks(PROGRAMS / "exchanges.py", ranks, 60, ["mpi", "random_sizes", 64]), ranks
    )
    # Most messages of this test are larger than a piece.
    assert all(result["messages"] > 60 * (ranks - 1) for result in results) or ranks == 1


@pytest.mark.parametrize("chunk_bytes", [1_000_000, 1 << 30])
def test_large_parcels(chunk_bytes):
    check(run_ranks(PROGRAMS / "exchanges.py", 2, 60, ["mpi", "large", chunk_bytes]), 2)


def test_one_small_message_a_pair_in_2000_exchanges():
    small = 2 + HEADER.size
    assert check(run_ranks(PROGRAMS / "exchanges.py", 2, 60, ["mpi", "many"]), 2) == 2 * [
        {
            "exchanges": 2_000,
            "messages_sent": 2_000,
            "bytes_sent": 2_000 * small,
            "bytes_received": 2_000 * small,
        }
    ]


@pytest.mark.parametrize("case", ["buffers", "values", "threads"])
def test_on_three_ranks(case):
    check(run_ranks(PROGRAMS / "exchanges.py", 3, 60, ["mpi", case]), 3)


@pytest.mark.parametrize("case", CASES)
def test_lone_communicator_does_the_same_without_mpi(case):
    job = subprocess.run(
        [sys.executable, PROGRAMS / "exchanges.py", "lone", case],
        capture_output=True,
        text=True,
        timeout=60,
        env=os.environ | {"PYTHONPATH": str(ROOT)},
        check=False,
    )
    check(Outcome(job.returncode, job.stdout, job.stderr, 0.0), 1)


def test_wrong_arguments():
    lone = LoneCommunicator()
    with pytest.raises(ValueError, match="one message for each of 1 ranks; received 2"):
        lone.exchange("hidden", [b"", b""])
    with pytest.raises(TypeError, match="JSON can express; received .*object"):
        lone.gather(object())
    with pytest.raises(ValueError, match="`timeout` must be seconds above 0; received 0"):
        MPICommunicator(timeout=0)
    for chunk_bytes in (0, 1 << 31):
        with pytest.raises(ValueError, match=f"received {chunk_bytes}"):
            MPICommunicator(chunk_bytes=chunk_bytes)


def test_a_failure_is_final():
    class Divided(LoneCommunicator):
        """Two ranks that never have the same."""

        def _gather(self, kind, value):
            return [value, [value]]

    divided = Divided()
    with pytest.raises(RankError, match=r"the seed must be .*; received 1 \(rank 0\), \[1\]"):
        divided.agree("the seed", 1)
    for call in (divided.barrier, lambda: divided.exchange("hidden", [b""])):
        with pytest.raises(RankError, match="the seed"):
            call()


def test_statistics_by_step_and_in_total():
    statistics = Statistics()
    assert statistics.as_dict() == {"steps": 0, "total": {}, "last_step": {}, "mean_step": {}}
    for step in range(3):
        for _ in range(2):
            statistics.add("hidden", Counts(1, 3, 1_000_000 * step, 500_000, 0.25))
        statistics.add("softmax", Counts(1, 3, 30, 40, 0.5))
        closed = statistics.end_step()
        assert closed == statistics.last_step
        assert closed["hidden"] == Counts(2, 6, 2_000_000 * step, 1_000_000, 0.5)
    statistics.add("agree", Counts(1, 3, 6, 6, 0.0))
    counts = statistics.as_dict()
    assert counts["steps"] == 3
    assert counts["total"]["hidden"]["bytes_sent"] == 6_000_000
    assert counts["total"]["agree"]["exchanges"] == 1
    assert "agree" not in counts["last_step"]
    # What came after the last step is in no mean.
    assert counts["mean_step"] == {
        "exchanges": 3.0,
        "messages_sent": 9.0,
        "bytes_sent": (6_000_000 + 3 * 30) / 3,
        "bytes_received": 1_000_040.0,
        "seconds_waiting": 1.0,
    }
    assert json.loads(json.dumps(counts)) == counts
    lines = [line.split() for line in statistics.table().splitlines()]
    assert ["hidden", "6", "18", "6.000", "3.000", "1.500"] in lines
    assert ["all", "10", "30", "6.000", "3.000", "3.000"] in lines
    assert ["mean", "step", "3", "9", "2.000030", "1.000040", "1.000000"] in lines
    statistics.reset()
    assert statistics.total == {}


@pytest.mark.parametrize("module", ["communicator", "faults", "statistics"])
def test_examples(module):
    results = doctest.testmod(importlib.import_module(f"tf_dslide.parallel.{module}"))
    assert results.attempted > 0
    assert results.failed == 0


def test_all_public_methods_have_an_example():
    for method in (Communicator.exchange, Communicator.gather, Communicator.agree):
        assert ">>>" in method.__doc__
