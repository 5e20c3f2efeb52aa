"""Runs every op once on fixed inputs, for processes that differ in threads or instruction set.

`python -m tests.native.run_ops OUT.npz THREADS` writes the results and the instruction set in use.
"""

import os
import subprocess
import sys
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np

from tests import reference
from tests.reference import ActiveSet, AdamSettings, AdamState, Csr

Array = np.ndarray
ROOT = Path(__file__).resolve().parents[2]

# Enough work for several threads, and no multiple of any block.
ROWS, UNITS, D, TABLES, BITS = 131, 5003, 67, 20, 6
FEATURES = 250_007
ADAM = AdamSettings(3, 0.01, weight_decay=0.1)


@cache
def inputs() -> dict[str, Any]:
    """What all runs share. `coef` has a number for each of `active.listed()`."""
    rng = np.random.default_rng(5)

    def floats(*shape: int) -> Array:
        return rng.normal(size=shape).astype(np.float32)

    def csr(most: int) -> Csr:
        sizes = rng.integers(0, most, ROWS)
        return reference.csr([np.sort(rng.choice(UNITS, size, replace=False)) for size in sizes])

    own = csr(250)
    # More than two blocks of shared neurons, 100 of them own ones of some row.
    shared = np.append(np.unique(own.ids)[::50][:100], rng.integers(0, UNITS, 60))
    active = ActiveSet(own, np.unique(shared).astype(np.int32))
    labels = reference.csr([own.row(row)[:3] for row in range(ROWS)])
    return {
        "x": floats(ROWS, D),
        "kernel": floats(UNITS, D),
        "bias": floats(UNITS),
        "active": active,
        "labels": labels,
        "coef": floats(len(active.listed().ids)),
        "upstream": floats(ROWS),
        "state": AdamState(floats(FEATURES), floats(FEATURES), np.square(floats(FEATURES))),
        "gradient": floats(FEATURES),
        "repeated_rows": rng.integers(0, UNITS, 3001),
        "row_gradient": floats(3001, D),
    }


def run() -> dict[str, Array]:
    """The results of all ops."""
    import tensorflow as tf

    from tests.native.common import active_to_tf, to_tf, values_to_numpy, values_to_tf
    from tf_dslide._native import ops

    given = inputs()
    x, upstream = tf.constant(given["x"]), tf.constant(given["upstream"])
    kernel, bias = tf.Variable(given["kernel"]), tf.Variable(given["bias"])
    active, labels = active_to_tf(given["active"]), to_tf(given["labels"])
    coef = values_to_tf(given["active"], given["coef"])
    results: dict[str, Any] = {}

    index, value = ops.sim_hash_parameters(1, D, BITS * TABLES, 22)
    results |= {"sim_index": index, "sim_value": value}
    results["sim_codes"] = ops.sim_hash_codes(kernel, index, value, BITS, TABLES)
    bins = ops.dwta_parameters(1, D, 3 * TABLES, 4)
    results |= {"dwta_index": bins, "dwta_codes": ops.dwta_codes(kernel, bins, TABLES, BITS)}
    results["wta_codes"] = ops.wta_codes(kernel, bins, TABLES, BITS)
    place = ops.min_hash_parameters(1, D, 10)
    results |= {"min_hash_place": place}
    results["min_hash_codes"] = ops.min_hash_codes(
        kernel,
        place,
        top=16,
        bins_per_table=4,
        tables=TABLES,
        bins_per_permutation=8,
        address_bits=BITS,
    )
    first = tf.concat([value, tf.ones([BITS * TABLES, D + 1 - value.shape[1]])], axis=1)
    learned = ops.learn_projections(
        *(x, kernel, bias, first, first, True, 3),
        bits=BITS,
        tables=TABLES,
        steps=5,
        learning_rate=0.1,
        seed=6,
    )
    results |= {"projections": first, "learned_queries": learned[0], "learned_neurons": learned[1]}
    results["projection_codes"] = ops.projection_codes(kernel, first, BITS, TABLES)
    tables = ops.build_tables(results["sim_codes"], 2**BITS)
    results |= {"bucket_ptr": tables[0], "neuron_ids": tables[1]}
    row_codes = ops.sim_hash_codes(x, index, value, BITS, TABLES)
    step, shared = tf.constant(4, tf.int64), active.shared
    for name, bucket_size in (("whole", 10**6), ("cut", 20)):
        own = ops.select_from_tables(
            row_codes, *tables, labels, shared, step, hashed=300, bucket_size=bucket_size, seed=2
        )
        results |= {f"{name}_splits": own.row_splits, f"{name}_ids": own.ids}
    arranged = ops.arrange_buckets(*tables, step, policy="reservoir", seed=2)
    results["arranged"] = arranged
    own = ops.select_from_tables(
        row_codes,
        tables[0],
        arranged,
        labels,
        shared,
        step,
        hashed=300,
        bucket_size=20,
        seed=2,
        from_start=True,
        min_collisions=2,
    )
    results |= {"enough_splits": own.row_splits, "enough_ids": own.ids}
    results["row_codes"] = row_codes
    for distribution in ("uniform", "log_uniform"):
        ids, drawn = ops.sample_neurons(
            step, units=UNITS, count=700, distribution=distribution, seed=2, fixed=shared
        )
        results |= {f"{distribution}_ids": ids, f"{distribution}_drawn": drawn}
    results["log_importance_weights"] = ops.log_importance_weights(
        ops.ActiveSet(active.own, ids), drawn, UNITS
    )

    view = ops.csc_from_csr(active, UNITS)
    results |= {f"view_{name}": tensor for name, tensor in view.tensors()._asdict().items()}
    with tf.GradientTape(persistent=True) as tape:
        tape.watch([x, coef.own])
        logits = ops.active_logits(x, view, kernel, bias)
        tape.watch(logits)
        loss = ops.softmax_crossentropy(logits, active, labels)
        y = ops.csr_mat_mul(coef.own, active.own, kernel)
        full = ops.full_crossentropy(x, labels, kernel, bias)
    results |= {"loss": loss, "y": y, "full": full}
    by_logits = tape.gradient(loss, logits, upstream)
    for name, values in (("logits", logits), ("loss_by_logits", by_logits)):
        results[name] = values_to_numpy(given["active"], values)
    for name, target, out, wanted in (
        ("logits", logits, coef, (x, kernel, bias)),
        ("y", y, x, (coef.own, kernel)),
        ("full", full, upstream, (x, kernel, bias)),
    ):
        gradients = tape.gradient(target, wanted, out)
        for number, gradient in enumerate(gradients):
            results[f"{name}_gradient_{number}"] = tf.convert_to_tensor(gradient)
    for kept in (True, False):
        with tf.GradientTape() as tape:
            tape.watch(logits)
            thresholded = ops.ActiveLogits(*map(tf.nn.relu, logits))
            sparse = ops.sparse_from_active(thresholded, active, UNITS, keep_zeros=kept)
            after = ops.csr_mat_mul(sparse.values, ops.csr_from_sparse(sparse, UNITS), kernel)
        name = "kept" if kept else "dropped"
        results |= {f"{name}_indices": sparse.indices, f"{name}_values": sparse.values}
        by_logits = tape.gradient(after, logits, x)
        results[f"{name}_gradient"] = values_to_numpy(given["active"], by_logits)
        results[f"{name}_after"] = after
    results["active_top_ids"], results["active_top_scores"] = ops.active_top_k(logits, active, 7)
    results["top_ids"], results["top_scores"] = ops.top_k(x, kernel, bias, 7)

    results |= _sparse_linear(tf, ops)
    results |= _adam(tf, ops, ops.GradientFactors(x, *coef, view))
    return {name: np.asarray(result) for name, result in results.items()}


def _sparse_linear(tf: Any, ops: Any) -> dict[str, Any]:
    """Ops over a sparse kernel: the active sets stand for features, the labels for labels."""
    from tests.native.common import to_tf

    given = inputs()
    rows, labels = to_tf(given["active"].own), to_tf(given["labels"])
    splits, neurons, together = ops.cooccurrences(rows, UNITS, labels, UNITS, 20, 1.0)
    weights, bias = tf.Variable(tf.sin(together)), tf.Variable(given["bias"])
    sparse_kernel = ops.SparseKernel(splits, neurons, weights, bias, UNITS)
    x = ops.Features(rows, tf.constant(given["coef"][: len(given["active"].own.ids)]))
    with tf.GradientTape() as tape:
        active, logits = ops.sparse_linear_select(x, sparse_kernel, labels, 9)
        given_logits = ops.ActiveLogits(logits, tf.zeros([ROWS, 0]))
        one_active = ops.ActiveSet(active, ops.no_neurons())
        loss = ops.binary_crossentropy(given_logits, one_active, labels)
    by_weights, by_bias = tape.gradient(loss, [weights, bias])
    results = {"splits": splits, "neurons": neurons, "together": together, "loss": loss}
    results |= {"active_splits": active.row_splits, "active_ids": active.ids, "active": logits}
    results |= {"by_weights": by_weights.values, "weights": by_weights.indices}
    results |= {"by_bias": by_bias.values, "logits": ops.sparse_linear_logits(x, sparse_kernel)}
    results["top"] = ops.sparse_linear_top_k(x, sparse_kernel, 7)[0]
    results["softmax"], results["binary"] = ops.sparse_linear_losses(x, sparse_kernel, labels)
    return {f"sparse_linear_{name}": value for name, value in results.items()}


def _adam(tf: Any, ops: Any, parts: Any) -> dict[str, Any]:
    """One step of each Adam op."""
    given = inputs()
    results = {}

    def step(name: str, state: AdamState, update: Any, *rest: Any, missed: int = 0) -> None:
        variables = [tf.Variable(a) for a in state]
        last_step = np.full(state.weight.shape[:1], ADAM.step - 1 - missed, np.int32)
        numbers = (ADAM.learning_rate, ADAM.weight_decay)
        arguments = ops.AdamArguments(
            *map(ops.handle, (*variables, tf.Variable(last_step))),
            tf.constant(ADAM.step, tf.int64),
            *map(tf.constant, numbers),
            ADAM.beta_1,
            ADAM.beta_2,
            ADAM.epsilon,
        )
        update(arguments, *rest)
        results.update({f"{name}_{n}": v.numpy() for n, v in enumerate(variables)})

    step("dense_adam", given["state"], ops.dense_adam, tf.constant(given["gradient"]))
    rows, gradient = tf.constant(given["repeated_rows"], tf.int32), given["row_gradient"]
    step("row_adam", kernel_state(), ops.row_adam, rows, tf.constant(gradient))
    step("fused_adam", kernel_state(), ops.row_gradient_adam, parts)
    step("late_adam", kernel_state(), ops.catch_up_adam, missed=2)
    return results


def kernel_state() -> AdamState:
    """The kernel with small moments."""
    kernel = inputs()["kernel"]
    return AdamState(kernel, np.float32(0.1) * kernel[::-1], np.square(kernel) + np.float32(0.01))


def run_in_process(folder: Path, *, threads: int, level: str) -> tuple[dict[str, Array], str]:
    """The results of a fresh process, and what it printed to stderr. `level` may be empty."""
    out = folder / f"results_{level or 'best'}_{threads}.npz"
    environment = os.environ | {
        "DSLIDE_SIMD": level,
        "PYTHONPATH": os.pathsep.join(path for path in sys.path if path),
    }
    command = [sys.executable, "-m", "tests.native.run_ops", str(out), str(threads)]
    done = subprocess.run(
        command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=120, check=False
    )
    assert done.returncode == 0, done.stderr[-3000:]
    with np.load(out) as results:
        return dict(results), done.stderr


def main() -> None:
    """Writes the results of this process."""
    import tests.fewer_imports  # noqa: F401

    # isort: split
    import tensorflow as tf

    out, threads = sys.argv[1:]
    tf.config.threading.set_intra_op_parallelism_threads(int(threads))
    from tf_dslide._native import build_info

    results: dict[str, Any] = {"simd": build_info().simd, **run()}
    np.savez(out, **results)


if __name__ == "__main__":
    main()
