"""Run under mpirun: cases of `parity_cases.py`, all without arguments."""

import sys

import tests.fewer_imports  # noqa: F401

# isort: split
from tests.parallel.parity_cases import CASES, check, reference, wire_of
from tf_dslide.parallel import MPIModelParallel

names = sys.argv[1:] or list(CASES)
wires = {
    name: MPIModelParallel(wire=name, verbose=False) for name in sorted({*map(wire_of, names)})
}
with reference():
    for name in names:
        check(name, wires[wire_of(name)])
strategy = next(iter(wires.values()))
if strategy.rank == 0:
    print(f"{len(names)} cases hold on {strategy.size} ranks")
