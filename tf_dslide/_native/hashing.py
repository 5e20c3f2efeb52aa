"""Hash functions and hash tables."""

import tensorflow as tf

from tf_dslide._native.loader import load

_ops = load()


def _generation(number: tf.Tensor | int) -> tf.Tensor:
    return tf.convert_to_tensor(number, tf.int64)


def sim_hash_parameters(
    seed: int, dim: int, projections: int, nonzeros: int, generation: tf.Tensor | int = 0
) -> tuple[tf.Tensor, tf.Tensor]:
    """Coordinates `(projections, nonzeros) int32` and weights of random sparse projections.

    Others for each `generation` of hash functions, as of those below.
    """
    return _ops.dslide_sim_hash_parameters(
        generation=_generation(generation),
        seed=seed,
        dim=dim,
        projections=projections,
        nonzeros=nonzeros,
    )


def sim_hash_codes(
    x: tf.Tensor, index: tf.Tensor, value: tf.Tensor, bits: int, tables: int
) -> tf.Tensor:
    """Codes `(n, tables) int32` in `[0, 2 ** bits)`; an error names a row that is not finite."""
    return _ops.dslide_sim_hash_codes(x=x, index=index, value=value, bits=bits, tables=tables)


def projection_codes(x: tf.Tensor, projections: tf.Tensor, bits: int, tables: int) -> tf.Tensor:
    """Codes `(n, tables) int32` in `[0, 2 ** bits)` from signs of `(tables * bits, dim + 1)`.

    The last column of the projections is added to their products with `x`.
    """
    return _ops.dslide_projection_codes(x=x, projections=projections, bits=bits, tables=tables)


def learn_projections(
    queries: tf.Tensor,
    neurons: tf.Tensor,
    bias: tf.Tensor,
    query_projections: tf.Tensor,
    neuron_projections: tf.Tensor,
    centre: tf.Tensor,
    round: tf.Tensor,
    *,
    bits: int,
    tables: int,
    steps: int,
    learning_rate: float,
    seed: int,
) -> tuple[tf.Tensor, tf.Tensor]:
    """Projections by which queries and the neurons that score high for them share codes.

    Args:
        queries: `(m, dim) float32`.
        neurons: `(c, dim) float32`, a sample of the neurons.
        bias: `(c,) float32`.
        query_projections: Those to begin with, `(tables * bits, dim + 1) float32`, offsets last.
        neuron_projections: The same for the neurons.
        centre: `() bool`: whether to begin with offsets that centre the vectors.
        round: `() int64`: each gives other draws.
        bits: Bits of a code.
        tables: Number of tables.
        steps: Steps of Adam.
        learning_rate: Its rate.
        seed: Fixes the draws.

    Returns:
        Both projections after training; unchanged where there is nothing to learn from.
    """
    return _ops.dslide_learn_projections(
        queries=queries,
        neurons=neurons,
        bias=bias,
        query_projections=query_projections,
        neuron_projections=neuron_projections,
        centre=centre,
        round=round,
        bits=bits,
        tables=tables,
        steps=steps,
        learning_rate=learning_rate,
        seed=seed,
    )


def dwta_parameters(
    seed: int, dim: int, bins: int, bin_size: int, generation: tf.Tensor | int = 0
) -> tf.Tensor:
    """Coordinates of the bins, `(bins, bin_size) int32`."""
    return _ops.dslide_dwta_parameters(
        generation=_generation(generation), seed=seed, dim=dim, bins=bins, bin_size=bin_size
    )


def dwta_codes(x: tf.Tensor, index: tf.Tensor, tables: int, address_bits: int) -> tf.Tensor:
    """Codes `(n, tables) int32` in `[0, 2 ** address_bits)`."""
    return _ops.dslide_dwta_codes(x=x, index=index, tables=tables, address_bits=address_bits)


def wta_codes(x: tf.Tensor, index: tf.Tensor, tables: int, address_bits: int) -> tf.Tensor:
    """As `dwta_codes`, but the first coordinate wins where all are 0."""
    return _ops.dslide_dwta_codes(
        x=x, index=index, tables=tables, address_bits=address_bits, densify=False
    )


def min_hash_parameters(
    seed: int, dim: int, permutations: int, generation: tf.Tensor | int = 0
) -> tf.Tensor:
    """Where each of `permutations` random orders puts the coordinates, `(permutations, dim)`."""
    return _ops.dslide_min_hash_parameters(
        generation=_generation(generation), seed=seed, dim=dim, permutations=permutations
    )


def min_hash_codes(
    x: tf.Tensor,
    place: tf.Tensor,
    *,
    top: int,
    bins_per_table: int,
    tables: int,
    bins_per_permutation: int,
    address_bits: int,
) -> tf.Tensor:
    """Codes `(n, tables) int32` in `[0, 2 ** address_bits)` of the `top` largest coordinates."""
    return _ops.dslide_min_hash_codes(
        x=x,
        place=place,
        top=top,
        bins_per_table=bins_per_table,
        tables=tables,
        bins_per_permutation=bins_per_permutation,
        address_bits=address_bits,
    )


def build_tables(codes: tf.Tensor, buckets: int) -> tuple[tf.Tensor, tf.Tensor]:
    """`bucket_ptr (tables, buckets + 1)` and `neuron_ids (tables, units)`, both `int32`."""
    return _ops.dslide_build_tables(codes=codes, buckets=buckets)


def arrange_buckets(
    bucket_ptr: tf.Tensor, neuron_ids: tf.Tensor, step: tf.Tensor, *, policy: str, seed: int
) -> tf.Tensor:
    """The `neuron_ids`, those first in each bucket that it would keep if it were shorter.

    By `policy` any of them with equal probability (`"reservoir"`, others at each `step`), or the
    last ones (`"fifo"`).
    """
    return _ops.dslide_arrange_buckets(
        bucket_ptr=bucket_ptr, neuron_ids=neuron_ids, step=step, policy=policy, seed=seed
    )
