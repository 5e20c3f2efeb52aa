"""What every compiled op computes, in plain NumPy and float64.

Nothing here is fast and nothing is shared with the package. `tests/native/test_reference.py` checks
these functions by brute force. Where the result of an op is free within bounds (which neurons a
sampler adds), there is a function that lists what is wrong with a result instead.
"""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

Array = np.ndarray

# The relative error of one float32 rounding.
UNIT_ROUNDOFF = 2.0**-24


class Csr(NamedTuple):
    """Lists of ids, one a row: row `r` holds `ids[row_splits[r]:row_splits[r + 1]]`."""

    row_splits: Array
    ids: Array

    @property
    def rows(self) -> int:
        return len(self.row_splits) - 1

    def row(self, row: int) -> Array:
        return self.ids[self.row_splits[row] : self.row_splits[row + 1]]

    def entry_rows(self) -> Array:
        """The row of each entry."""
        return np.repeat(np.arange(self.rows), np.diff(self.row_splits))


def csr(rows: Sequence[Sequence[int] | Array]) -> Csr:
    """A `Csr` from lists of ids."""
    splits = np.cumsum([0, *map(len, rows)]).astype(np.int64)
    ids = np.concatenate([np.asarray(row, np.int32) for row in rows] or [np.zeros(0, np.int32)])
    return Csr(splits, ids.astype(np.int32))


def to_lists(active: Csr) -> list[list[int]]:
    """The rows of a `Csr`."""
    return [active.row(row).tolist() for row in range(active.rows)]


class ActiveSet(NamedTuple):
    """The neurons active in each row: its own, and the `shared` ones in all rows.

    One number for each of them is an array in the order of `listed`; the ops take two, those of the
    own neurons and a matrix `(rows, shared)`.
    """

    own: Csr
    shared: Array

    def listed(self) -> Csr:
        """Each row's own neurons, then the shared ones: twice, if they are among its own."""
        rows = range(self.own.rows)
        return csr([np.concatenate([self.own.row(row), self.shared]) for row in rows])

    def join(self, own: Array, shared: Array) -> Array:
        """The numbers of `listed` from those of the two parts."""
        rows, own_rows = np.arange(self.own.rows), self.own.entry_rows()
        order = np.argsort(np.append(own_rows, np.repeat(rows, len(self.shared))), kind="stable")
        return np.append(own, np.ravel(shared))[order]

    def split(self, values: Array) -> tuple[Array, Array]:
        """The numbers of the two parts from those of `listed`."""
        lengths = np.diff(self.own.row_splits)[self.listed().entry_rows()]
        is_own = places_in_rows(self.listed()) < lengths
        return values[is_own], values[~is_own].reshape(self.own.rows, len(self.shared))

    def counted(self) -> Array:
        """Which of `listed` count: all but the shared ones that are among the row's own."""
        is_own = np.zeros((self.own.rows, len(self.shared)), bool)
        for row in range(self.own.rows):
            is_own[row] = np.isin(self.shared, self.own.row(row))
        return self.join(np.ones(len(self.own.ids), bool), ~is_own)

    def distinct(self) -> Csr:
        """Those of `listed` that count."""
        listed, counted = self.listed(), self.counted()
        sizes = np.bincount(listed.entry_rows()[counted], minlength=listed.rows)
        return Csr(np.cumsum([0, *sizes]).astype(np.int64), listed.ids[counted])


def places_in_rows(lists: Csr) -> Array:
    """The place of each entry in its row."""
    return np.arange(len(lists.ids)) - lists.row_splits[lists.entry_rows()]


# Error bounds: |float32 result - exact result| of a sum of n products, in whatever order it is
# added up, is at most n + 1 roundings of the sum of the products' sizes.
def sum_bound(sizes: Array, terms: int | Array) -> Array:
    """Largest float32 error of sums of `terms` products whose absolute values add up to `sizes`."""
    return (np.asarray(terms) + 2) * UNIT_ROUNDOFF * np.asarray(sizes, np.float64)


# Hashing.
def sim_hash_sums(x: Array, index: Array, value: Array) -> Array:
    """The projections of each vector, `(n, projections)`."""
    return np.einsum("npj,pj->np", x.astype(np.float64)[:, index], value.astype(np.float64))


def sim_hash_codes(x: Array, index: Array, value: Array, bits: int, tables: int) -> Array:
    """Codes `(n, tables)`: bit `b` of table `t` is the sign of projection `t * bits + b`."""
    signs = (sim_hash_sums(x, index, value) > 0).reshape(len(x), tables, bits)
    return (signs << np.arange(bits)).sum(-1).astype(np.int32)


_WORD = 2**64 - 1


def mix(a: int, b: int | None = None) -> int:
    """splitmix64's finaliser of one word, or of two."""
    if b is not None:
        return mix(mix(a) ^ b)
    a = (a + 0x9E3779B97F4A7C15) & _WORD
    a = ((a ^ (a >> 30)) * 0xBF58476D1CE4E5B9) & _WORD
    a = ((a ^ (a >> 27)) * 0x94D049BB133111EB) & _WORD
    return a ^ (a >> 31)


def borrowing_order(bin_: int, bins: int) -> list[int]:
    """Whom a bin without a winner asks, in order: itself, 63 random bins, then its successors."""
    asked = [bin_] + [(mix(bin_, attempt) * bins) >> 64 for attempt in range(1, 64)]
    return asked + [(bin_ + step) % bins for step in range(1, bins)]


def dwta_bin_codes(x: Array, index: Array) -> Array:
    """The winner of each bin after borrowing, `(n, bins)`; 0 for a vector that is all zero."""
    values = x[:, index]
    winner = values.argmax(-1)
    filled = (values != 0).any(-1)
    orders = [borrowing_order(bin_, len(index)) for bin_ in range(len(index))]
    codes = np.zeros(winner.shape, np.int64)
    for row in np.flatnonzero(filled.any(-1)):
        for bin_, order in enumerate(orders):
            lender = next(b for b in order if filled[row, b])
            codes[row, bin_] = winner[row, lender]
    return codes


def dwta_joined_codes(x: Array, index: Array, tables: int) -> Array:
    """The bins' codes of a table put side by side, the first bin highest, `(n, tables)`."""
    bits = int(index.shape[1]).bit_length() - 1
    bins = dwta_bin_codes(x, index).reshape(len(x), tables, len(index) // tables)
    joined = np.zeros(bins.shape[:2], np.int64)
    for k in range(bins.shape[2]):
        joined = joined << bits | bins[:, :, k]
    return joined


def top_set(x: Array, top: int) -> Array:
    """The `top` largest coordinates of a vector among those above 0, the lower first of equals."""
    order = np.argsort(-x, kind="stable")
    return np.sort([i for i in order[:top] if x[i] > 0]).astype(np.int64)


def min_hashes(members: Array, place: Array, bins: int, count: int) -> Array:
    """The first `count` densified hashes `(count,)` of a set that is not empty.

    A permutation has `bins` bins of it; a hash is the place of the bin's first member, or of that
    of the first bin of `borrowing_order` that has one.
    """
    dim = place.shape[1]
    hashes = np.zeros(count, np.int64)
    for number in range(count):
        places = np.sort(place[number // bins, members])
        firsts = {int(p) * bins // dim: int(p) for p in places[::-1]}
        asked = [number % bins] + [(mix(number, a) * bins) >> 64 for a in range(1, 64)]
        asked += [(number + step) % bins for step in range(1, bins + 1)]
        hashes[number] = next(firsts[b] for b in asked if b in firsts)
    return hashes


def min_hash_codes(x: Array, place: Array, top: int, k: int, bins: int, bits: int) -> Array:
    """Codes of one vector `(tables,)` from `k` hashes each; 0 for the empty set."""
    members = top_set(x, top)
    tables = len(place) * bins // k
    if len(members) == 0:
        return np.zeros(tables, np.int64)
    codes = []
    for hashes in min_hashes(members, place, bins, tables * k).reshape(tables, k):
        mixed = 0
        for value in hashes:
            mixed = mix(mixed, int(value))
        codes.append(mixed >> (64 - bits) if bits else 0)
    return np.array(codes)


def build_tables(codes: Array, buckets: int) -> tuple[Array, Array]:
    """`bucket_ptr (tables, buckets + 1)`, and `neuron_ids (tables, n)` that ascend in a bucket."""
    n, tables = codes.shape
    ptr = np.zeros((tables, buckets + 1), np.int32)
    ids = np.zeros((tables, n), np.int32)
    for table in range(tables):
        content = [np.flatnonzero(codes[:, table] == bucket) for bucket in range(buckets)]
        ptr[table, 1:] = np.cumsum([len(bucket) for bucket in content])
        ids[table] = np.concatenate(content)
    return ptr, ids


# Active sets.
def canonical_labels(rows: Sequence[Sequence[int]], units: int) -> Csr:
    """Sorted distinct labels without the padding -1; `ValueError` for one out of range."""
    result = []
    for number, row in enumerate(rows):
        labels = sorted({label for label in row if label != -1})
        for label in labels:
            if not 0 <= label < units:
                raise ValueError(f"row {number} has label {label}")
        result.append(labels)
    return csr(result)


def bucket_collisions(codes: Array, bucket_ptr: Array, neuron_ids: Array) -> Array:
    """In how many tables each row's bucket holds each neuron, `(rows, units)`."""
    rows, tables = codes.shape
    collisions = np.zeros((rows, neuron_ids.shape[1]), np.int64)
    for row in range(rows):
        for table in range(tables):
            begin, end = bucket_ptr[table, codes[row, table] :][:2]
            collisions[row, neuron_ids[table, begin:end]] += 1
    return collisions


def selection_faults(
    own: Csr, collisions: Array, labels: Csr, excluded: Array | Sequence[int], hashed: int
) -> list[str]:
    """What is wrong with a choice by collisions from uncut buckets.

    A row must hold its labels, then up to `hashed` the neurons of most collisions that are not
    excluded.
    """
    units = collisions.shape[1]
    faults = []
    collisions = collisions.copy()
    collisions[:, np.asarray(excluded, np.int64)] = 0
    for row in range(labels.rows):
        ids, wanted = own.row(row), labels.row(row)
        candidates = np.setdiff1d(np.flatnonzero(collisions[row]), wanted)
        size = len(wanted) + min(max(0, hashed - len(wanted)), len(candidates))
        left, added = np.setdiff1d(candidates, ids), np.setdiff1d(ids, wanted)
        if (np.diff(ids) <= 0).any() or ((ids < 0) | (ids >= units)).any():
            faults.append(f"row {row}: ids are not ascending in [0, {units})")
        elif not np.isin(wanted, ids).all():
            faults.append(f"row {row}: a label is missing")
        elif len(ids) != size:
            faults.append(f"row {row}: {len(ids)} neurons, not {size}")
        elif (
            len(added) and len(left) and collisions[row, added].min() < collisions[row, left].max()
        ):
            faults.append(f"row {row}: a neuron with more collisions was left out")
    return faults


def log_importance_weights(active: ActiveSet, drawn: Array, units: int) -> Array:
    """What to add to a row's logits of the shared neurons that `drawn` says came by chance.

    The logarithm of how many neurons each of those stands for that is not the row's own: all that
    are neither its own nor shared without chance. 0 if there is none.
    """
    result = np.zeros(active.own.rows)
    for row in range(active.own.rows):
        own = active.own.row(row)
        standing = np.setdiff1d(active.shared[drawn == 1], own)
        certain = np.union1d(active.shared[drawn == 0], own)
        if len(standing):
            result[row] = np.log((units - len(certain)) / len(standing))
    return result


def log_uniform_probabilities(units: int) -> Array:
    """P(id) in proportion to log(1 + 1 / (id + 1))."""
    return np.log1p(1 / (np.arange(units) + 1)) / np.log1p(units)


class CscView(NamedTuple):
    """An active set seen from its neurons."""

    neurons: Array
    neuron_splits: Array
    entry_row: Array
    entry_index: Array
    shared_places: Array


def csc_from_csr(active: ActiveSet) -> CscView:
    """The rows' own entries sorted by neuron, those of one neuron by their place.

    Shared neurons that no row has as its own stand among the neurons without entries.
    """
    own, shared = active
    neurons = np.union1d(own.ids, shared)
    order = np.argsort(own.ids, kind="stable")
    splits = np.searchsorted(own.ids[order], np.append(neurons, 2**31))
    return CscView(
        neurons.astype(np.int32),
        splits.astype(np.int64),
        own.entry_rows()[order].astype(np.int32),
        order.astype(np.int32),
        np.searchsorted(neurons, shared).astype(np.int32),
    )


# Products. The lists may hold an id twice, as those of an active set do.
def active_logits(x: Array, active: Csr, kernel: Array, bias: Array | None = None) -> Array:
    """`<x[row], kernel[id]> + bias[id]` of each entry."""
    x, kernel = x.astype(np.float64), kernel.astype(np.float64)
    logits = (x[active.entry_rows()] * kernel[active.ids]).sum(-1)
    return logits if bias is None else logits + bias.astype(np.float64)[active.ids]


def csr_mat_mul(coef: Array, rows: Csr, kernel: Array) -> Array:
    """The sum of `coef * kernel[id]` over each row's ids."""
    y = np.zeros((rows.rows, kernel.shape[1]))
    products = coef.astype(np.float64)[:, None] * kernel.astype(np.float64)[rows.ids]
    np.add.at(y, rows.entry_rows(), products)
    return y


def row_gradient(x: Array, coef: Array, active: Csr, units: int) -> Array:
    """The sum of `coef * x[row]` over each neuron's entries, `(units, d)`, untouched rows 0."""
    gradient = np.zeros((units, x.shape[1]))
    products = coef.astype(np.float64)[:, None] * x.astype(np.float64)[active.entry_rows()]
    np.add.at(gradient, active.ids, products)
    return gradient


def entry_sums(coef: Array, active: Csr, units: int) -> Array:
    """The sum of `coef` over each neuron's entries, `(units,)`."""
    return np.bincount(active.ids, coef.astype(np.float64), units)


# Softmax.
def softmax_crossentropy(logits: Array, active: Csr, labels: Csr) -> tuple[Array, Array]:
    """Loss of each row and its gradient by each entry's logit; `ValueError` for a lost label."""
    loss = np.zeros(active.rows)
    gradient = np.zeros(len(active.ids))
    for row in range(active.rows):
        wanted = labels.row(row)
        if len(wanted) == 0:
            continue
        if not np.isin(wanted, active.row(row)).all():
            raise ValueError(f"row {row} has a label that is not in its active set")
        entries = slice(*active.row_splits[row : row + 2])
        shifted = logits[entries].astype(np.float64) - np.max(logits[entries])
        target = np.isin(active.row(row), wanted) / len(wanted)
        log_sum = np.log(np.exp(shifted).sum())
        loss[row] = log_sum - shifted @ target
        gradient[entries] = np.exp(shifted - log_sum) - target
    return loss, gradient


def active_crossentropy(logits: Array, active: ActiveSet, labels: Csr) -> tuple[Array, Array]:
    """The same over an active set; the gradient is 0 for what does not count."""
    counted = active.counted()
    gradient = np.zeros(len(counted))
    loss, gradient[counted] = softmax_crossentropy(logits[counted], active.distinct(), labels)
    return loss, gradient


def active_top_k(logits: Array, active: ActiveSet, k: int) -> tuple[Array, Array]:
    """The `k` largest of each row, falling, the lower id first; -1 and -infinity where none is."""
    lists, counted = active.distinct(), logits[active.counted()]
    ids = np.full((lists.rows, k), -1, np.int32)
    scores = np.full((lists.rows, k), -np.inf, np.float32)
    for row in range(lists.rows):
        values = counted[slice(*lists.row_splits[row : row + 2])]
        best = np.lexsort((lists.row(row), -values))[:k]
        ids[row, : len(best)] = lists.row(row)[best]
        scores[row, : len(best)] = values[best]
    return ids, scores


def all_units(rows: int, units: int) -> Csr:
    """The active set that holds everything."""
    return Csr(np.arange(rows + 1) * units, np.tile(np.arange(units, dtype=np.int32), rows))


def dense_logits(x: Array, kernel: Array, bias: Array | None) -> Array:
    """Logits of all units, `(rows, units)`."""
    logits = x.astype(np.float64) @ kernel.astype(np.float64).T
    return logits if bias is None else logits + bias.astype(np.float64)


class DenseGradients(NamedTuple):
    """Gradients of `sum of upstream * loss`."""

    x: Array
    kernel: Array
    bias: Array


def full_crossentropy(
    x: Array, labels: Csr, kernel: Array, bias: Array | None, upstream: Array
) -> tuple[Array, DenseGradients]:
    """Loss of each row over all units, and the gradients for `upstream`."""
    logits = dense_logits(x, kernel, bias)
    everything = all_units(len(x), len(kernel))
    loss, gradient = softmax_crossentropy(logits.ravel(), everything, labels)
    by_logit = gradient.reshape(logits.shape) * upstream[:, None]
    return loss, DenseGradients(by_logit @ kernel, by_logit.T @ x, by_logit.sum(0))


# Adam.
class AdamSettings(NamedTuple):
    """Settings of one step; `step` counts from 1."""

    step: int
    learning_rate: float
    weight_decay: float = 0.0
    beta_1: float = 0.9
    beta_2: float = 0.999
    epsilon: float = 1e-7


class AdamState(NamedTuple):
    """A variable and its moments."""

    weight: Array
    momentum: Array
    velocity: Array


def adam(state: AdamState, gradient: Array, settings: AdamSettings) -> AdamState:
    """One step as Keras writes it: epsilon is added to the root of the raw second moment."""
    # The ops take float32 betas; 1 - 0.999 differs by 1e-5 between the two precisions.
    beta_1, beta_2 = (float(np.float32(b)) for b in (settings.beta_1, settings.beta_2))
    weight, momentum, velocity = (np.asarray(a, np.float64) for a in state)
    rate = settings.learning_rate
    momentum = beta_1 * momentum + (1 - beta_1) * gradient
    velocity = beta_2 * velocity + (1 - beta_2) * np.square(gradient)
    corrected = rate * np.sqrt(1 - beta_2**settings.step) / (1 - beta_1**settings.step)
    weight = weight - rate * settings.weight_decay * weight
    weight = weight - corrected * momentum / (np.sqrt(velocity) + settings.epsilon)
    return AdamState(weight, momentum, velocity)


def missed_adam(state: AdamState, last_step: Array, settings: AdamSettings) -> AdamState:
    """The steps of Adam before `settings.step`, without gradients, that each row has missed.

    `last_step (rows,)` says which was its last.
    """
    result = AdamState(*(np.array(a, np.float64) for a in state))
    for step in range(int(last_step.min()) + 1, settings.step):
        late = last_step < step
        rows = AdamState(*(a[late] for a in result))
        moved = adam(rows, np.zeros_like(rows.weight), settings._replace(step=step))
        for old, updated in zip(result, moved, strict=True):
            old[late] = updated
    return result


def row_adam(state: AdamState, rows: Array, gradient: Array, settings: AdamSettings) -> AdamState:
    """One step on the rows named; gradients of a row named twice add up first."""
    result = AdamState(*(np.array(a, np.float64) for a in state))
    total = np.zeros(result.weight.shape)
    np.add.at(total, rows, gradient.astype(np.float64))
    touched = np.unique(rows)
    new = adam(AdamState(*(a[touched] for a in result)), total[touched], settings)
    for old, updated in zip(result, new, strict=True):
        old[touched] = updated
    return result
