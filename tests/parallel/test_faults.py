"""When one rank fails, all end soon, and one message says which rank and why."""

import json
import os
import re
import signal
import subprocess
import sys

import pytest

from tests.parallel.fault_cases import TOLD, stuck
from tests.parallel.mpi import PROGRAMS, Outcome, need_mpi, run_ranks
from tests.parallel.threads import run_threads
from tf_dslide.parallel.errors import RankError
from tf_dslide.parallel.protocol import Turn

SECONDS = 10
LABELS = ("Traceback", "ValueError: no such file: labels.txt")
# What the one message says, by case of `programs/failures.py`.
REPORTS = {
    "raised_while_others_wait": ("rank 1 of 3 failed: ", *LABELS),
    "raised_while_others_compute": ("rank 1 of 3 failed: ", *LABELS),
    "raised_in_thread": ("rank 1 of 3 failed: ", *LABELS),
    "raised_within_exchange": ("rank 1 of 3 failed: ", *LABELS),
    "all_raised": ("rank 0 of 3 failed: ", *LABELS),
    "ended_while_others_exchange": (
        "rank 0 of 3 failed: rank 1 has left (its program ended) after exchange ",
        "but rank 0 waits for it at exchange ",
        "'hidden'",
    ),
    "ended_with_exchange_in_thread": ("rank 1 of 3 failed: rank 1 ended ", "'barrier'"),
    "caught": ("rank 0 of 3 failed: the seed must be ", "0 (rank 0), 1 (rank 1), 2 (rank 2)"),
}
KILLS = {
    "killed_while_others_wait": ("rank 1 of 3 ", "was killed by signal 9 (SIGKILL)"),
    "killed_while_others_exchange": ("rank 1 of 3 ", "was killed by signal 9 (SIGKILL)"),
    "killed_while_others_compute": ("rank 1 of 3 ", "was killed by signal 9 (SIGKILL)"),
    "first_killed": ("rank 0 of 3 ", "was killed by signal 9 (SIGKILL)"),
    "crashed": ("rank 1 of 3 ", "was killed by signal 11 (SIGSEGV)"),
    "left_without_a_word": ("rank 1 of 3 ", "ended with exit code 7 without leaving the job"),
}


SMOKE_KILLS = [
    pytest.param(case, marks=pytest.mark.smoke if case == "killed_while_others_exchange" else ())
    for case in KILLS
]


def run(case: str, *arguments: str, ranks: int = 3) -> Outcome:
    outcome = run_ranks(PROGRAMS / "failures.py", ranks, SECONDS, [case, *arguments])
    assert outcome.code is not None, f"the job had to be killed: {outcome}"
    return outcome


def messages(outcome: Outcome) -> list[str]:
    """First lines of what the ranks have reported."""
    return [line for line in outcome.stderr.splitlines() if line.startswith("rank ")]


# Of ranks that are threads only one runs at a time, so none can wait for another that runs.
@pytest.mark.parametrize("case", [c for c in TOLD if c is not stuck], ids=lambda c: c.__name__)
def test_ranks_are_told_what_differs(case):
    communicators = {}

    def work(comm):
        communicators[comm.rank] = comm
        case(comm)

    errors = run_threads(3, work)
    for text in TOLD[case]:
        assert text in str(errors[0])
    for rank, error in enumerate(errors):
        assert isinstance(error, RankError)
        # For good.
        with pytest.raises(RankError) as again:
            communicators[rank].barrier()
        assert again.value is error


def test_a_rank_that_has_left_is_missed():
    def work(comm):
        comm.barrier()
        if comm.rank != 1:
            comm.alltoallv("hidden", [b""] * comm.size)

    first, second, third = run_threads(3, work)
    assert second is None
    for rank, error in ((0, first), (2, third)):
        assert str(error) == (
            "rank 1 has left (its program ended) after exchange 1, "
            f"but rank {rank} waits for it at exchange 2 'hidden'"
        )


def test_a_rank_that_does_not_answer_is_given_up():
    turn = Turn(0, 7, "hidden")
    turn.require_hope([1, 3], {}, idle=2.0, timeout=2.0)
    with pytest.raises(
        RankError, match=r"rank 0 has waited 2 s at exchange 7 'hidden' for ranks 1, 3; are they"
    ):
        turn.require_hope([1, 3], {}, idle=2.1, timeout=2.0)


def test_another_version_on_the_wire():
    turn = Turn(0, 1, "hidden")
    header = bytearray(turn.header(3))
    assert turn.read(1, header) == (3, False)
    header[4] += 1
    with pytest.raises(RankError, match="rank 1 speaks .*version.* install the same tf_dslide"):
        turn.read(1, header)


@pytest.mark.mpi
def test_ranks_are_told_the_same_under_mpi():
    outcome = run_ranks(PROGRAMS / "told.py", 3, 60)
    # Without handlers of faults a job whose exchanges have failed ends too, and says so.
    assert outcome.code == 1, outcome
    assert re.search(r"^rank \d of 3 failed: ", outcome.stderr, re.M), outcome
    errors = json.loads(outcome.stdout)
    assert list(errors) == [case.__name__ for case in TOLD]
    for case, texts in TOLD.items():
        assert None not in errors[case.__name__], outcome
        for text in texts:
            assert text in errors[case.__name__][0]


@pytest.mark.mpi
@pytest.mark.parametrize("case", REPORTS)
def test_failure_is_reported_once_by_one_rank(case):
    outcome = run(case)
    assert outcome.code == 1, str(outcome)
    assert len(messages(outcome)) == 1, str(outcome)
    for text in REPORTS[case]:
        assert outcome.stderr.count(text) == 1, str(outcome)
    # Neither MPI nor the launcher has anything to add.
    assert outcome.stderr.startswith("rank "), str(outcome)
    if "Traceback" not in outcome.stderr:
        assert outcome.stderr.count("\n") == 1, str(outcome)


@pytest.mark.skipif(not hasattr(os, "pidfd_open"), reason="watching processes needs Linux")
@pytest.mark.mpi
@pytest.mark.parametrize("case", SMOKE_KILLS)
def test_killed_rank_is_named(case):
    outcome = run(case)
    # The launcher's code: the first signal that it has seen.
    assert outcome.code != 0, str(outcome)
    (message,) = messages(outcome)
    for text in KILLS[case]:
        assert text in message


@pytest.mark.mpi
def test_without_handlers_the_job_ends_too():
    outcome = run("raised_while_others_wait", "bare")
    assert outcome.code == 1, str(outcome)
    assert REPORTS["raised_while_others_wait"][-1] in outcome.stderr, str(outcome)


@pytest.mark.mpi
def test_interrupt_ends_quietly():
    outcome = run("interrupted")
    assert (outcome.code, outcome.stdout, outcome.stderr) == (130, "", ""), str(outcome)


@pytest.mark.mpi
@pytest.mark.parametrize("options", [[], ["bare"]])
def test_ranks_that_end_in_order_at_different_times(options):
    outcome = run("in_order", *options)
    assert (outcome.code, outcome.stdout, outcome.stderr) == (0, "whole\n" * 3, ""), str(outcome)


@pytest.mark.mpi
def test_launcher_that_leaves_the_others_alone():
    """As some do; the rest would wait for the dead rank until their time limit."""
    outcome = run_ranks(
        PROGRAMS / "failures.py",
        2,
        SECONDS,
        ["left_without_a_word"],
        launcher_options=["-disable-auto-cleanup"],
    )
    assert outcome.code not in (0, None), str(outcome)
    (message,) = messages(outcome)
    assert message.startswith("rank 1 of 2 "), str(outcome)


@pytest.mark.mpi
def test_end_of_the_launcher_ends_the_ranks():
    program = [sys.executable, str(PROGRAMS / "failures.py"), "forever"]
    job = subprocess.Popen(
        [need_mpi(), "-np", "2", *program],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        stdin=subprocess.DEVNULL,
        start_new_session=True,
    )
    try:
        assert job.stdout is not None
        assert job.stdout.readline() == b"running\n"
        job.send_signal(signal.SIGTERM)
        # The end of the output: no rank and no other process holds it any more.
        job.communicate(timeout=SECONDS)
        assert job.returncode != 0
    finally:
        job.kill()
