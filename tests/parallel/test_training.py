"""Training by `fit` on several ranks, and what is said when one of them is not like the others."""

import re

import pytest

from tests.parallel.mpi import PROGRAMS, run_ranks

# What is wrong with rank 1, and what the job says of it.
TROUBLES = {
    "data": "see different batches",
    "order": "see different batches",
    "batch size": "a batch of",
    "seed": "initial values of",
    "model": "layer",
    "version": "versions and settings",
    "exception": "something of the user's own",
    "kill": "killed",
    "leave": "rank 1",
}


def test_fit_and_evaluate_on_two_ranks():
    outcome = run_ranks(PROGRAMS / "training.py", 2, 120, ["none"])
    assert outcome.code == 0, outcome
    scores = re.findall(r"precision on rank \d: ([0-9.]+)", outcome.stderr)
    assert len(scores) == 2, outcome
    assert scores[0] == scores[1], outcome
    # Rank 0 alone shows its progress, and how the model is split.
    assert outcome.stdout.count("Epoch 1/8") == 1, outcome
    assert outcome.stderr.count("2 ranks, ") == 1, outcome


@pytest.mark.parametrize("trouble", TROUBLES)
def test_ranks_that_differ_end_the_job(trouble):
    outcome = run_ranks(PROGRAMS / "training.py", 2, 60, [trouble])
    assert outcome.code not in (0, None), outcome
    assert TROUBLES[trouble] in outcome.stderr, outcome
    assert "rank 1" in outcome.stderr, outcome
