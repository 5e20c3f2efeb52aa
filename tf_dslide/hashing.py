"""Locality-sensitive hash families: vectors that point the same way often share a code."""

import math
from typing import Any

import keras
import tensorflow as tf

from tf_dslide._checks import require_positive
from tf_dslide._native import ops

# Buckets of about this many neurons: large enough to hold a sample's best ones, small enough that
# fifty of them are far fewer than all neurons.
_TYPICAL_BUCKET = 64
_MOST_ADDRESS_BITS = 18

# What one round of `LearnedHash` looks at: more cost time and gain little recall.
_QUERIES_TO_LEARN_FROM = 256
_NEURONS_TO_LEARN_FROM = 8192


def address_bits_for(units: int) -> int:
    """Bits of a table's addresses with which its buckets have a usual size."""
    return min(_MOST_ADDRESS_BITS, max(1, round(math.log2(max(2, units / _TYPICAL_BUCKET)))))


def _check_address_bits(address_bits: int) -> None:
    if require_positive("address_bits", address_bits) > 24:
        raise ValueError(f"`address_bits` must be in 1..24; received {address_bits!r}")


class HashFamily:
    """Base of the hash families: `tables` independent codes for each vector.

    A family is a small description until `build` fixes the length of the vectors. Then `codes`
    gives one code in `[0, buckets)` a table.

    Args:
        tables: Number of hash tables, L in the literature.
        seed: Integer that fixes the random functions.
    """

    def __init__(self, tables: int, seed: int) -> None:
        self.tables = require_positive("tables", tables)
        self.seed = int(seed)

    @property
    def buckets(self) -> int:
        """Number of codes of a table."""
        raise NotImplementedError

    def build(self, dim: int, units: int) -> None:
        """Draws the random functions for vectors of length `dim`; `units` are to be hashed."""
        raise NotImplementedError

    def codes(self, x: tf.Tensor) -> tf.Tensor:
        """Hashes vectors.

        Args:
            x: `(n, dim) float32`.

        Returns:
            `(n, tables) int32` in `[0, buckets)`.

        Raises:
            tf.errors.InvalidArgumentError: A vector holds NaN or infinity; the message says where.
        """
        raise NotImplementedError

    def draw(self, generation: tf.Tensor | int) -> tuple[tf.Tensor, ...]:
        """The random numbers behind the hash functions, others for each generation.

        Families without them cannot be used with `rehash_every`.

        Args:
            generation: `() int64`. Those of `build` are generation 0.
        """
        raise NotImplementedError

    def _draw_first(self) -> None:
        with tf.init_scope():
            self._numbers: tuple[Any, ...] = tuple(t.numpy() for t in self.draw(0))

    def make_redrawable(self) -> None:
        """Lets `redraw` follow, inside a graph too; after `build`."""
        with tf.init_scope():
            self._numbers = tuple(tf.Variable(n, trainable=False) for n in self._numbers)

    def redraw(self, generation: tf.Tensor | int) -> None:
        """Puts the hash functions of another generation in place of those in use."""
        for variable, numbers in zip(self._numbers, self.draw(generation), strict=True):
            variable.assign(numbers)

    #: Whether `learn` does anything.
    learns = False

    def query_codes(self, x: tf.Tensor) -> tf.Tensor:
        """Hashes inputs of the layer, where `codes` hashes the weights of neurons.

        The same function in most families.
        """
        return self.codes(x)

    def learn(self, x: tf.Tensor, kernel: tf.Tensor, bias: tf.Tensor | None) -> None:
        """Adapts the functions to data, before the tables are rebuilt: nothing in most families.

        Args:
            x: Inputs of the layer, `(rows, dim) float32`.
            kernel: Weights of the neurons, `(units, dim) float32`.
            bias: Their biases, `(units,) float32`, or `None`.
        """

    @property
    def variables(self) -> dict[str, tf.Variable]:
        """What `learn` changes, by name, to be saved with the layer."""
        return {}

    def get_config(self) -> dict[str, Any]:
        """The arguments that make this family again."""
        return {"tables": self.tables, "seed": self.seed}

    @classmethod
    def from_config(cls, config: dict[str, Any]) -> "HashFamily":
        """A family from `get_config`."""
        return cls(**config)


@keras.saving.register_keras_serializable(package="tf_dslide")
class SimHash(HashFamily):
    """Signs of sparse random projections.

    Two vectors at angle `a` agree in one bit with probability `1 - a / pi`, whatever their lengths.
    A projection touches a part of the coordinates, with near-normal weights, which costs less and
    changes the probabilities little. SLIDE and D-SLIDE (arXiv 2201.12667, section 3) use it for
    Delicious-200K with 9 bits and 50 tables.

    Args:
        bits: Bits of a code, K in the literature: more bits make smaller buckets. `None` chooses by
            the number of neurons, so that a bucket holds about 64 of them.
        tables: Number of tables.
        density: Share of the coordinates that a projection touches, in (0, 1]; at least 16
            coordinates where there are as many.
        seed: Integer that fixes the projections.

    Memory: 8 bytes for each of `bits * tables * density * dim` coordinates. Time: as many
    multiplications a vector.

    Example:
    >>> import numpy as np
    >>> from tf_dslide import SimHash
    >>> hash = SimHash(bits=4, tables=3)
    >>> hash.build(dim=8, units=1000)
    >>> x = np.ones((2, 8), "float32")
    >>> codes = hash.codes(x)
    >>> codes.shape, bool((codes[0] == codes[1]).numpy().all()), hash.buckets
    (TensorShape([2, 3]), True, 16)
    """

    def __init__(
        self, bits: int | None = None, tables: int = 50, density: float = 1 / 3, seed: int = 0
    ) -> None:
        super().__init__(tables, seed)
        if bits is not None and require_positive("bits", bits) > 24:
            raise ValueError(f"`bits` must be in 1..24 or None; received {bits!r}")
        if not 0 < density <= 1:
            raise ValueError(f"`density` must be in (0, 1]; received {density!r}")
        self.bits = bits
        self.density = float(density)
        self._built_bits = 0

    @property
    def buckets(self) -> int:
        """`2 ** bits`."""
        return 1 << self._built_bits

    def build(self, dim: int, units: int) -> None:
        """Draws the projections."""
        self._built_bits = self.bits or address_bits_for(units)
        self._dim = dim
        self._draw_first()

    def draw(self, generation: tf.Tensor | int) -> tuple[tf.Tensor, ...]:
        """Coordinates and weights of the projections."""
        nonzeros = min(self._dim, max(16, math.ceil(self.density * self._dim)))
        return ops.sim_hash_parameters(
            self.seed, self._dim, self._built_bits * self.tables, nonzeros, generation
        )

    def codes(self, x: tf.Tensor) -> tf.Tensor:
        """Hashes `x`, `(n, dim) float32`; see `HashFamily.codes`."""
        index, value = self._numbers
        return ops.sim_hash_codes(x, index, value, self._built_bits, self.tables)

    def get_config(self) -> dict[str, Any]:
        """The arguments that make this family again."""
        return {"bits": self.bits, "density": self.density, **super().get_config()}


class _WinnerTakeAll(HashFamily):
    """What WTA and DWTA share: bins, and where the largest coordinate of each is."""

    def __init__(
        self,
        bins: int | None = None,
        tables: int = 50,
        bin_size: int = 8,
        address_bits: int = _MOST_ADDRESS_BITS,
        seed: int = 0,
    ) -> None:
        super().__init__(tables, seed)
        if bins is not None:
            require_positive("bins", bins)
        if require_positive("bin_size", bin_size) < 2 or bin_size & (bin_size - 1):
            raise ValueError(f"`bin_size` must be a power of two from 2 on; received {bin_size!r}")
        _check_address_bits(address_bits)
        if bins is not None and bins * (bin_size.bit_length() - 1) > 60:
            raise ValueError(
                f"the codes of a table's bins must fit 60 bits; received bins={bins} of "
                f"{bin_size.bit_length() - 1} bits each"
            )
        self.bins = bins
        self.bin_size = bin_size
        self.address_bits = address_bits
        self._built_bits = 0

    @property
    def buckets(self) -> int:
        """`2 ** min(address_bits, bins * log2(bin_size))`."""
        return 1 << self._built_bits

    def build(self, dim: int, units: int) -> None:
        """Draws the bins."""
        self._dim = dim
        self._built_size = min(self.bin_size, 1 << (dim.bit_length() - 1))
        bits_per_bin = self._built_size.bit_length() - 1
        self._built_bins = self.bins or max(1, -(-address_bits_for(units) // max(1, bits_per_bin)))
        self._built_bits = min(self.address_bits, self._built_bins * bits_per_bin)
        self._draw_first()

    def draw(self, generation: tf.Tensor | int) -> tuple[tf.Tensor, ...]:
        """Coordinates of the bins."""
        bins = self._built_bins * self.tables
        return (ops.dwta_parameters(self.seed, self._dim, bins, self._built_size, generation),)

    def get_config(self) -> dict[str, Any]:
        """The arguments that make this family again."""
        return {
            "bins": self.bins,
            "bin_size": self.bin_size,
            "address_bits": self.address_bits,
            **super().get_config(),
        }


@keras.saving.register_keras_serializable(package="tf_dslide")
class DWTA(_WinnerTakeAll):
    """Densified winner-take-all hashing.

    A bin looks at a few random coordinates; its code is the place of the largest. The order of
    coordinates counts, not their size. A bin whose coordinates are all 0 borrows the code of
    another bin, so that sparse and non-negative vectors spread too. SLIDE and D-SLIDE (arXiv
    2201.12667, section 3) use it for Amazon-670K.

    Args:
        bins: Bins that one table joins, K in the literature. `None` chooses by the number of
            neurons, so that a bucket holds about 64 of them.
        tables: Number of tables.
        bin_size: Coordinates of a bin, a power of two; the largest power of two that fits is used
            for shorter vectors. Each bin gives `log2(bin_size)` bits.
        address_bits: Codes longer than this are folded to so many bits.
        seed: Integer that fixes the bins.

    Memory and time: `bins * tables * bin_size` comparisons a vector.

    Example:
    >>> import numpy as np
    >>> from tf_dslide import DWTA
    >>> hash = DWTA(bins=2, tables=3)
    >>> hash.build(dim=16, units=1000)
    >>> x = np.arange(16, dtype="float32")[None]
    >>> codes = hash.codes(np.concatenate([x, 2 * x]))
    >>> bool((codes[0] == codes[1]).numpy().all()), hash.buckets
    (True, 64)
    """

    def codes(self, x: tf.Tensor) -> tf.Tensor:
        """Hashes `x`, `(n, dim) float32`; see `HashFamily.codes`."""
        return ops.dwta_codes(x, self._numbers[0], self.tables, self._built_bits)


@keras.saving.register_keras_serializable(package="tf_dslide")
class WTA(_WinnerTakeAll):
    """Winner-take-all hashing (Yagnik et al., ICCV 2011).

    A bin looks at a few random coordinates; its code is the place of the largest, the first of
    equals. The order of coordinates counts, not their size: two vectors agree in a bin of
    `bin_size` with the probability that one coordinate is the largest in both (equation 7 there;
    for two coordinates `(1 + tau) / 2` with Kendall's rank correlation tau). Meant for dense
    vectors. In sparse ones most bins see zeros alone and give the code 0: take `DWTA`, which is the
    same where no bin is empty.

    Args:
        bins: Bins that one table joins, K in the literature. `None` chooses by the number of
            neurons, so that a bucket holds about 64 of them.
        tables: Number of tables.
        bin_size: Coordinates of a bin, a power of two; the largest power of two that fits is used
            for shorter vectors. Each bin gives `log2(bin_size)` bits.
        address_bits: Codes longer than this are folded to so many bits.
        seed: Integer that fixes the bins.

    Memory and time: `bins * tables * bin_size` comparisons a vector.

    Example:
    >>> import numpy as np
    >>> from tf_dslide import WTA
    >>> hash = WTA(bins=2, tables=3)
    >>> hash.build(dim=16, units=1000)
    >>> x = np.random.default_rng(0).normal(size=(1, 16)).astype("float32")
    >>> codes = hash.codes(np.concatenate([x, np.exp(x)]))  # the order is the same
    >>> bool((codes[0] == codes[1]).numpy().all()), hash.buckets
    (True, 64)
    """

    def codes(self, x: tf.Tensor) -> tf.Tensor:
        """Hashes `x`, `(n, dim) float32`; see `HashFamily.codes`."""
        return ops.wta_codes(x, self._numbers[0], self.tables, self._built_bits)


@keras.saving.register_keras_serializable(package="tf_dslide")
class MinHash(HashFamily):
    """MinHash of the largest coordinates, by densified one-permutation hashing (DOPH).

    A vector stands for a set: its `top` largest coordinates among those above 0 (all of them where
    a ReLU left fewer; the lower coordinate first of equals). Two vectors agree in one bin with the
    probability of their sets' Jaccard similarity, `|A & B| / |A | B|`. One random permutation of
    the coordinates, cut into bins, gives a hash a bin: the member that comes first in it. An empty
    bin borrows from another one that it draws at random until it meets a full one (optimal
    densification, Shrivastava, ICML 2017), which keeps that probability. A permutation
    is cut into `top / 2` bins, and more permutations are drawn where the tables need more bins:
    hashes of fewer members than bins would repeat each other. SLIDE (arXiv 1903.03129)
    binarises dense vectors in the same way.

    A vector without coordinates above 0 has the code 0 in all tables.

    Args:
        bins: Bins that one table joins, K in the literature. `None` chooses by the number of
            neurons, so that a bucket holds about 64 of them.
        tables: Number of tables.
        top: Members of a set at most. `None` is a quarter of the coordinates.
        address_bits: A table has `2 ** address_bits` buckets, to which its bins are mixed. `None`
            chooses by the number of neurons as for `bins`.
        seed: Integer that fixes the permutations.

    Memory: 4 bytes a coordinate and permutation, of which there are `2 * bins * tables / top`. Time
    a vector: about `2 * dim + 4 * bins * tables` simple steps.

    Example:
    >>> import numpy as np
    >>> from tf_dslide import MinHash
    >>> hash = MinHash(bins=2, tables=3, top=4)
    >>> hash.build(dim=16, units=1000)
    >>> x = np.arange(16, dtype="float32")[None]
    >>> codes = hash.codes(np.concatenate([x, x**2]))  # the same four are the largest
    >>> bool((codes[0] == codes[1]).numpy().all()), hash.buckets
    (True, 16)
    """

    def __init__(
        self,
        bins: int | None = None,
        tables: int = 50,
        top: int | None = None,
        address_bits: int | None = None,
        seed: int = 0,
    ) -> None:
        super().__init__(tables, seed)
        if bins is not None:
            require_positive("bins", bins)
        if top is not None:
            require_positive("top", top)
        if address_bits is not None:
            _check_address_bits(address_bits)
        self.bins = bins
        self.top = top
        self.address_bits = address_bits
        self._built_bits = 0

    @property
    def buckets(self) -> int:
        """`2 ** address_bits`."""
        return 1 << self._built_bits

    def build(self, dim: int, units: int) -> None:
        """Draws the permutations."""
        self._built_bits = self.address_bits or address_bits_for(units)
        self._built_top = min(dim, self.top or max(1, dim // 4))
        # Sets of `top` members at random have about this Jaccard similarity: so often do two
        # neurons with nothing in common agree in a bin.
        by_chance = self._built_top / (2 * dim - self._built_top)
        self._built_bins = self.bins or math.ceil(self._built_bits / max(1, -math.log2(by_chance)))
        bins = self._built_bins * self.tables
        self._bins_per_permutation = min(bins, max(1, self._built_top // 2))
        self._dim = dim
        self._draw_first()

    def draw(self, generation: tf.Tensor | int) -> tuple[tf.Tensor, ...]:
        """The permutations."""
        permutations = -(-self._built_bins * self.tables // self._bins_per_permutation)
        return (ops.min_hash_parameters(self.seed, self._dim, permutations, generation),)

    def codes(self, x: tf.Tensor) -> tf.Tensor:
        """Hashes `x`, `(n, dim) float32`; see `HashFamily.codes`."""
        return ops.min_hash_codes(
            x,
            self._numbers[0],
            top=self._built_top,
            bins_per_table=self._built_bins,
            tables=self.tables,
            bins_per_permutation=self._bins_per_permutation,
            address_bits=self._built_bits,
        )

    def get_config(self) -> dict[str, Any]:
        """The arguments that make this family again."""
        return {
            "bins": self.bins,
            "top": self.top,
            "address_bits": self.address_bits,
            **super().get_config(),
        }


@keras.saving.register_keras_serializable(package="tf_dslide")
class LearnedHash(HashFamily):
    """Signs of projections that are trained to bring a sample and its best neurons together.

    Random projections know nothing of the data. The neurons of a trained layer share a direction,
    so that some buckets hold a large part of them and most hold none; hidden vectors share another;
    and the angle between a hidden vector and its best neuron is seldom far from a right one. Here
    hidden vectors and neurons have projections of their own, both with an offset. They begin as
    one random projection of the vectors without their mean and are trained whenever the tables
    are rebuilt, after MONGOOSE (Chen et al., ICLR 2021): bits are relaxed to the tanh of the
    projections; the positives are the neurons of the highest logits, bias included, of the
    batch's samples, whether the tables found them or not; the negatives are the best neurons of
    other samples, and neurons drawn by chance. Where MONGOOSE has a triplet loss with a margin for
    all bits, this is a cross-entropy for each table by itself: of the softmax of the agreement
    of its bits over positives and negatives. It needs no margin, and the tables, each of which
    sees samples of its own, stay different.

    Under an `MPIModelParallel` each rank's projections are its own, as its tables are: they learn
    from its neurons. A checkpoint resumes exactly on the same ranges of neurons; on others each
    rank goes on from what rank 0 had learned.

    Args:
        bits: Bits of a code, as in `SimHash`.
        tables: Number of tables.
        steps: Training steps of the projections at each rebuild; 0 only centres random ones. The
            first 256 samples of the batch and 8,192 neurons drawn by chance take part, other ones
            at each rebuild.
        learning_rate: Of Adam, for projections of the length `sqrt(dim)`.
        seed: Integer that fixes the first projections and all that is drawn.

    Memory: 8 bytes for each of `bits * tables * (dim + 1)` weights; 20 MB while learning. Time:
    three times that of `SimHash` to hash, and about `bits * (800 * dim + 40,000)`
    multiplications for each step and table to learn.

    Example:
    >>> import numpy as np
    >>> from tf_dslide import DSlideDense, LearnedHash, LshSampler
    >>> layer = DSlideDense(100_000, sampler=LshSampler(hash=LearnedHash(bits=9, tables=50)))
    >>> hash = LearnedHash(bits=4, tables=3)
    >>> hash.build(dim=8, units=1000)
    >>> x = np.ones((2, 8), "float32")
    >>> codes = hash.codes(x)
    >>> codes.shape, bool((codes == hash.query_codes(x)).numpy().all()), hash.buckets
    (TensorShape([2, 3]), True, 16)
    """

    learns = True

    def __init__(
        self,
        bits: int | None = None,
        tables: int = 50,
        steps: int = 16,
        learning_rate: float = 0.1,
        seed: int = 0,
    ) -> None:
        super().__init__(tables, seed)
        if bits is not None and require_positive("bits", bits) > 24:
            raise ValueError(f"`bits` must be in 1..24 or None; received {bits!r}")
        if isinstance(steps, bool) or int(steps) != steps or steps < 0:
            raise ValueError(f"`steps` must be a whole number from 0 on; received {steps!r}")
        if not 0 < learning_rate < math.inf:
            raise ValueError(
                f"`learning_rate` must be positive and finite; received {learning_rate!r}"
            )
        self.bits = bits
        self.steps = int(steps)
        self.learning_rate = float(learning_rate)
        self._built_bits = 0

    @property
    def buckets(self) -> int:
        """`2 ** bits`."""
        return 1 << self._built_bits

    def build(self, dim: int, units: int) -> None:
        """Draws the first projections: the same for samples and neurons, without offsets."""
        self._built_bits = self.bits or address_bits_for(units)
        projections = self._built_bits * self.tables
        with tf.init_scope():
            _, weights = ops.sim_hash_parameters(self.seed, dim, projections, dim)
            first = tf.concat([weights, tf.zeros([projections, 1])], axis=1)
            self._queries = tf.Variable(first, trainable=False)
            self._neurons = tf.Variable(first, trainable=False)
            self._rounds = tf.Variable(0, dtype=tf.int64, trainable=False)

    def codes(self, x: tf.Tensor) -> tf.Tensor:
        """Hashes neurons, `(n, dim) float32`; see `HashFamily.codes`."""
        return ops.projection_codes(
            x, tf.convert_to_tensor(self._neurons), self._built_bits, self.tables
        )

    def query_codes(self, x: tf.Tensor) -> tf.Tensor:
        """Hashes inputs of the layer, `(n, dim) float32`; see `HashFamily.codes`."""
        return ops.projection_codes(
            x, tf.convert_to_tensor(self._queries), self._built_bits, self.tables
        )

    def learn(self, x: tf.Tensor, kernel: tf.Tensor, bias: tf.Tensor | None) -> None:
        """Trains the projections by `steps` steps; see `HashFamily.learn`."""
        units = int(kernel.shape[0])
        ids, _ = ops.sample_neurons(
            tf.convert_to_tensor(self._rounds),
            units=units,
            count=min(units, _NEURONS_TO_LEARN_FROM),
            distribution="uniform",
            seed=self.seed,
        )
        queries, neurons = ops.learn_projections(
            tf.stop_gradient(x[:_QUERIES_TO_LEARN_FROM]),
            tf.gather(kernel, ids),
            tf.zeros(tf.shape(ids)) if bias is None else tf.gather(bias, ids),
            tf.convert_to_tensor(self._queries),
            tf.convert_to_tensor(self._neurons),
            # Offsets of 0 are those of `build`: nothing was learned from yet.
            tf.reduce_all(tf.equal(self._queries[:, -1], 0)),
            tf.convert_to_tensor(self._rounds),
            bits=self._built_bits,
            tables=self.tables,
            steps=self.steps,
            learning_rate=self.learning_rate,
            seed=self.seed,
        )
        self._queries.assign(queries)
        self._neurons.assign(neurons)
        self._rounds.assign_add(1)

    @property
    def variables(self) -> dict[str, tf.Variable]:
        """The projections of samples and of neurons, and the number of rounds of learning."""
        return {"queries": self._queries, "neurons": self._neurons, "rounds": self._rounds}

    def get_config(self) -> dict[str, Any]:
        """The arguments that make this family again."""
        return {
            "bits": self.bits,
            "steps": self.steps,
            "learning_rate": self.learning_rate,
            **super().get_config(),
        }
