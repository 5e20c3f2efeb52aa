"""Horovod's averaging: two ranks are one process on the joined batch."""

from pathlib import Path

import pytest

from baselines.methods import METHODS
from tests.parallel.mpi import run_ranks


@pytest.mark.mpi
@pytest.mark.comparison
def test_two_ranks_are_one_process():
    if METHODS["horovod-dense"].missing():
        pytest.skip("needs Horovod: make baselines")
    program = Path(__file__).parent / "programs/horovod_steps.py"
    outcome = run_ranks(program, 2, timeout=200)
    assert outcome.code == 0, outcome
    assert "the same" in outcome.stdout
