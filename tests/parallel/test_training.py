"""Training by `fit` on several ranks, and what is said when one of them is not like the others."""

import re

import pytest

from tests.parallel.mpi import PROGRAMS, run_ranks
from tests.parallel.threads import run_threads
from tests.parallel.training_cases import train_unlike

# What is different on rank 1, and what all ranks say of it.
DIFFERENCES = {
    "order": "see different batches",
    "batch size": "a batch of",
    "seed": "initial values of",
    "model": "layer",
    "version": "versions and settings",
    "data": "see different batches",
}
# What befalls rank 1, and what is said of it.
TROUBLES = {"exception": "something of the user's own", "leave": "rank 1 has left"}


@pytest.mark.parametrize("difference", DIFFERENCES)
def test_ranks_that_differ_are_told(difference):
    for error in run_threads(2, lambda comm: train_unlike(difference, comm)):
        assert isinstance(error, Exception)
        assert DIFFERENCES[difference] in str(error)
        assert "rank 1" in str(error)


@pytest.mark.mpi
@pytest.mark.parametrize("trouble", TROUBLES)
def test_fit_and_evaluate_on_two_ranks_until_one_is_in_trouble(trouble):
    outcome = run_ranks(PROGRAMS / "training.py", 2, 120, [trouble])
    scores = re.findall(r"precision on rank \d: ([0-9.]+)", outcome.stderr)
    assert len(scores) == 2, outcome
    assert scores[0] == scores[1], outcome
    # Rank 0 alone shows its progress, and how the model is split.
    assert outcome.stdout.count("Epoch 1/8") == 1, outcome
    assert outcome.stderr.count("2 ranks, ") == 1, outcome
    assert outcome.code not in (0, None), outcome
    assert TROUBLES[trouble] in outcome.stderr, outcome
    assert "rank 1" in outcome.stderr, outcome
