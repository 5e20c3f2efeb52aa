"""All instruction sets are right, and the number of threads changes no bit."""

from pathlib import Path

import numpy as np
import pytest

from tests import reference
from tests.native import run_ops
from tests.native.common import assert_within, sim_hash_bits, sim_hash_disagreements
from tests.reference import UNIT_ROUNDOFF, ActiveSet, Csr, sum_bound

pytestmark = pytest.mark.levels

# In the order in which the library prefers them, with what /proc/cpuinfo must list for each.
LEVELS = {
    "avx512": {"avx512f", "avx512dq", "avx512bw", "avx512vl", "avx2", "fma"},
    "avx2": {"avx2", "fma"},
    "portable": set(),
}


def processor_flags() -> set[str]:
    """The instruction sets of this processor, as Linux lists them."""
    lines = Path("/proc/cpuinfo").read_text().splitlines()
    flags = next((line for line in lines if line.startswith("flags")), "")
    return set(flags.partition(":")[2].split())


def best_level() -> str:
    return next(level for level, needs in LEVELS.items() if needs <= processor_flags())


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    """Runs, each made once: `runs(level, threads)`."""
    folder, done = tmp_path_factory.mktemp("runs"), {}

    def get(level, threads):
        if (level, threads) not in done:
            done[level, threads] = run_ops.run_in_process(folder, threads=threads, level=level)
        return done[level, threads]

    return get


# The best level runs at several numbers of threads, the others at one of them.
THREADS = {level: (1, 2, 4)[number % 3] for number, level in enumerate(LEVELS)}


@pytest.mark.parametrize("level", LEVELS)
def test_level_is_the_one_asked_for(runs, level):
    results, stderr = runs(level, THREADS[level])
    if LEVELS[level] <= processor_flags():
        assert results["simd"] == level
        assert "DSLIDE_SIMD" not in stderr
    else:
        assert results["simd"] == best_level()
        assert f"DSLIDE_SIMD={level} asks for an instruction set" in stderr


def test_without_a_wish_the_best_level_runs(runs):
    results, stderr = runs("", 2)
    assert results["simd"] == best_level()
    assert "DSLIDE_SIMD" not in stderr


def test_unknown_level_warns_and_falls_back(runs):
    results, stderr = runs("avx1024", 4)
    assert results["simd"] == best_level()
    assert "DSLIDE_SIMD=avx1024 asks for an instruction set that is unknown" in stderr
    assert f"using '{best_level()}'" in stderr


def test_results_do_not_depend_on_the_number_of_threads(runs):
    # The run without a wish has 2 threads, the one with an unknown level 4.
    level = best_level()
    one, four = runs(level, 1)[0], runs("avx1024", 4)[0]
    two = runs("", 2)[0]
    assert one["simd"] == two["simd"] == four["simd"] == level
    for name, result in one.items():
        for other in (two, four):
            assert result.dtype == other[name].dtype
            assert result.tobytes() == other[name].tobytes(), f"{name} differs"


@pytest.fixture(params=LEVELS)
def results(runs, request):
    return runs(request.param, THREADS[request.param])[0]


def test_hashes_at_each_level(results):
    given = run_ops.inputs()
    for vectors, codes in ((given["kernel"], "sim_codes"), (given["x"], "row_codes")):
        parameters = results["sim_index"], results["sim_value"]
        assert sim_hash_disagreements(results[codes], vectors, *parameters, run_ops.BITS) == 0
    joined = reference.dwta_joined_codes(
        given["kernel"][:300], results["dwta_index"], run_ops.TABLES
    )
    np.testing.assert_array_equal(results["dwta_codes"][:300], joined)
    for vector, codes in zip(given["kernel"][:50], results["min_hash_codes"], strict=False):
        wanted = reference.min_hash_codes(vector, results["min_hash_place"], 16, 4, 8, run_ops.BITS)
        np.testing.assert_array_equal(codes, wanted)
    projections = results["projections"].astype(np.float64)
    sums = given["kernel"] @ projections[:, :-1].T + projections[:, -1]
    certain = np.abs(sums) > 1e-4
    bits = sim_hash_bits(results["projection_codes"], run_ops.BITS)
    assert (bits == (sums > 0))[certain].all()
    assert certain.mean() > 0.99
    for learned in (results["learned_queries"], results["learned_neurons"]):
        assert np.isfinite(learned).all()
        assert (learned != results["projections"]).mean() > 0.9
    ptr, ids = reference.build_tables(results["sim_codes"], 2**run_ops.BITS)
    np.testing.assert_array_equal(results["bucket_ptr"], ptr)
    np.testing.assert_array_equal(results["neuron_ids"], ids)
    own = Csr(results["whole_splits"], results["whole_ids"])
    collisions = reference.bucket_collisions(results["row_codes"], ptr, ids)
    excluded = given["active"].shared
    assert reference.selection_faults(own, collisions, given["labels"], excluded, 300) == []


def test_shared_neurons_at_each_level(results):
    own, fixed = run_ops.inputs()["active"]
    for distribution in ("uniform", "log_uniform"):
        ids, drawn = (results[f"{distribution}_{name}"] for name in ("ids", "drawn"))
        assert len(ids) == 700 + len(fixed)
        assert (np.diff(ids) > 0).all()
        np.testing.assert_array_equal(ids[drawn == 0], fixed)
    expected = reference.log_importance_weights(ActiveSet(own, ids), drawn, run_ops.UNITS)
    np.testing.assert_allclose(results["log_importance_weights"], expected, rtol=1e-6)


def test_products_at_each_level(results):
    given = run_ops.inputs()
    x, kernel, bias, coef = (given[name] for name in ("x", "kernel", "bias", "coef"))
    lists, d, units = given["active"].listed(), run_ops.D, run_ops.UNITS
    sizes = [np.abs(a) for a in (x, kernel, bias, coef)]
    logits_bound = sum_bound(reference.active_logits(sizes[0], lists, *sizes[1:3]), d + 1)
    row_bound = sum_bound(
        reference.csr_mat_mul(sizes[3], lists, sizes[1]),
        16 + np.diff(lists.row_splits)[:, None],
    )
    counts = np.bincount(lists.ids, minlength=units)
    neuron_bound = sum_bound(
        reference.row_gradient(sizes[0], sizes[3], lists, units), counts[:, None]
    )
    logits = reference.active_logits(x, lists, kernel, bias)
    assert_within(results["logits"], logits, logits_bound)
    products = reference.csr_mat_mul(coef, lists, kernel)
    assert_within(results["logits_gradient_0"], products, row_bound)
    by_kernel = reference.row_gradient(x, coef, lists, units)
    assert_within(results["logits_gradient_1"], by_kernel, neuron_bound)
    sums = reference.entry_sums(coef, lists, units)
    bound = sum_bound(reference.entry_sums(sizes[3], lists, units), counts)
    assert_within(results["logits_gradient_2"], sums, bound)


def test_sparse_matrix_product_at_each_level(results):
    given = run_ops.inputs()
    x, kernel, rows = given["x"], given["kernel"], given["active"].own
    coef, _ = given["active"].split(given["coef"])
    sizes = [np.abs(a) for a in (x, kernel, coef)]
    bound = sum_bound(
        reference.csr_mat_mul(sizes[2], rows, sizes[1]), np.diff(rows.row_splits)[:, None]
    )
    assert_within(results["y"], reference.csr_mat_mul(coef, rows, kernel), bound)
    bound = sum_bound(reference.active_logits(sizes[0], rows, sizes[1]), run_ops.D)
    assert_within(results["y_gradient_0"], reference.active_logits(x, rows, kernel), bound)
    bound = sum_bound(
        reference.row_gradient(sizes[0], sizes[2], rows, run_ops.UNITS),
        np.bincount(rows.ids, minlength=run_ops.UNITS)[:, None],
    )
    by_kernel = reference.row_gradient(x, coef, rows, run_ops.UNITS)
    assert_within(results["y_gradient_1"], by_kernel, bound)


@pytest.mark.parametrize("name", ["kept", "dropped"])
def test_sparse_activations_at_each_level(results, name):
    """Through the product with a kernel and back to the logits that they came from."""
    given = run_ops.inputs()
    active, kernel, upstream = given["active"], given["kernel"], given["x"]
    listed, counts = active.listed(), active.counted()
    values = np.maximum(results["logits"], 0)
    stays = counts if name == "kept" else counts & (values > 0)
    rows = listed.entry_rows()
    order = np.lexsort((listed.ids[stays], rows[stays]))
    indices = np.stack([rows[stays], listed.ids[stays]], axis=1)[order]
    np.testing.assert_array_equal(results[f"{name}_indices"], indices)
    np.testing.assert_array_equal(results[f"{name}_values"], values[stays][order])

    values = values * counts
    sizes = np.abs(values), np.abs(kernel), np.abs(upstream)
    bound = sum_bound(
        reference.csr_mat_mul(sizes[0], listed, sizes[1]), np.diff(listed.row_splits)[:, None]
    )
    assert_within(results[f"{name}_after"], reference.csr_mat_mul(values, listed, kernel), bound)
    flows = values > 0
    expected = reference.active_logits(upstream, listed, kernel) * flows
    bound = sum_bound(reference.active_logits(sizes[2], listed, sizes[1]), run_ops.D)
    assert_within(results[f"{name}_gradient"], expected, bound)


def test_losses_at_each_level(results):
    given = run_ops.inputs()
    x, kernel, bias, active, labels = (
        given[name] for name in ("x", "kernel", "bias", "active", "labels")
    )
    upstream = given["upstream"]
    loss, by_logit = reference.active_crossentropy(results["logits"], active, labels)
    np.testing.assert_allclose(results["loss"], loss, rtol=2e-6, atol=2e-6)
    lists = active.listed()
    bound = (np.diff(lists.row_splits) + 8)[lists.entry_rows()] * UNIT_ROUNDOFF
    scale = upstream[lists.entry_rows()]
    assert_within(results["loss_by_logits"], by_logit * scale, bound * np.abs(scale))

    loss, gradients = reference.full_crossentropy(x, labels, kernel, bias, upstream)
    np.testing.assert_allclose(results["full"], loss, rtol=1e-5, atol=1e-5)
    for number, gradient in enumerate(gradients):
        got = results[f"full_gradient_{number}"]
        assert np.linalg.norm(got - gradient) <= 1e-5 * np.linalg.norm(gradient)


def test_best_of_each_row_at_each_level(results):
    given = run_ops.inputs()
    ids, scores = reference.active_top_k(results["logits"], given["active"], 7)
    np.testing.assert_array_equal(results["active_top_ids"], ids)
    np.testing.assert_array_equal(results["active_top_scores"], scores)
    logits = reference.dense_logits(given["x"], given["kernel"], given["bias"])
    best = -np.sort(-logits, axis=1)[:, :7]
    np.testing.assert_allclose(results["top_scores"], best, rtol=1e-5)
    chosen = np.take_along_axis(logits, results["top_ids"], 1)
    np.testing.assert_allclose(chosen, best, rtol=1e-5)


@pytest.mark.parametrize("name", ["dense_adam", "row_adam", "fused_adam", "late_adam"])
def test_adam_at_each_level(results, name):
    given, settings = run_ops.inputs(), run_ops.ADAM
    if name == "dense_adam":
        expected = reference.adam(given["state"], given["gradient"], settings)
    elif name == "late_adam":
        start = run_ops.kernel_state()
        last_step = np.full(len(start.weight), settings.step - 3)
        expected = reference.missed_adam(start, last_step, settings)
    else:
        rows, gradient = given["repeated_rows"], given["row_gradient"]
        if name == "fused_adam":
            lists = given["active"].listed()
            rows = np.unique(lists.ids)
            gradient = reference.row_gradient(given["x"], given["coef"], lists, run_ops.UNITS)[rows]
        expected = reference.row_adam(run_ops.kernel_state(), rows, gradient, settings)
    for number, array in enumerate(expected):
        np.testing.assert_allclose(results[f"{name}_{number}"], array, rtol=1e-5, atol=1e-6)
