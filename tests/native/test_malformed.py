"""Every op called by hand with inputs that do not fit: an error each time, never a crash.

The cases go to the raw ops, past the Python functions that would make such inputs impossible.
"""

import functools

import numpy as np
import pytest
import tensorflow as tf

from tf_dslide._native.loader import load

RAW = load()
ROWS, UNITS, D, NNZ, SHARED = 3, 6, 4, 5, 2


def int32(*values):
    return tf.constant(values, tf.int32)


def int64(*values):
    return tf.constant(values, tf.int64)


def variable(*shape, dtype=tf.float32):
    return tf.Variable(tf.ones(shape, dtype))


X = tf.ones([ROWS, D])
ACTIVE = {"row_splits": int64(0, 2, 2, 5), "ids": int32(1, 4, 0, 1, 5)}
# Of the shared neurons, 2 is no row's own and 4 one row's.
SHARED_IDS = int32(2, 4)
LABELS = {"label_splits": int64(0, 1, 1, 3), "label_ids": int32(4, 0, 5)}
VIEW = {"view": RAW.dslide_csc_from_csr(**ACTIVE, shared=SHARED_IDS, units=UNITS)}
# Two tables of two buckets; sample r has the codes CODES[r].
CODES = tf.constant([[0, 1], [1, 1], [0, 0]])
TABLES = {
    "bucket_ptr": tf.constant([[0, 4, 6], [0, 1, 6]]),
    "neuron_ids": tf.constant([[0, 1, 2, 5, 3, 4], [3, 0, 1, 2, 4, 5]]),
}
SELECT = {"hashed": 3, "bucket_size": 4, "seed": 1}
COEF = tf.ones([NNZ])
SHARED_COEF = tf.ones([ROWS, SHARED])
COEFS = {"coef": COEF, "shared_coef": SHARED_COEF}
ACTIVE_SETS = {"logits": COEF, **ACTIVE, "shared_logits": SHARED_COEF, "shared": SHARED_IDS}
TOTALS = {name: tf.ones([ROWS]) for name in ("top", "log_sum", "label_count", "upstream")}
# Seven weights of six features.
KERNEL = {
    "weight_splits": int64(0, 2, 3, 3, 4, 6, 7),
    "weight_neurons": int32(1, 4, 0, 5, 2, 3, 5),
}
BETAS = {"beta_1": 0.9, "beta_2": 0.999, "epsilon": 1e-7}


def adam(**more):
    variables = {name: variable(UNITS, D) for name in ("weight", "momentum", "velocity")}
    variables["last_step"] = variable(UNITS, dtype=tf.int32)
    numbers = {"step": int64(1)[0], "learning_rate": 0.1, "weight_decay": 0.0}
    return variables | numbers | BETAS | more


def adagrad(**more):
    variables = {name: variable(UNITS, D) for name in ("weight", "accumulator")}
    return variables | {"learning_rate": 0.1, "weight_decay": 0.0, "epsilon": 1e-7} | more


def layer(**more):
    return {"kernel": variable(UNITS, D), "bias": [variable(UNITS)]} | more


def sparse_linear(**more):
    return {
        "values": COEF,
        **ACTIVE,
        **KERNEL,
        "weights": variable(7),
        "bias": [variable(UNITS)],
        "units": UNITS,
    } | more


# A sound call of each op; variables are made anew for each test.
SOUND = {
    "sim_hash_parameters": lambda: {
        "generation": int64(1)[0],
        "seed": 1,
        "dim": D,
        "projections": 4,
        "nonzeros": 2,
    },
    "sim_hash_codes": lambda: {
        "x": X,
        "index": tf.constant([[0, 1], [2, 3], [0, 3], [1, 2]]),
        "value": tf.ones([4, 2]),
        "bits": 2,
        "tables": 2,
    },
    "projection_codes": lambda: {
        "x": X,
        "projections": tf.ones([4, D + 1]),
        "bits": 2,
        "tables": 2,
    },
    "learn_projections": lambda: {
        "queries": X,
        "neurons": tf.random.stateless_normal([UNITS, D], [1, 2]),
        "bias": tf.zeros([UNITS]),
        "query_projections": tf.ones([4, D + 1]),
        "neuron_projections": tf.ones([4, D + 1]),
        "centre": tf.constant(True),
        "round": int64(1)[0],
        "bits": 2,
        "tables": 2,
        "steps": 2,
        "learning_rate": 0.1,
        "seed": 1,
    },
    "dwta_parameters": lambda: {
        "generation": int64(1)[0],
        "seed": 1,
        "dim": D,
        "bins": 4,
        "bin_size": 2,
    },
    "dwta_codes": lambda: {
        "x": X,
        "index": tf.constant([[0, 1], [2, 3], [0, 3], [1, 2]]),
        "tables": 2,
        "address_bits": 2,
    },
    "min_hash_parameters": lambda: {
        "generation": int64(1)[0],
        "seed": 1,
        "dim": D,
        "permutations": 2,
    },
    "min_hash_codes": lambda: {
        "x": X,
        "place": tf.constant([[0, 1, 2, 3], [3, 1, 2, 0]]),
        "top": 2,
        "bins_per_table": 2,
        "tables": 2,
        "bins_per_permutation": 2,
        "address_bits": 3,
    },
    "build_tables": lambda: {"codes": CODES, "buckets": 2},
    "arrange_buckets": lambda: {
        **TABLES,
        "step": int64(1)[0],
        "policy": "reservoir",
        "seed": 1,
    },
    "select_from_tables": lambda: {
        "codes": CODES,
        **TABLES,
        **LABELS,
        "excluded": int32(2, 3),
        "step": int64(1)[0],
        **SELECT,
    },
    "sample_neurons": lambda: {
        "step": int64(1)[0],
        "fixed": int32(2, 4),
        "units": UNITS,
        "count": 3,
        "distribution": "uniform",
        "seed": 1,
    },
    "log_importance_weights": lambda: {
        **ACTIVE,
        "shared": SHARED_IDS,
        "drawn": tf.constant([0.0, 1.0]),
        "units": UNITS,
    },
    "canonical_labels": lambda: {
        "row_splits": int64(0, 2, 3),
        "values": int64(5, -1, 0),
        "units": UNITS,
    },
    "csr_from_sparse": lambda: {
        "indices": int64([0, 1], [2, 0], [2, 5]),
        "values": tf.ones([3]),
        "dense_shape": int64(ROWS, UNITS),
        "columns": UNITS,
    },
    "csc_from_csr": lambda: {**ACTIVE, "shared": SHARED_IDS, "units": UNITS},
    "csc_tensors": lambda: VIEW,
    "active_logits": lambda: {"x": X, **VIEW, **layer()},
    "csr_mat_mul": lambda: {"coef": COEF, **ACTIVE, "kernel": variable(UNITS, D), "columns": UNITS},
    "active_mat_mul": lambda: {**COEFS, **VIEW, "like": X, "kernel": variable(UNITS, D)},
    "row_gradient": lambda: {"x": X, **COEFS, **VIEW},
    "entry_sums": lambda: {"x": X, **COEFS, **VIEW},
    "softmax_crossentropy": lambda: {
        **ACTIVE_SETS,
        **LABELS,
        "row_adjustment": tf.ones([ROWS]),
        "shared_adjustment": tf.ones([SHARED]),
    },
    "binary_crossentropy": lambda: {
        **SOUND["softmax_crossentropy"](),
        "own_adjustment": tf.zeros([NNZ]),
    },
    "cooccurrences": lambda: {
        **ACTIVE,
        **LABELS,
        "features": UNITS,
        "units": UNITS,
        "max_weights_per_feature": 3,
        "smoothing": 1.0,
    },
    "sparse_linear_select": lambda: sparse_linear(**LABELS, count=2),
    "sparse_linear_logits": lambda: sparse_linear(weights=tf.ones([7]), bias=[tf.ones([UNITS])]),
    "sparse_linear_top_k": lambda: sparse_linear(k=2),
    "sparse_linear_losses": lambda: sparse_linear(**LABELS),
    "sparse_linear_gradient": lambda: {
        "values": COEF,
        "active_splits": ACTIVE["row_splits"],
        "active_ids": ACTIVE["ids"],
        "upstream": COEF,
        "match_splits": int64(0, 2, 2, 5),
        "match_position": int32(0, 2, 1, 3, 5),
        "match_entry": int32(0, 1, 2, 3, 4),
        "match_place": int32(4, 3, 2, 1, 0),
        "weight_count": 7,
        "units": UNITS,
    },
    "scale_rows": lambda: {
        "values": COEF,
        "row_splits": ACTIVE["row_splits"],
        "shared_values": tf.ones([ROWS, SHARED]),
        "scale": tf.ones([ROWS]),
    },
    "active_top_k": lambda: {**ACTIVE_SETS, "k": 2},
    "sparse_from_active": lambda: {**ACTIVE_SETS, "keep_zeros": True},
    # Of the rows' 5 and 3 * 2 entries one is shared and own.
    "active_from_sparse": lambda: {**ACTIVE_SETS, "entries": tf.ones([10]), "keep_zeros": True},
    "top_k": lambda: {"x": X, **layer(), "k": 2},
    "softmax_parts": lambda: SOUND["softmax_crossentropy"](),
    "softmax_gradient": lambda: {**SOUND["softmax_crossentropy"](), **TOTALS},
    "full_crossentropy": lambda: {"x": X, **LABELS, **layer()},
    "crossentropy_of_parts": lambda: {
        "losses": tf.ones([ROWS]),
        "x": X,
        **LABELS,
        **{name: values for name, values in TOTALS.items() if name != "upstream"},
        **layer(),
    },
    "full_crossentropy_gradient": lambda: {
        "x": X,
        **LABELS,
        **TOTALS,
        **layer(),
    },
    "dense_adam": lambda: adam(gradient=tf.ones([UNITS, D])),
    "row_adam": lambda: adam(rows=int32(4, 1), gradient=tf.ones([2, D])),
    "row_gradient_adam": lambda: adam(x=X, **COEFS, **VIEW),
    "catch_up_adam": adam,
    "dense_adagrad": lambda: adagrad(gradient=tf.ones([UNITS, D])),
    "row_adagrad": lambda: adagrad(rows=int32(4, 1), gradient=tf.ones([2, D])),
    "row_gradient_adagrad": lambda: adagrad(x=X, **COEFS, **VIEW),
}
SOFTMAX_OPS = (
    "softmax_crossentropy",
    "softmax_parts",
    "softmax_gradient",
    "binary_crossentropy",
)
SPARSE_LINEAR_OPS = (
    "sparse_linear_select",
    "sparse_linear_logits",
    "sparse_linear_top_k",
    "sparse_linear_losses",
)
ADAM_OPS = ("dense_adam", "row_adam", "row_gradient_adam", "catch_up_adam")
ADAGRAD_OPS = ("dense_adagrad", "row_adagrad", "row_gradient_adagrad")
UPDATING_OPS = ADAM_OPS + ADAGRAD_OPS


def handles(value):
    """Variables, alone or in a list, as the raw ops want them."""
    if isinstance(value, list):
        return [handles(v) for v in value]
    return value.handle if isinstance(value, tf.Variable) else value


def call(op, arguments):
    return getattr(RAW, f"dslide_{op}")(**{k: handles(v) for k, v in arguments.items()})


def assert_refused(op, **changes):
    """The sound call with some arguments changed gives an error, and no variable is changed."""
    arguments = SOUND[op]() | changes
    variables = [v for v in arguments.values() if isinstance(v, tf.Variable)]
    floats = [v for v in variables if v.dtype == tf.float32]
    before = [v.numpy() for v in floats]
    with pytest.raises((tf.errors.InvalidArgumentError, tf.errors.ResourceExhaustedError)) as error:
        call(op, arguments)
    for v, value in zip(floats, before, strict=True):
        np.testing.assert_array_equal(v, value)
    return str(error.value)


def test_every_op_is_here():
    names = {
        name.removeprefix("dslide_")
        for name in dir(RAW)
        if name.startswith("dslide_") and not name.endswith("_eager_fallback")
    }
    assert names == set(SOUND)


@pytest.mark.parametrize("op", SOUND)
def test_the_sound_calls_run(op):
    call(op, SOUND[op]())


# Ranks. A gradient may have any shape of the right size.
RANKS = [
    (op, name)
    for op, make in SOUND.items()
    for name, value in make().items()
    if isinstance(value, tf.Tensor) and (name, op in UPDATING_OPS) != ("gradient", True)
]


@pytest.mark.parametrize(("op", "name"), RANKS)
def test_wrong_ranks(op, name):
    value = SOUND[op]()[name]
    assert_refused(op, **{name: value[None]})
    if value.shape.rank:
        assert_refused(op, **{name: value[0]})


@pytest.mark.parametrize("op", UPDATING_OPS)
@pytest.mark.parametrize("name", ["learning_rate", "weight_decay"])
def test_wrong_ranks_of_numbers(op, name):
    assert_refused(op, **{name: tf.constant([0.1])})


# Lists of ids.
LISTS = [
    ("select_from_tables", "label_splits", "label_ids", UNITS, True),
    ("log_importance_weights", "row_splits", "ids", UNITS, True),
    ("csc_from_csr", "row_splits", "ids", UNITS, False),
    ("csr_mat_mul", "row_splits", "ids", UNITS, False),
    *((op, "row_splits", "ids", None, True) for op in SOFTMAX_OPS),
    *((op, "label_splits", "label_ids", None, True) for op in SOFTMAX_OPS),
    ("scale_rows", "row_splits", None, None, False),
    ("active_top_k", "row_splits", "ids", None, True),
    ("sparse_from_active", "row_splits", "ids", None, True),
    ("active_from_sparse", "row_splits", "ids", None, True),
    ("full_crossentropy", "label_splits", "label_ids", UNITS, True),
    ("full_crossentropy_gradient", "label_splits", "label_ids", UNITS, True),
    ("canonical_labels", "row_splits", None, None, False),
    ("cooccurrences", "row_splits", "ids", UNITS, True),
    ("cooccurrences", "label_splits", "label_ids", UNITS, True),
    *((op, "row_splits", "ids", UNITS, True) for op in SPARSE_LINEAR_OPS),
    ("sparse_linear_select", "label_splits", "label_ids", UNITS, True),
    ("sparse_linear_losses", "label_splits", "label_ids", UNITS, True),
    ("sparse_linear_gradient", "active_splits", "active_ids", UNITS, True),
    ("sparse_linear_gradient", "match_splits", "match_position", 7, True),
]
lists_case = pytest.mark.parametrize(
    ("op", "splits", "ids", "units", "strictly"), LISTS, ids=lambda value: str(value)
)


@lists_case
def test_wrong_splits(op, splits, ids, units, strictly):
    sound = SOUND[op]()[splits].numpy()
    changes = {
        "fall": [0, sound[2] + 1, sound[2], *sound[3:]],
        "begin": [1, *sound[1:]],
        "begin below 0": [-1, *sound[1:]],
        "end early": [*sound[:-1], sound[-1] - 1],
        "end late": [*sound[:-1], sound[-1] + 1],
        "rise and fall far": [0, 2**40, *sound[2:]],
        "fall below 0": [0, -(2**62), *sound[2:]],
        "one number": [sound[-1]],
        "none": [],
    }
    for number, values in changes.items():
        assert assert_refused(op, **{splits: int64(*values)}), number


@lists_case
def test_wrong_ids(op, splits, ids, units, strictly):
    if ids is None:
        return
    last = 5  # of the last row of both lists, after a smaller id
    sound = SOUND[op]()[ids].numpy()
    assert sound[-1] == last
    for wrong in (-1, -(2**31), *(() if units is None else (units, 2**31 - 1))):
        message = assert_refused(op, **{ids: int32(*sound[:-1], wrong)})
        assert str(wrong) in message
        assert_refused(op, **{ids: int32(wrong, *sound[1:])})
    assert_refused(op, **{ids: int32(*sound[:-2], 5, 0)})
    if strictly:
        assert_refused(op, **{ids: int32(*sound[:-2], 5, 5)})
    assert_refused(op, **{ids: int32(*sound, 5)})
    assert_refused(op, **{ids: int32(*sound[:-1])})


# Neurons that all rows share.
@pytest.mark.parametrize(
    ("op", "name", "units"),
    [
        ("select_from_tables", "excluded", UNITS),
        ("sample_neurons", "fixed", UNITS),
        ("log_importance_weights", "shared", UNITS),
        ("csc_from_csr", "shared", UNITS),
        *((op, "shared", None) for op in SOFTMAX_OPS),
        ("active_top_k", "shared", None),
        ("sparse_from_active", "shared", None),
        ("active_from_sparse", "shared", None),
    ],
)
def test_wrong_shared_neurons(op, name, units):
    for wrong in ((3, 2), (3, 3), (0, 0), (-1, 3), (3, -1), (-(2**31), 3)):
        assert_refused(op, **{name: int32(*wrong)})
    for wrong in () if units is None else (units, 2**31 - 1):
        message = assert_refused(op, **{name: int32(2, wrong)})
        assert str(wrong) in message


@pytest.mark.parametrize("value", [0.5, 2.0, -1.0, np.nan, np.inf])
def test_drawn_neurons_that_are_neither_drawn_nor_not(value):
    assert_refused("log_importance_weights", drawn=tf.constant([1.0, value]))


# Where the ops are not told the number of units, any int32 may be an id.
@pytest.mark.parametrize("op", [*SOFTMAX_OPS, "active_top_k"])
def test_ids_that_fall_from_the_largest(op):
    assert_refused(op, shared=int32(2**31 - 1, 3))
    assert_refused(op, ids=int32(2**31 - 1, 4, 0, 1, 5))


@pytest.mark.parametrize(
    ("op", "name"),
    [
        ("active_mat_mul", "shared_coef"),
        ("row_gradient", "shared_coef"),
        ("entry_sums", "shared_coef"),
        ("row_gradient_adam", "shared_coef"),
        *((op, "shared_logits") for op in SOFTMAX_OPS),
        ("active_top_k", "shared_logits"),
        ("sparse_from_active", "shared_logits"),
        ("active_from_sparse", "shared_logits"),
    ],
)
@pytest.mark.parametrize(
    "shape",
    [
        (ROWS - 1, SHARED),
        (ROWS + 1, SHARED),
        (0, SHARED),
        (ROWS, SHARED - 1),
        (ROWS, SHARED + 1),
        (ROWS, 0),
        (SHARED, ROWS),
        (1, ROWS * SHARED),
    ],
)
def test_wrong_shapes_of_shared_values(op, name, shape):
    assert_refused(op, **{name: tf.ones(shape)})


@pytest.mark.parametrize(
    "op",
    [
        *SOFTMAX_OPS,
        "active_top_k",
        "log_importance_weights",
        "sparse_from_active",
        "active_from_sparse",
    ],
)
def test_wrong_number_of_shared_neurons(op):
    for ids in ((), (2,), (2, 3, 4)):
        assert_refused(op, shared=int32(*ids))


@pytest.mark.parametrize("keep_zeros", [True, False])
def test_wrong_number_of_entries(keep_zeros):
    zeros = {} if keep_zeros else {"logits": tf.zeros([NNZ])}
    right = 10 if keep_zeros else 5
    for number in (0, right - 1, right + 1):
        message = assert_refused(
            "active_from_sparse", entries=tf.ones([number]), keep_zeros=keep_zeros, **zeros
        )
        assert f"must be {right}; received {number}" in message


# Active sets seen by neuron. Their ids are checked where a view is made (`csc_from_csr` above);
# those who read it compare it with what they have besides.
VIEWED = [op for op, make in SOUND.items() if "view" in make()]
viewed_case = pytest.mark.parametrize("op", VIEWED)


def view_of(rows, *, shared=(2, 4), units=UNITS):
    row_splits = np.cumsum([0, *map(len, rows)])
    ids = int32(*(id_ for row in rows for id_ in row))
    return RAW.dslide_csc_from_csr(
        row_splits=int64(*row_splits), ids=ids, shared=int32(*shared), units=units
    )


def test_viewed_ops_are_here():
    assert len(VIEWED) == 7


@viewed_case
def test_variants_that_are_no_views(op):
    lists = tf.raw_ops.EmptyTensorList(
        element_shape=int32(), max_num_elements=3, element_dtype=tf.float32
    )
    message = assert_refused(op, view=lists)
    assert "CscFromCsr" in message
    assert "TensorList" in message


# TensorFlow writes the views of constants to graphs. One that was changed there is not read.
TENSORS = {
    "neurons": (0, 1, 2, 4, 5),
    "neuron_splits": (0, 1, 3, 3, 4, 5),
    "entry_row": (2, 0, 2, 0, 2),
    "entry_index": (2, 0, 3, 1, 4),
    "shared_places": (2, 3),
}


def decoded_view(rows=ROWS, dtypes=None, **tensors):
    proto = tf.make_tensor_proto(0)
    proto.dtype = tf.variant.as_datatype_enum
    proto.ClearField("int_val")
    value = proto.variant_val.add()
    value.type_name = "dslide::CscVariant"
    value.metadata = np.int64(rows).tobytes()
    for name, values in (TENSORS | tensors).items():
        dtype = tf.int64 if name == "neuron_splits" else tf.int32
        value.tensors.append(tf.make_tensor_proto(values, (dtypes or {}).get(name, dtype)))
    return tf.io.parse_tensor(proto.SerializeToString(), tf.variant)


def test_views_written_and_read():
    for view in (
        decoded_view(),
        tf.io.parse_tensor(tf.io.serialize_tensor(VIEW["view"]), tf.variant),
    ):
        for got, expected in zip(
            call("csc_tensors", {"view": view}), TENSORS.values(), strict=True
        ):
            np.testing.assert_array_equal(got, expected)


@pytest.mark.parametrize(
    ("name", "values"),
    [
        ("neurons", (1, 0, 2, 4, 5)),
        ("neurons", (0, 0, 2, 4, 5)),
        ("neurons", (0, 1, 2, 2, 5)),
        ("neurons", (-1, 1, 2, 4, 5)),
        ("neurons", (0, 1, 2, 4, -1)),
        ("neurons", (0, 1, 2, 4)),
        ("neurons", (0, 1, 2, 3, 4, 5)),
        ("neurons", ()),
        ("neurons", [[0, 1, 2, 4, 5]]),
        ("neuron_splits", (0, 3, 1, 3, 4, 5)),
        ("neuron_splits", (1, 1, 3, 3, 4, 5)),
        ("neuron_splits", (0, 1, 3, 3, 4, 4)),
        ("neuron_splits", (0, 1, 3, 3, 4, 6)),
        ("neuron_splits", (0, 2**40, 3, 3, 4, 5)),
        ("neuron_splits", (0, -(2**62), 3, 3, 4, 5)),
        ("neuron_splits", (0, 1, 3, 4, 5)),
        ("neuron_splits", ()),
        ("shared_places", (2, 5)),
        ("shared_places", (2, 2**31 - 1)),
        ("shared_places", (-1, 3)),
        ("shared_places", (-(2**31), 3)),
        ("shared_places", (3, 2)),
        ("shared_places", (3, 3)),
        ("entry_row", (2, 0, ROWS, 0, 2)),
        ("entry_row", (2, 0, -1, 0, 2)),
        ("entry_row", (2, 0, 2, 0)),
        ("entry_index", (2, 0, NNZ, 1, 4)),
        ("entry_index", (2, 0, -1, 1, 4)),
        ("entry_index", (2, 0, 3, 1, 4, 0)),
        ("entry_index", (2, 0, 3, 0, 4)),
    ],
)
def test_wrong_views_are_not_read(name, values):
    with pytest.raises(tf.errors.InvalidArgumentError):
        decoded_view(**{name: values})


def test_other_views_are_not_read():
    for changes in ({"rows": 2}, {"rows": -1}, {"dtypes": {"neurons": tf.int64}}):
        with pytest.raises(tf.errors.InvalidArgumentError):
            decoded_view(**changes)
    with pytest.raises(tf.errors.InvalidArgumentError):
        decoded_view(one_more=(1, 2))


@pytest.mark.parametrize("op", [op for op in VIEWED if op != "csc_tensors"])
@pytest.mark.parametrize(
    "rows", [[[1, 4], [], [0, 1, 5], []], [[1, 4], [0, 1, 5]], []], ids=["more", "fewer", "none"]
)
def test_views_of_other_rows(op, rows):
    message = assert_refused(op, view=view_of(rows))
    assert f"must be {ROWS}; received {len(rows)}" in message


@pytest.mark.parametrize(
    "op", ["active_logits", "active_mat_mul", "row_gradient_adam", "row_gradient_adagrad"]
)
def test_neurons_beyond_the_kernel(op):
    for neuron in (UNITS, 2**31 - 2):
        rows = [[1, 4], [], [0, 1, neuron]]
        assert str(neuron) in assert_refused(op, view=view_of(rows, units=neuron + 1))
        rows = [[1, 4], [], [0, 1, 5]]
        assert_refused(op, view=view_of(rows, shared=(2, neuron), units=neuron + 1))


@pytest.mark.parametrize("op", [op for op in VIEWED if op not in ("active_logits", "csc_tensors")])
def test_views_of_other_sizes(op):
    # Logits are made for as many as there are.
    assert_refused(op, view=view_of([[1, 4], [], [0, 1]]))
    assert_refused(op, view=view_of([[1, 4], [], [0, 1, 3, 5]]))
    for shared in ((), (2,), (2, 3, 4)):
        assert_refused(op, view=view_of([[1, 4], [], [0, 1, 5]], shared=shared))


@pytest.mark.parametrize(
    "op", ["csr_mat_mul", "active_mat_mul", "row_gradient", "entry_sums", "row_gradient_adam"]
)
@pytest.mark.parametrize("length", [0, NNZ - 1, NNZ + 1])
def test_wrong_number_of_coefficients(op, length):
    assert_refused(op, coef=tf.ones([length]))


@pytest.mark.parametrize(
    ("op", "changes"),
    [
        ("row_gradient_adam", {"x": tf.ones([ROWS, D + 1])}),
        ("row_gradient_adam", {"x": tf.ones([ROWS - 1, D])}),
        ("row_gradient", {"x": tf.ones([ROWS - 1, D])}),
        ("active_logits", {"x": tf.ones([ROWS, D + 1])}),
        ("active_logits", {"x": tf.ones([ROWS - 1, D])}),
        ("csr_mat_mul", {"columns": UNITS + 1}),
        ("csr_mat_mul", {"columns": UNITS - 1}),
        ("active_mat_mul", {"like": tf.ones([ROWS, D + 1])}),
        ("active_mat_mul", {"like": tf.ones([ROWS - 1, D])}),
        ("active_mat_mul", {"like": tf.ones([ROWS + 1, D])}),
        ("row_gradient", {"x": tf.ones([ROWS + 1, D])}),
        ("row_gradient_adam", {"x": tf.ones([ROWS + 1, D])}),
        ("entry_sums", {"x": tf.ones([ROWS - 1, D])}),
        ("entry_sums", {"x": tf.ones([ROWS + 1, D])}),
        *(
            (op, changes)
            for op in SOFTMAX_OPS
            for changes in (
                {"logits": tf.ones([NNZ + 1])},
                {"label_splits": int64(0, 1, 3)},
                {"label_ids": int32(3, 0, 5)},
                {"row_adjustment": tf.ones([ROWS - 1])},
                {"row_adjustment": tf.ones([ROWS + 1])},
                {"shared_adjustment": tf.ones([SHARED - 1])},
                {"shared_adjustment": tf.ones([SHARED + 1])},
            )
        ),
        *(
            (op, {name: tf.ones([ROWS + wrong])})
            for op in ("softmax_gradient", "full_crossentropy_gradient")
            for name in TOTALS
            for wrong in (-1, 1)
        ),
        ("scale_rows", {"scale": tf.ones([ROWS + 1])}),
        ("scale_rows", {"shared_values": tf.ones([ROWS - 1, SHARED])}),
        ("scale_rows", {"shared_values": tf.ones([ROWS + 1, SHARED])}),
        ("scale_rows", {"values": tf.ones([NNZ + 1])}),
        ("active_top_k", {"logits": tf.ones([NNZ - 1])}),
        ("active_top_k", {"k": 2**63 - 1}),
        ("active_top_k", {"k": 2**40}),
        ("top_k", {"k": UNITS + 1}),
        ("top_k", {"k": 2**63 - 1}),
        ("top_k", {"x": tf.ones([ROWS, D + 1])}),
        ("full_crossentropy", {"x": tf.ones([ROWS, D + 1])}),
        ("full_crossentropy", {"x": tf.ones([ROWS + 1, D])}),
        ("full_crossentropy_gradient", {"x": tf.ones([ROWS + 1, D])}),
        ("dense_adam", {"gradient": tf.ones([UNITS, D + 1])}),
        ("dense_adam", {"gradient": tf.ones([0])}),
        ("row_adam", {"gradient": tf.ones([2, D + 1])}),
        ("row_adam", {"gradient": tf.ones([3, D])}),
        ("row_adam", {"rows": int32(4, UNITS)}),
        ("row_adam", {"rows": int32(4, -1)}),
        ("row_adam", {"rows": int32(-1, 4)}),
        ("row_adam", {"rows": int32(4, 4, UNITS), "gradient": tf.ones([3, D])}),
        ("dense_adagrad", {"gradient": tf.ones([UNITS, D + 1])}),
        ("row_adagrad", {"gradient": tf.ones([3, D])}),
        ("row_adagrad", {"rows": int32(4, UNITS)}),
        ("row_gradient_adagrad", {"x": tf.ones([ROWS, D + 1])}),
    ],
    ids=lambda value: value if isinstance(value, str) else "-".join(value),
)
def test_sizes_that_do_not_match(op, changes):
    assert_refused(op, **changes)


# Hashing.
@pytest.mark.parametrize(
    ("op", "changes"),
    [
        ("sim_hash_parameters", {"nonzeros": D + 1}),
        ("sim_hash_parameters", {"dim": 2**50}),
        ("sim_hash_parameters", {"dim": 2**40, "projections": 2**40, "nonzeros": 2**40}),
        ("dwta_parameters", {"bin_size": D + 1}),
        ("dwta_parameters", {"dim": 2**50}),
        ("dwta_parameters", {"bins": 2**62}),
        ("projection_codes", {"tables": 3}),
        ("projection_codes", {"bits": 31, "tables": 1}),
        ("projection_codes", {"projections": tf.ones([4, D])}),
        ("projection_codes", {"x": tf.ones([ROWS, D + 1])}),
        ("learn_projections", {"tables": 3}),
        ("learn_projections", {"bits": 31, "tables": 1}),
        ("learn_projections", {"learning_rate": 0.0}),
        ("learn_projections", {"learning_rate": float("nan")}),
        ("learn_projections", {"steps": -1}),
        ("learn_projections", {"bias": tf.zeros([UNITS + 1])}),
        ("learn_projections", {"queries": tf.ones([ROWS, D + 1])}),
        ("learn_projections", {"query_projections": tf.ones([4, D])}),
        ("learn_projections", {"neuron_projections": tf.ones([5, D + 1])}),
        ("sim_hash_codes", {"tables": 3}),
        ("sim_hash_codes", {"bits": 31, "tables": 1}),
        ("sim_hash_codes", {"bits": 2**40, "tables": 2**40}),
        ("sim_hash_codes", {"value": tf.ones([4, 3])}),
        ("sim_hash_codes", {"index": tf.fill([4, 2], D)}),
        ("sim_hash_codes", {"index": tf.fill([4, 2], -1)}),
        ("sim_hash_codes", {"x": tf.ones([ROWS, D - 1])}),
        ("sim_hash_codes", {"index": tf.zeros([4, 0], tf.int32), "value": tf.zeros([4, 0])}),
        ("dwta_codes", {"tables": 3}),
        ("dwta_codes", {"tables": 2**62}),
        ("dwta_codes", {"address_bits": 31}),
        ("dwta_codes", {"index": tf.fill([4, 2], D)}),
        ("dwta_codes", {"index": tf.fill([4, 2], -1)}),
        ("dwta_codes", {"index": tf.zeros([4, 3], tf.int32)}),
        ("dwta_codes", {"index": tf.zeros([4, 0], tf.int32)}),
        ("dwta_codes", {"index": tf.zeros([0, 2], tf.int32)}),
        ("dwta_codes", {"index": tf.zeros([124, 2], tf.int32)}),
        ("dwta_codes", {"x": tf.ones([ROWS, D - 1])}),
        ("min_hash_parameters", {"dim": 2**50}),
        ("min_hash_parameters", {"permutations": 2**62}),
        ("min_hash_codes", {"top": 0}),
        ("min_hash_codes", {"tables": 3}),
        ("min_hash_codes", {"tables": 2**62}),
        ("min_hash_codes", {"bins_per_table": 2**62, "tables": 4}),
        ("min_hash_codes", {"bins_per_permutation": 1}),
        ("min_hash_codes", {"bins_per_permutation": 0}),
        ("min_hash_codes", {"address_bits": 31}),
        ("min_hash_codes", {"place": tf.fill([2, 4], D)}),
        ("min_hash_codes", {"place": tf.fill([2, 4], -1)}),
        ("min_hash_codes", {"place": tf.zeros([2, 3], tf.int32)}),
        ("min_hash_codes", {"place": tf.zeros([1, 4], tf.int32)}),
        ("min_hash_codes", {"x": tf.ones([ROWS, D - 1])}),
        ("build_tables", {"buckets": 1}),
        ("build_tables", {"codes": CODES - 1}),
        ("build_tables", {"buckets": 2**62}),
        ("build_tables", {"buckets": 2**63 - 1}),
        ("arrange_buckets", {"policy": "newest"}),
        ("arrange_buckets", {"bucket_ptr": TABLES["bucket_ptr"][:1]}),
        ("arrange_buckets", {"bucket_ptr": TABLES["bucket_ptr"][:, :0]}),
        ("arrange_buckets", {"bucket_ptr": tf.constant([[0, 4, 7], [0, 1, 6]])}),
        ("arrange_buckets", {"bucket_ptr": tf.constant([[0, 4, 6], [0, 7, 6]])}),
        ("arrange_buckets", {"bucket_ptr": tf.constant([[0, -4, 6], [0, 1, 6]])}),
        ("arrange_buckets", {"bucket_ptr": tf.constant([[1, 4, 6], [0, 1, 6]])}),
        ("arrange_buckets", {"neuron_ids": TABLES["neuron_ids"][:1]}),
        ("arrange_buckets", {"neuron_ids": TABLES["neuron_ids"][:, :5]}),
        ("select_from_tables", {"min_collisions": -1}),
        ("select_from_tables", {"codes": CODES + 1}),
        ("select_from_tables", {"codes": CODES - 1}),
        ("select_from_tables", {"codes": CODES[:2]}),
        ("select_from_tables", {"codes": CODES[:, :1]}),
        ("select_from_tables", {"bucket_ptr": TABLES["bucket_ptr"][:1]}),
        ("select_from_tables", {"bucket_ptr": TABLES["bucket_ptr"][:, :0]}),
        ("select_from_tables", {"bucket_ptr": tf.constant([[0, 4, 7], [0, 1, 6]])}),
        ("select_from_tables", {"bucket_ptr": tf.constant([[0, 4, 6], [0, 7, 6]])}),
        ("select_from_tables", {"bucket_ptr": tf.constant([[0, -4, 6], [0, 1, 6]])}),
        ("select_from_tables", {"bucket_ptr": tf.constant([[1, 4, 6], [0, 1, 6]])}),
        ("select_from_tables", {"bucket_ptr": tf.constant([[0, 2**30, 2**31 - 1]] * 2)}),
        ("select_from_tables", {"neuron_ids": TABLES["neuron_ids"] + 1}),
        ("select_from_tables", {"neuron_ids": TABLES["neuron_ids"] - 1}),
        ("select_from_tables", {"neuron_ids": TABLES["neuron_ids"] + 10**9}),
        ("select_from_tables", {"neuron_ids": tf.zeros([2, 6], tf.int32)}),
        ("select_from_tables", {"neuron_ids": TABLES["neuron_ids"][:1]}),
        ("select_from_tables", {"neuron_ids": TABLES["neuron_ids"][:, :5]}),
        ("sample_neurons", {"units": 2**32}),
        ("sample_neurons", {"units": 2**55}),
        ("sample_neurons", {"units": 2, "fixed": int32(1, 2)}),
        ("log_importance_weights", {"units": 2**32}),
        ("log_importance_weights", {"units": 5}),
        ("log_importance_weights", {"drawn": tf.ones([3])}),
        ("sample_neurons", {"distribution": "normal"}),
        ("sample_neurons", {"count": -1}),
        ("csc_from_csr", {"units": 2**60}),
        ("csc_from_csr", {"units": 2**32}),
        ("canonical_labels", {"units": 2**33, "values": int64(5, -1, 2**32)}),
        ("csr_from_sparse", {"columns": 2**33, "indices": int64([0, 1], [2, 0], [2, 2**32])}),
        ("csr_from_sparse", {"dense_shape": int64(2**63 - 1, UNITS)}),
        ("csr_from_sparse", {"dense_shape": int64(2**62, UNITS)}),
        ("csr_from_sparse", {"dense_shape": int64(-1, UNITS)}),
        ("csr_from_sparse", {"dense_shape": int64(ROWS)}),
        ("csr_from_sparse", {"dense_shape": int64(ROWS, UNITS, 1)}),
        ("csr_from_sparse", {"indices": int64([0], [1], [2])}),
        ("csr_from_sparse", {"values": tf.ones([2])}),
    ],
    ids=lambda value: value if isinstance(value, str) else "-".join(value),
)
def test_hashing_and_active_sets(op, changes):
    assert_refused(op, **changes)


def test_a_neuron_many_times_in_one_bucket():
    # More often than a counter of collisions holds.
    units = 70_000
    for tables in (1, 300):
        assert_refused(
            "select_from_tables",
            codes=tf.zeros([ROWS, tables], tf.int32),
            bucket_ptr=tf.constant([[0, units]] * tables),
            neuron_ids=tf.fill([tables, units], 7),
            bucket_size=units,
        )


@pytest.mark.parametrize("tables", [65_534, 65_535])
def test_more_tables_than_a_counter_holds(tables):
    changes = {
        "codes": tf.zeros([ROWS, tables], tf.int32),
        "bucket_ptr": tf.constant([[0, UNITS]] * tables),
        "neuron_ids": tf.tile(tf.range(UNITS)[None], [tables, 1]),
    }
    if tables == 65_535:
        assert "at most 65534 tables" in assert_refused("select_from_tables", **changes)
    else:
        _, ids = call("select_from_tables", SOUND["select_from_tables"]() | changes)
        assert len(ids) == SELECT["hashed"] * ROWS


# Variables.
def uninitialized():
    return tf.raw_ops.VarHandleOp(dtype=tf.float32, shape=[UNITS, D], shared_name="never_assigned")


@functools.cache
def hash_table():
    return tf.lookup.experimental.MutableHashTable(tf.string, tf.int64, -1)


VARIABLES = [
    (op, name)
    for op, make in SOUND.items()
    for name, value in make().items()
    if isinstance(value, tf.Variable)
]


@pytest.mark.parametrize(("op", "name"), VARIABLES)
def test_wrong_variables(op, name):
    shapes = [(UNITS,), (UNITS, D, 1), (UNITS, D + 1), (UNITS - 2, D), (0, D)]
    if op == "csr_mat_mul":
        shapes.remove((UNITS, D + 1))  # a product of another width
    for shape in shapes:
        assert_refused(op, **{name: variable(*shape)})
    assert_refused(op, **{name: variable(UNITS, D, dtype=tf.float64)})
    assert_refused(op, **{name: variable(UNITS, D, dtype=tf.int32)})
    with pytest.raises((tf.errors.NotFoundError, tf.errors.FailedPreconditionError)):
        call(op, SOUND[op]() | {name: uninitialized()})
    with pytest.raises(tf.errors.InvalidArgumentError):
        call(op, SOUND[op]() | {name: hash_table().resource_handle})


BIASED = ("active_logits", "top_k", "full_crossentropy", "full_crossentropy_gradient")


@pytest.mark.parametrize("op", BIASED)
def test_wrong_biases(op):
    for bias in (
        [variable(UNITS + 1)],
        [variable(0)],
        [variable(UNITS, dtype=tf.float64)],
        [variable(UNITS), variable(UNITS)],
    ):
        assert_refused(op, bias=bias)
    both = variable(UNITS, D)
    assert_refused(op, kernel=both, bias=[both])


@pytest.mark.parametrize("op", ADAM_OPS)
@pytest.mark.parametrize("names", [("weight", "momentum"), ("momentum", "velocity")])
def test_one_variable_twice(op, names):
    both = variable(UNITS, D)
    message = assert_refused(op, **dict.fromkeys(names, both))
    assert "twice" in message


@pytest.mark.parametrize("op", ADAGRAD_OPS)
def test_bad_adagrad(op):
    both = variable(UNITS, D)
    assert "twice" in assert_refused(op, weight=both, accumulator=both)
    assert "one shape" in assert_refused(op, accumulator=variable(UNITS, D + 1))
    assert_refused(op, epsilon=-1.0)
    assert_refused(op, epsilon=float("nan"))


@pytest.mark.parametrize("op", ADAM_OPS)
@pytest.mark.parametrize(
    "changes",
    [
        {"step": int64(0)[0]},
        {"step": int64(-3)[0]},
        {"beta_1": 1.0},
        {"beta_1": -0.1},
        {"beta_2": 1.0},
        {"beta_2": 1.5},
        {"beta_2": float("nan")},
        {"epsilon": -1.0},
        {"step": int64(2**31)[0]},
        {"beta_1": 0.9, "beta_2": 0.8},
    ],
    ids=str,
)
def test_adam_settings_that_make_nan(op, changes):
    assert_refused(op, **changes)


@pytest.mark.parametrize("op", ADAM_OPS)
def test_last_steps_that_are_not_one_a_row(op):
    assert "last_step" in assert_refused(op, last_step=variable(UNITS + 1, dtype=tf.int32))
    assert "int32" in assert_refused(op, last_step=variable(UNITS))
    assert "float" in assert_refused(op, momentum=variable(UNITS, D, dtype=tf.int32))


# What TensorFlow is told about shapes when it builds a graph.
def trace(op, *, known):
    """The op's static output shapes, with the sizes of its inputs known or not."""
    arguments = SOUND[op]()
    tensors = {k: v for k, v in arguments.items() if isinstance(v, tf.Tensor)}
    rest = {k: v for k, v in arguments.items() if k not in tensors}
    specs = {
        k: tf.TensorSpec(v.shape if known else [None] * v.shape.rank, v.dtype)
        for k, v in tensors.items()
    }
    shapes = []

    @tf.function
    def graph(**given):
        for output in tf.nest.flatten(call(op, given | rest)):
            shapes.append(output.shape if isinstance(output, tf.Tensor) else None)

    graph.get_concrete_function(**specs)
    return shapes


@pytest.mark.parametrize("op", [op for op in SOUND if op not in UPDATING_OPS])
def test_shapes_in_graphs(op):
    results = [result.shape for result in tf.nest.flatten(call(op, SOUND[op]()))]
    for known in (True, False):
        shapes = trace(op, known=known)
        assert len(shapes) == len(results)
        for shape, result in zip(shapes, results, strict=True):
            assert shape.rank == result.rank
            assert shape.is_compatible_with(result)


@pytest.mark.parametrize("op", UPDATING_OPS)
def test_updates_in_graphs(op):
    for known in (True, False):
        assert trace(op, known=known) == [None]


@pytest.mark.parametrize(("op", "name"), RANKS)
def test_wrong_ranks_in_graphs(op, name):
    arguments = SOUND[op]()
    changed = arguments | {name: arguments[name][None]}
    with pytest.raises((ValueError, tf.errors.InvalidArgumentError)):
        tf.function(lambda: call(op, changed))()


# SparseKernel.
@pytest.mark.parametrize("op", SPARSE_LINEAR_OPS)
@pytest.mark.parametrize(
    "changes",
    [
        {"weight_splits": int64(0, -1, 3, 3, 4, 6, 7)},
        {"weight_splits": int64(0, 2**40, 3, 3, 4, 6, 7)},
        {"weight_splits": int64(0, 2, 8, 3, 4, 6, 7)},
        {"weight_splits": int64(0, 2, 3, 3, 4, 6, 8)},
        {"weight_splits": int64(0, 2, 3, 3, 4, 6)},
        {"weight_splits": int64()},
        {"weight_neurons": int32(1, 6, 0, 5, 2, 3, 5)},
        {"weight_neurons": int32(1, -1, 0, 5, 2, 3, 5)},
        {"weight_neurons": int32(1, 4, 0, 5, 2, 3)},
        {"weights": variable(6)},
        {"bias": [variable(UNITS + 1)]},
        {"values": tf.ones([NNZ + 1])},
    ],
    ids=str,
)
def test_weights_of_no_neuron(op, changes):
    if op == "sparse_linear_logits":  # takes values instead of variables
        changes = tf.nest.map_structure(tf.convert_to_tensor, changes)
    assert_refused(op, **changes)


@pytest.mark.parametrize(
    ("op", "changes"),
    [
        ("cooccurrences", {"features": 0}),
        ("cooccurrences", {"max_weights_per_feature": 0}),
        ("cooccurrences", {"smoothing": -1.0}),
        ("cooccurrences", {"smoothing": float("nan")}),
        ("cooccurrences", {"label_splits": int64(0, 1, 3)}),
        ("sparse_linear_select", {"count": -1}),
        ("sparse_linear_select", {"label_splits": int64(0, 1, 3)}),
        ("sparse_linear_losses", {"label_splits": int64(0, 1, 3)}),
        ("sparse_linear_top_k", {"k": UNITS + 1}),
        ("sparse_linear_top_k", {"k": 0}),
        ("sparse_linear_gradient", {"match_entry": int32(0, 1, 2, 3, 5)}),
        ("sparse_linear_gradient", {"match_place": int32(0, 1, 2, -1, 4)}),
        ("sparse_linear_gradient", {"match_place": int32(0, 1, 2, 3)}),
        ("sparse_linear_gradient", {"upstream": tf.ones([NNZ - 1])}),
        ("binary_crossentropy", {"own_adjustment": tf.ones([NNZ - 1])}),
    ],
    ids=str,
)
def test_sizes_of_sparse_kernels(op, changes):
    assert_refused(op, **changes)
