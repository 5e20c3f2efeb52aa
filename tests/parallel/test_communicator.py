"""Exchanges between ranks against what was sent, and what is counted of them."""

import doctest
import importlib
import json
import os
import subprocess
import sys

import pytest

from tests.parallel.exchange_cases import CASES
from tests.parallel.mpi import PROGRAMS, ROOT, run_ranks
from tests.parallel.threads import succeed
from tf_dslide.parallel.communicator import Communicator
from tf_dslide.parallel.errors import RankError
from tf_dslide.parallel.lone import LoneCommunicator
from tf_dslide.parallel.mpi import MPICommunicator
from tf_dslide.parallel.statistics import Counts, Statistics


@pytest.mark.mpi
@pytest.mark.parametrize("ranks", [1, 2, 3])
def test_all_cases_hold_under_mpi(ranks):
    outcome = run_ranks(PROGRAMS / "exchanges.py", ranks, 60, ["mpi"])
    assert (outcome.code, outcome.stderr) == (0, ""), outcome
    assert outcome.stdout.split() == list(CASES)


@pytest.mark.mpi
@pytest.mark.skipif(
    os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") < 8 << 30, reason="takes 5 GB"
)
def test_messages_beyond_the_32_bits_that_mpi_once_counted_with():
    outcome = run_ranks(PROGRAMS / "two_gigabytes.py", 2, 100)
    assert (outcome.code, outcome.stdout, outcome.stderr) == (0, "whole\n", ""), outcome


@pytest.mark.parametrize("case", CASES)
def test_ranks_that_are_threads_do_the_same(case):
    succeed(2 if case == "large" else 3, CASES[case])


@pytest.mark.parametrize("case", CASES)
def test_lone_communicator_does_the_same(case):
    CASES[case](LoneCommunicator())


def test_lone_communicator_needs_neither_mpi_nor_tensorflow():
    job = subprocess.run(
        [sys.executable, PROGRAMS / "exchanges.py", "lone"],
        capture_output=True,
        text=True,
        timeout=60,
        env=os.environ | {"PYTHONPATH": str(ROOT)},
        check=False,
    )
    assert (job.returncode, job.stderr) == (0, ""), job
    assert job.stdout.split() == list(CASES)


def test_wrong_arguments():
    lone = LoneCommunicator()
    with pytest.raises(ValueError, match="one message for each of 1 ranks; received 2"):
        lone.alltoallv("hidden", [b"", b""])
    with pytest.raises(TypeError, match="JSON can express; received .*object"):
        lone.allgather(object())
    with pytest.raises(ValueError, match="`timeout` must be seconds above 0; received 0"):
        MPICommunicator(timeout=0)


def test_a_failure_is_final():
    class Divided(LoneCommunicator):
        """Two ranks that never have the same."""

        def _allgather(self, kind, value):
            return [value, [value]]

    divided = Divided()
    with pytest.raises(RankError, match=r"the seed must be .*; received 1 \(rank 0\), \[1\]"):
        divided.agree("the seed", 1)
    for call in (divided.barrier, lambda: divided.alltoallv("hidden", [b""])):
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


@pytest.mark.parametrize("module", ["communicator", "faults", "lone", "statistics"])
def test_examples(module):
    results = doctest.testmod(importlib.import_module(f"tf_dslide.parallel.{module}"))
    assert results.attempted > 0
    assert results.failed == 0


def test_all_public_methods_have_an_example():
    for method in (Communicator.alltoallv, Communicator.allgather, Communicator.agree):
        assert ">>>" in method.__doc__
