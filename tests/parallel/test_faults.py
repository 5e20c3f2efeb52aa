"""When one rank fails, all end soon, and one message says which rank and why."""

import os
import signal
import subprocess
import sys

import pytest

from tests.parallel.mpi import PROGRAMS, Outcome, need_mpi, run_ranks

SECONDS = 10
NEXT = "do the same in the same order"
# What the one message says, by case of `programs/failures.py`.
REPORTS = {
    "raised_while_others_wait": (
        "rank 1 of 3 failed: Traceback",
        "ValueError: no such file: labels.txt",
    ),
    "raised_while_others_compute": (
        "rank 1 of 3 failed: Traceback",
        "ValueError: no such file: labels.txt",
    ),
    "raised_in_thread": ("rank 1 of 3 failed: Traceback", "ValueError: no such file: labels.txt"),
    "raised_within_exchange": (
        "rank 1 of 3 failed: Traceback",
        "ValueError: no such file: labels.txt",
    ),
    "all_raised": ("rank 0 of 3 failed: Traceback", "ValueError: no such file: labels.txt"),
    "ended_while_others_exchange": (
        "rank 0 of 3 failed: rank 1 has left (its program ended) after exchange ",
        "but rank 0 waits for it at exchange ",
        "'hidden'",
    ),
    "ended_with_exchange_in_thread": ("rank 1 of 3 failed: rank 1 ended ", "'barrier'"),
    "other_kind": ("rank 0 of 3 failed: rank 0 is at ", "'hidden' but rank 1 at ", NEXT),
    "other_order": ("rank 0 of 3 failed: rank 0 is at ", "'hidden' but rank 1 at ", NEXT),
    "one_more": ("rank 0 of 3 failed: rank 0 is at ", "'agree' but rank 1 at ", "'hidden'"),
    "disagreed": (
        "rank 0 of 3 failed: the batch size must be the same on all ranks; ",
        "received 32 (ranks 0, 2), 64 (rank 1)",
    ),
    "disagreed_by_key": (
        'received versions.numpy: "2.4" (ranks 0, 2), "1.26" (rank 1); ',
        "extra: nothing (ranks 0, 2), true (rank 1)",
    ),
    "stuck": ("rank 0 of 3 failed: rank 0 has waited 1 s at ", "'hidden' for rank 1; "),
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


def run(case: str, *arguments: str, ranks: int = 3) -> Outcome:
    outcome = run_ranks(PROGRAMS / "failures.py", ranks, SECONDS, [case, *arguments])
    assert outcome.code is not None, f"the job had to be killed: {outcome}"
    return outcome


def messages(outcome: Outcome) -> list[str]:
    """First lines of what the ranks have reported."""
    return [line for line in outcome.stderr.splitlines() if line.startswith("rank ")]


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
@pytest.mark.parametrize("case", KILLS)
def test_killed_rank_is_named(case):
    outcome = run(case)
    # The launcher's code: the first signal that it has seen.
    assert outcome.code != 0, str(outcome)
    (message,) = messages(outcome)
    for text in KILLS[case]:
        assert text in message


@pytest.mark.parametrize("case", ["raised_while_others_wait", "disagreed", "caught"])
def test_without_handlers_the_job_ends_too(case):
    outcome = run(case, "bare")
    assert outcome.code == 1, str(outcome)
    assert REPORTS[case][-1] in outcome.stderr, str(outcome)


def test_interrupt_ends_quietly():
    outcome = run("interrupted")
    assert (outcome.code, outcome.stdout, outcome.stderr) == (130, "", ""), str(outcome)


@pytest.mark.parametrize("options", [[], ["bare"]])
def test_ranks_that_end_in_order_at_different_times(options):
    outcome = run("in_order", *options)
    assert (outcome.code, outcome.stdout, outcome.stderr) == (0, "whole\n" * 3, ""), str(outcome)


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
