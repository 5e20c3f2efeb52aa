"""Training by `fit` on several ranks, and what is said when one of them is not like the others."""

import json
import re

import pytest

from tests.parallel.mpi import PROGRAMS, Outcome, run_ranks

# What is wrong with rank 1, and what is said of it. All ranks see these, and each raises an error.
DIFFERENCES = {
    "order": "see different batches",
    "batch size": "a batch of",
    "seed": "initial values of",
    "model": "layer",
    "version": "versions and settings",
    "data": "see different batches",
}
# And these rank 1 alone.
TROUBLES = {
    "exception": "something of the user's own",
    "kill": "killed",
    "leave": "rank 1",
}


@pytest.fixture(scope="module")
def differences() -> Outcome:
    """One job for all of them: a rank takes seconds to start. The last one ends it."""
    return run_ranks(PROGRAMS / "training.py", 2, 200, DIFFERENCES)


def test_fit_and_evaluate_on_two_ranks():
    outcome = run_ranks(PROGRAMS / "training.py", 2, 120, ["none"])
    assert outcome.code == 0, outcome
    scores = re.findall(r"precision on rank \d: ([0-9.]+)", outcome.stderr)
    assert len(scores) == 2, outcome
    assert scores[0] == scores[1], outcome
    # Rank 0 alone shows its progress, and how the model is split.
    assert outcome.stdout.count("Epoch 1/8") == 1, outcome
    assert outcome.stderr.count("2 ranks, ") == 1, outcome


@pytest.mark.parametrize("difference", DIFFERENCES)
def test_ranks_that_differ_are_told(difference, differences):
    if difference == list(DIFFERENCES)[-1]:
        require_end(differences, DIFFERENCES[difference])
        return
    lines = [line for line in differences.stdout.splitlines() if line.startswith('{"kind"')]
    errors = {e["rank"]: e["error"] for e in map(json.loads, lines) if e["kind"] == difference}
    assert sorted(errors) == [0, 1], differences
    for error in errors.values():
        assert DIFFERENCES[difference] in error, differences
        assert "rank 1" in error, differences


@pytest.mark.parametrize("trouble", TROUBLES)
def test_trouble_of_one_rank_ends_the_job(trouble):
    require_end(run_ranks(PROGRAMS / "training.py", 2, 60, [trouble]), TROUBLES[trouble])


def require_end(outcome: Outcome, text: str) -> None:
    assert outcome.code not in (0, None), outcome
    assert text in outcome.stderr, outcome
    assert "rank 1" in outcome.stderr, outcome
