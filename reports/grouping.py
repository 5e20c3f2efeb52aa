"""Which runs belong together, what they are called, and which run is a fair basis for another."""

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from typing import NamedTuple

from reports.reading import Record

DSLIDE = "dslide-"
MANY_PROCESSES = (DSLIDE, "horovod-")
TITLES = {
    "dslide-lsh": "D-SLIDE, LSH per sample",
    "dslide-shared_lsh": "D-SLIDE, shared LSH",
    "dslide-linear": "D-SLIDE, linear",
    "horovod-dense": "Horovod dense",
    "horovod-sampled": "Horovod sampled",
    "tf-dense": "TensorFlow dense",
    "tf-sampled": "TensorFlow sampled",
    "tf-rowadam": "TensorFlow sampled, row Adam",
    "omikuji": "Omikuji",
    "dslide-all": "D-SLIDE, all neurons",
    "dslide-uniform": "D-SLIDE, uniform",
    "dslide-learned": "D-SLIDE, LSH, LearnedHash",
    "dslide-wta": "D-SLIDE, LSH, WTA",
    "dslide-dwta": "D-SLIDE, LSH, DWTA",
    "dslide-minhash": "D-SLIDE, LSH, MinHash",
}


class DataKey(NamedTuple):
    """What makes two data sets the same: name and shape."""

    name: str
    num_features: int
    num_labels: int
    num_train: int


class Basis(NamedTuple):
    """The run that another is compared with, or why there is none."""

    record: Record | None
    reason: str = ""


def data_key(record: Record) -> DataKey:
    """The data set of a run."""
    data = record.run.data
    return DataKey(data.name, data.num_features, data.num_labels, data.num_train)


def by_data(records: Iterable[Record]) -> dict[DataKey, list[Record]]:
    """The runs of each data set, in order of the data sets' names and `in_order`."""
    groups: dict[DataKey, list[Record]] = {}
    for record in in_order(records):
        groups.setdefault(data_key(record), []).append(record)
    return dict(sorted(groups.items()))


def in_order(records: Iterable[Record]) -> list[Record]:
    """The runs by data, network, method (the known ones first, as in `TITLES`) and ranks."""
    known = list(TITLES)

    def rank(record: Record) -> tuple:
        run = record.run
        place = known.index(run.method) if run.method in known else len(known)
        network = bandwidth(run.network), run.network
        return (*data_key(record), *network, place, run.method, run.ranks, record.file)

    return sorted(records, key=rank)


def bandwidth(network: str) -> float:
    """Bits a second of a network written as "1gbit,0.2ms"; infinity if it is not (as "local")."""
    units = {"kbit": 1e3, "mbit": 1e6, "gbit": 1e9, "tbit": 1e12}
    rate = network.split(",")[0].strip().lower()
    for unit, size in units.items():
        if rate.endswith(unit):
            try:
                return float(rate.removesuffix(unit)) * size
            except ValueError:
                return float("inf")
    return float("inf")


def by_network(records: Sequence[Record]) -> dict[str, list[Record]]:
    """The runs of each network, and beside them the one-process runs, which use no network.

    A network with nothing but one-process runs gets no group of its own if there are others.
    """
    networks = {record.run.network: None for record in records if not is_one_process(record)}
    if not networks:
        networks = {record.run.network: None for record in records}
    groups = {}
    for network in networks:
        here = [record for record in records if record.run.network == network]
        methods = {record.run.method for record in here}
        guests = [
            record
            for record in records
            if record.run.network != network
            and is_one_process(record)
            and record.run.method not in methods
        ]
        groups[network] = here + guests
    return groups


def is_one_process(record: Record) -> bool:
    """Whether the run is of one process, by a method that is not made for more."""
    return record.run.ranks == 1 and not record.run.method.startswith(MANY_PROCESSES)


def batch_size(record: Record) -> int | None:
    """Samples of a step, over all ranks; None if the method has no batches."""
    size = record.run.settings.get("batch_size")
    return size if isinstance(size, int) and not isinstance(size, bool) else None


def title(method: str, records: Iterable[Record]) -> str:
    """A method's name for people: its own in `TITLES`, or the one that its runs carry."""
    carried = [record.run.title for record in records if record.run.method == method]
    return TITLES.get(method) or next(iter(carried), method) or method


def labels(records: Sequence[Record]) -> dict[str, str]:
    """A label for each run, by file name: method and ranks, and more where two would agree.

    Runs on different data or under different networks may have one label: every table and figure
    says these two apart.
    """
    groups: dict[tuple, list[Record]] = {}
    for record in records:
        groups.setdefault((data_key(record), record.run.network), []).append(record)
    named: dict[str, str] = {}
    for group in groups.values():
        named |= _told_apart(group)
    return named


def _told_apart(records: Sequence[Record]) -> dict[str, str]:
    named = {record.file: _named(record) for record in records}
    more: tuple[Callable[[Record], str], ...] = (
        lambda record: f"batch {batch_size(record):,}" if batch_size(record) else "",
        lambda record: f"hidden {record.run.model.hidden}" if record.run.model.hidden else "",
        lambda record: f"seed {record.run.seed}" if record.run.seed is not None else "",
        lambda record: record.run.run_id[:8],
        lambda record: record.file,
    )
    for detail in more:
        twins = [name for name, count in Counter(named.values()).items() if count > 1]
        for twin in twins:
            alike = [record for record in records if named[record.file] == twin]
            if len({detail(record) for record in alike}) > 1:
                named |= {r.file: f"{twin} · {detail(r)}" for r in alike if detail(r)}
    return named


def _named(record: Record) -> str:
    parts = [title(record.run.method, [record]), plural(record.run.ranks, "process"), gpu(record)]
    return " · ".join(part for part in parts if part)


def gpu(record: Record) -> str:
    """The GPU that a run was made on; "" if there was none."""
    return str(record.run.environment.get("gpu") or "")


def plural(count: int, noun: str) -> str:
    """A count with its noun: "1 process", "2 processes"."""
    ending = "" if count == 1 else "es" if noun.endswith("s") else "s"
    return f"{count:,} {noun}{ending}"


def find_basis(
    record: Record,
    method: str,
    records: Iterable[Record],
    usable: Callable[[Record], bool],
    lacking: str,
) -> Basis:
    """The run of `method` that `record` is fairly compared with.

    It has the same data, network, number of ranks, batch size and network sizes (those that both
    runs have). A one-process method is taken from any network, the same one first.

    Args:
        record: The run that is to be compared.
        method: The method to compare it with.
        records: All runs.
        usable: Whether a run has the figure that is compared.
        lacking: What a run that is not usable lacks, as "no speed measured".
    """
    name = title(method, records)
    left = [other for other in records if other.run.method == method]
    one_process = all(is_one_process(other) for other in left)
    for alike, reason in _conditions(record, name, one_process):
        left = [other for other in left if alike(other)]
        if not left:
            return Basis(None, reason)
    able = [other for other in left if usable(other)]
    if not able:
        return Basis(None, f"{name}: {_ending(left[-1]) or lacking}")
    return Basis(max(able, key=lambda other: _merit(other, record)))


def _conditions(
    record: Record, name: str, one_process: bool
) -> list[tuple[Callable[[Record], bool], str]]:
    run, batch = record.run, batch_size(record)

    def agree(ours: object, theirs: object) -> bool:
        return ours is None or theirs is None or ours == theirs

    conditions: list[tuple[Callable[[Record], bool], str]] = [
        (lambda other: data_key(other) == data_key(record), f"no {name} run on this data"),
        (
            lambda other: (
                other.run.model.units == run.model.units
                and agree(run.model.hidden, other.run.model.hidden)
            ),
            f"no {name} run of a network of this size",
        ),
        (
            lambda other: agree(batch, batch_size(other)),
            f"no {name} run with batches of {batch or 0:,}",
        ),
    ]
    if not one_process:
        conditions[2:2] = [
            (
                lambda other: other.run.network == run.network,
                f"no {name} run under this network ({run.network})",
            ),
            (
                lambda other: other.run.ranks == run.ranks,
                f"no {name} run with {plural(run.ranks, 'process')}",
            ),
        ]
    return conditions


def _merit(other: Record, record: Record) -> tuple:
    same = (
        gpu(other) == gpu(record),
        other.run.network == record.run.network,
        other.run.seed == record.run.seed,
    )
    return (other.status == "ok", *same, other.run.time, other.file)


def _ending(record: Record) -> str:
    """How a run ended, unless all went well."""
    if record.status == "ok":
        return ""
    message = record.end.message if record.end else ""
    return f"{record.status} ({message})" if message else record.status
