"""Models split over ranks against the same model in one process."""

import pytest

from tests.parallel.mpi import PROGRAMS, run_ranks
from tests.parallel.parity_cases import CASES, check, reference, wire_of
from tests.parallel.threads import succeed
from tf_dslide.parallel import MPIModelParallel

# In graphs and over MPI, which the other cases need not: they differ from these in the model.
JOBS = [
    pytest.param(2, ["uniform"], marks=pytest.mark.smoke),
    (2, ["stock loss", "many layers", "lsh"]),
    (3, ["few units, lsh"]),
]
# Where the number of ranks matters, three; with few units one rank has none.
ON_THREE = {"corrected", "few units", "few units, lsh", "lsh, hashed only", "lsh, learned"}
FAST = {"all neurons", "lsh, weighted"}


@pytest.mark.mpi
@pytest.mark.parametrize(("ranks", "names"), JOBS)
def test_ranks_train_what_one_process_does(ranks, names):
    outcome = run_ranks(PROGRAMS / "parity.py", ranks, 250, names)
    assert outcome.code == 0, outcome
    assert f"{len(names)} cases hold on {ranks} ranks" in outcome.stdout, outcome


@pytest.mark.parametrize(
    "name", [pytest.param(n, marks=() if n in FAST else pytest.mark.slow) for n in CASES]
)
def test_ranks_that_are_threads_do_the_same(name):
    def work(communicator):
        check(name, MPIModelParallel(communicator, wire_of(name), verbose=False), eager=True)

    with reference():
        succeed(3 if name in ON_THREE else 2, work)


@pytest.mark.slow
def test_one_rank_does_the_same():
    with reference():
        succeed(1, lambda comm: check("all neurons", MPIModelParallel(comm, verbose=False)))
