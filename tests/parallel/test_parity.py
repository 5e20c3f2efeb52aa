"""Models split over ranks against the same model in one process."""

import pytest

from tests.parallel.mpi import PROGRAMS, run_ranks

# Most kinds on two ranks; on others those in which the number of ranks matters. Without arguments
# the program runs all cases, on any number of ranks.
CASES = {
    1: ["all neurons"],
    2: [
        "all neurons",
        "bfloat16",
        "layers between",
        "many layers",
        "stock loss",
        "uniform",
        "lsh",
        "shared lsh",
    ],
    3: ["corrected", "lsh, new functions", "lsh, learned", "few units, lsh", "lsh, hashed only"],
}


@pytest.mark.timeout(600)
@pytest.mark.parametrize("ranks", CASES)
def test_ranks_train_what_one_process_does(ranks):
    outcome = run_ranks(PROGRAMS / "parity.py", ranks, 500, CASES[ranks])
    assert outcome.code == 0, outcome
    assert f"cases hold on {ranks} ranks" in outcome.stdout, outcome
