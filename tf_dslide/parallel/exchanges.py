"""The exchanges between ranks, as functions of tensors with gradients.

Every rank calls the same exchanges in the same order. In a graph nothing but the data would fix the
order of two exchanges that do not depend on each other, so each waits for the one before it.
"""

import math
import weakref
import zlib
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np
import tensorflow as tf

from tf_dslide._native.ops import Csr, SoftmaxParts, SoftmaxTotals
from tf_dslide.parallel import messages
from tf_dslide.parallel.communicator import Communicator
from tf_dslide.parallel.errors import RankError


class Gathered(NamedTuple):
    """A matrix whose columns the ranks hold, put together: twice the same values.

    Attributes:
        whole: For layers that all ranks compute alike: its gradient is the same on all of them.
        to_split: For a layer whose units are split: each rank's gradient is a part of the sum.
    """

    whole: tf.Tensor
    to_split: tf.Tensor


class Exchanges:
    """Exchanges over one communicator.

    Args:
        communicator: The ranks.
        wire: `"float32"` or `"bfloat16"`: how activations and their gradients travel.
        check_every: Every so many exchanges of activations or softmaxes the ranks compare
            fingerprints of the batches that they see.
    """

    def __init__(self, communicator: Communicator, wire: str, check_every: int) -> None:
        self._communicator = communicator
        self._wire = wire
        self._check_every = check_every
        self._counts: dict[str, int] = {}
        # The exchange called last while a graph was built, so that the next one waits for it.
        self._last: weakref.WeakKeyDictionary[Any, tf.Operation] = weakref.WeakKeyDictionary()

    def gather_columns(
        self, local: tf.Tensor, columns: Sequence[int], sparse: bool, seen: Sequence[tf.Tensor]
    ) -> Gathered:
        """Puts the ranks' columns of a matrix together.

        Args:
            local: This rank's columns, `(rows, columns[rank]) float32`.
            columns: How many each rank has.
            sparse: Whether the gradient where a value is zero is zero, as behind a ReLU: then zeros
                do not travel, neither way.
            seen: The tensors of the batch that went in, to be compared between ranks.
        """
        ends = np.cumsum([0, *columns])
        begin, end = ends[self._communicator.rank : self._communicator.rank + 2].tolist()

        @tf.custom_gradient
        def gather(local: tf.Tensor) -> Any:
            pack = messages.pack_activations if sparse else messages.pack_matrix

            def send(local: np.ndarray, *seen: np.ndarray) -> np.ndarray:
                # What comes from here to the next call is a step.
                self._communicator.stats.end_step()
                mark = self._fingerprint("activations", seen)
                parts = self._allgather("activations", pack(local, self._wire, mark), columns, mark)
                return np.concatenate(parts, axis=1)

            whole = self._call(send, [local, *seen], tf.float32)
            whole.set_shape([local.shape[0], int(ends[-1])])

            def gradient(by_whole: tf.Tensor, by_split: tf.Tensor) -> tf.Tensor:
                def send_back(by_split: np.ndarray, whole: np.ndarray) -> np.ndarray:
                    mask = whole != 0 if sparse else None
                    return self._reduce_scatter(by_split, mask, ends)

                result = by_whole[:, begin:end]
                if asked.split:
                    mine = self._call(send_back, [by_split, whole], tf.float32)
                    mine.set_shape(local.shape)
                    result += mine
                return result

            return (whole, tf.identity(whole)), gradient

        asked = _Asked()
        gathered = Gathered(*gather(local))
        setattr(gathered.whole, _GATHERED, (gathered.to_split, asked))
        return gathered

    def to_split(self, x: tf.Tensor) -> tf.Tensor:
        """A tensor that all ranks hold, for a layer whose units are split.

        Straight from `gather_columns` the parts of its gradient go to those who hold the columns;
        otherwise all ranks get the sum.
        """
        found = getattr(x, _GATHERED, None)
        if found is not None:
            to_split, asked = found
            asked.split = True
            return to_split

        @tf.custom_gradient
        def enter(x: tf.Tensor) -> Any:
            def gradient(upstream: tf.Tensor) -> tf.Tensor:
                total = self._call(self._allreduce, [tf.cast(upstream, tf.float32)], tf.float32)
                total.set_shape(upstream.shape)
                return tf.cast(total, upstream.dtype)

            return tf.identity(x), gradient

        return enter(x)

    def join_softmax(
        self, parts: SoftmaxParts, mine: Csr, labels: Csr
    ) -> tuple[tf.Tensor, SoftmaxTotals]:
        """The losses of all rows, and what their gradients are computed from.

        Args:
            parts: Of this rank's units.
            mine: The labels among them.
            labels: All labels of the batch.
        """
        count = tf.cast(labels.row_lengths(), tf.float32)
        local = tf.stack([*parts, tf.cast(mine.row_lengths(), tf.float32)], axis=1)

        def send(local: np.ndarray, splits: np.ndarray, ids: np.ndarray) -> Any:
            mark = self._fingerprint("softmax", (splits, ids))
            message = messages.pack_matrix(local, mark=mark)
            every = np.stack(
                self._allgather("softmax", message, [4] * self._communicator.size, mark), axis=-1
            ).astype(np.float64)
            return _whole_softmax(every, np.diff(splits))

        losses, top, log_sum = self._call(
            send, [local, labels.row_splits, labels.ids], [tf.float32] * 3
        )
        for result in (losses, top, log_sum):
            result.set_shape(count.shape)
        return losses, SoftmaxTotals(top, log_sum, count)

    def best(
        self, ids: tf.Tensor, scores: tf.Tensor, k: int, begin: int
    ) -> tuple[tf.Tensor, tf.Tensor]:
        """The `k` best of all ranks' candidates.

        Args:
            ids: This rank's candidates, counted from `begin`, -1 for none; `(rows, c) int32`.
            scores: Their logits, `(rows, c) float32`.
            k: How many.
            begin: The rank's first unit.
        """

        def send(ids: np.ndarray, scores: np.ndarray) -> Any:
            ids = np.where(ids >= 0, ids + begin, -1).astype(np.int32)
            both = np.concatenate([ids.view(np.float32), scores], axis=1)
            every = self._allgather("best", messages.pack_matrix(both), None)
            ids = np.concatenate([part[:, : part.shape[1] // 2] for part in every], axis=1)
            scores = np.concatenate([part[:, part.shape[1] // 2 :] for part in every], axis=1)
            return _best(np.ascontiguousarray(ids).view(np.int32), scores, k)

        top, best = self._call(send, [ids, scores], [tf.int32, tf.float32])
        for result in (top, best):
            result.set_shape([ids.shape[0], k])
        return top, best

    def gather_logits(self, local: tf.Tensor, columns: Sequence[int]) -> tf.Tensor:
        """Dense logits of all ranks' units, `(rows, units)`; of no cost where nobody uses them.

        Its gradient is this rank's part of the gradient, which is the same on all ranks.
        """
        ends = np.cumsum([0, *columns])
        begin, end = ends[self._communicator.rank : self._communicator.rank + 2].tolist()

        @tf.custom_gradient
        def gather(local: tf.Tensor) -> Any:
            def send(local: np.ndarray) -> np.ndarray:
                return np.concatenate(
                    self._allgather("logits", messages.pack_matrix(local), columns), axis=1
                )

            # Not a part of the order of exchanges: those that follow would keep it alive.
            whole = self._call(send, [local], tf.float32, needed=False)
            whole.set_shape([local.shape[0], int(ends[-1])])
            return whole, lambda upstream: upstream[:, begin:end]

        return gather(local)

    def _call(
        self,
        function: Callable[..., Any],
        inputs: list[tf.Tensor],
        dtypes: Any,
        needed: bool = True,
    ) -> Any:
        """A Python function in the graph, after the exchanges that were called before."""
        if tf.executing_eagerly():
            return tf.numpy_function(function, inputs, dtypes)
        graph = tf.compat.v1.get_default_graph()
        before = self._last.get(graph)
        with tf.control_dependencies([] if before is None else [before]):
            outputs = tf.numpy_function(function, inputs, dtypes, stateful=needed)
        if needed:
            self._last[graph] = tf.nest.flatten(outputs)[0].op
        return outputs

    def _allgather(
        self, kind: str, message: bytes, columns: Sequence[int] | None, mark: int = 0
    ) -> list[np.ndarray]:
        """The matrices that all ranks send to all, in the order of ranks.

        A rank's own comes back as the others see it.
        """
        size = self._communicator.size
        received = self._communicator.alltoallv(kind, [message] * size)
        mine = messages.take_apart(np.frombuffer(message, np.uint8))
        result = []
        for rank, data in enumerate(received):
            part = messages.take_apart(data)
            self._compare(kind, mine, part, rank, mark)
            if columns is not None and part.columns != columns[rank]:
                raise RankError(
                    f"rank {rank} sent {part.columns} columns of {kind}; rank "
                    f"{self._communicator.rank} expected {columns[rank]}. All ranks must build the "
                    "same model."
                )
            result.append(messages.unpack(part))
        return result

    def _compare(
        self, kind: str, mine: messages.Message, part: messages.Message, rank: int, mark: int
    ) -> None:
        me = self._communicator.rank
        if part.rows != mine.rows:
            raise RankError(
                f"rank {rank} has a batch of {part.rows} rows at the exchange of {kind}, rank {me} "
                f"one of {mine.rows}. All ranks must train on the same batches."
            )
        if part.fingerprint != mark:
            raise RankError(
                f"rank {rank} and rank {me} see different batches at the exchange of {kind} (same "
                f"number of rows, {part.rows}). All ranks must be given the same data in the same "
                "order: the same files and the same seed of shuffling."
            )

    def _allreduce(self, part: np.ndarray) -> np.ndarray:
        flat = part.reshape(part.shape[0], math.prod(part.shape[1:]))
        total = np.zeros_like(flat)
        for every in self._allgather("gradient", messages.pack_matrix(flat, self._wire), None):
            total += every
        return total.reshape(part.shape)

    def _reduce_scatter(
        self, part: np.ndarray, mask: np.ndarray | None, ends: np.ndarray
    ) -> np.ndarray:
        """Sends each rank its columns of the gradient, and adds up what comes for ours."""
        communicator = self._communicator
        cuts = [slice(*ends[rank : rank + 2]) for rank in range(communicator.size)]
        outgoing = [
            messages.pack_at(part[:, cut], None if mask is None else mask[:, cut], self._wire)
            for cut in cuts
        ]
        mine = cuts[communicator.rank]
        my_mask = None if mask is None else mask[:, mine]
        total = np.zeros_like(part[:, mine])
        received = communicator.alltoallv("gradient", outgoing)
        # In the order of ranks, so that the sum does not depend on who was first.
        for data in received:
            messages.add_at(messages.take_apart(data), my_mask, total)
        return total

    def _fingerprint(self, kind: str, arrays: Sequence[np.ndarray]) -> int:
        """A number that differs for different arrays, now and then; 0 in between."""
        count = self._counts[kind] = self._counts.get(kind, -1) + 1
        if count % self._check_every:
            return 0
        result = 1
        for array in arrays:
            result = zlib.crc32(np.ascontiguousarray(array).view(np.uint8).data, result)
        return result | 1 << 32


_GATHERED = "_dslide_gathered"


class _Asked:
    """Whether somebody uses the second output of a gather."""

    split = False


def _whole_softmax(every: np.ndarray, label_count: np.ndarray) -> Any:
    """Losses, tops and log-sums from the ranks' `(rows, 4, ranks)` parts."""
    tops, log_sums, label_sums, counts = every.transpose(1, 0, 2)
    top = tops.max(axis=1)
    with np.errstate(divide="ignore"):
        log_sum = np.log(np.exp(tops - top[:, None] + log_sums).sum(axis=1))
    labelled = (label_sums + counts * (tops - top[:, None])).sum(axis=1)
    losses = np.where(label_count > 0, log_sum - labelled / np.maximum(label_count, 1), 0)
    return [x.astype(np.float32) for x in (losses, top, log_sum)]


def _best(ids: np.ndarray, scores: np.ndarray, k: int) -> Any:
    """The `k` largest of each row, the lower id first among equals, and -1 for what is missing."""
    # Missing ones have the score -infinity, and come last among those.
    place = np.where(ids < 0, np.iinfo(np.int32).max, ids)
    order = np.lexsort((place, -scores), axis=1)[:, :k]
    ids, scores = (np.take_along_axis(x, order, axis=1) for x in (ids, scores))
    missing = k - ids.shape[1]
    if missing > 0:
        ids = np.pad(ids, [(0, 0), (0, missing)], constant_values=-1)
        scores = np.pad(scores, [(0, 0), (0, missing)], constant_values=-np.inf)
    return [np.ascontiguousarray(ids), np.ascontiguousarray(scores)]


def labels_within(labels: Csr, begin: int, end: int) -> Csr:
    """The labels among the units `[begin, end)`, counted from `begin`."""
    within = (labels.ids >= begin) & (labels.ids < end)
    # How many of the first n labels are within.
    before = tf.concat([[0], tf.cumsum(tf.cast(within, tf.int64))], axis=0)
    return Csr(tf.gather(before, labels.row_splits), tf.boolean_mask(labels.ids, within) - begin)
