"""Matrices as bytes and back, and what is not a message."""

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tf_dslide.parallel import messages

shapes = st.tuples(st.integers(0, 9), st.integers(0, 11))
wires = st.sampled_from(["float32", "bfloat16"])


def matrix(shape, seed, zeros=0.5):
    rng = np.random.default_rng(seed)
    values = rng.normal(size=shape).astype(np.float32) * (rng.random(shape) >= zeros)
    values[rng.random(shape) < 0.1] = -0.0
    return values


def rounded(values, wire):
    return values if wire == "float32" else values.astype(ml_dtypes.bfloat16).astype(np.float32)


def received(data):
    # As from a network: at no particular place in memory.
    return messages.take_apart(np.frombuffer(b"x" + data, np.uint8)[1:])


@given(shapes, st.integers(0, 99), wires, st.sampled_from([0.0, 0.5, 1.0]))
def test_there_and_back(shape, seed, wire, zeros):
    values = matrix(shape, seed, zeros)
    for pack in (messages.pack_matrix, messages.pack_activations):
        message = received(pack(values, wire, 12345))
        assert (message.rows, message.columns, message.fingerprint) == (*shape, 12345)
        np.testing.assert_array_equal(messages.unpack(message), rounded(values, wire))


@given(shapes, st.integers(0, 99), wires)
def test_sums_at_the_places_both_know(shape, seed, wire):
    values, activations, total = (matrix(shape, seed + i) for i in range(3))
    for mask in (None, activations != 0):
        message = received(messages.pack_at(values, mask, wire))
        got = total.copy()
        messages.add_at(message, mask, got)
        added = rounded(values, wire) * (1 if mask is None else mask)
        np.testing.assert_array_equal(got, total + added)


def test_zeros_do_not_travel():
    values = np.zeros((100, 64), np.float32)
    values[::2] = 1.5
    whole, sparse, half = (
        len(messages.pack_matrix(values)),
        len(messages.pack_activations(values)),
        len(messages.pack_activations(values, "bfloat16")),
    )
    assert whole == messages.HEADER.size + 4 * 6400
    assert sparse == messages.HEADER.size + 800 + 4 * 3200
    assert half == messages.HEADER.size + 800 + 2 * 3200


@pytest.mark.parametrize("data", [b"", b"abc", bytes(24), bytes(100)])
def test_bytes_that_are_no_message(data):
    with pytest.raises(ValueError, match="message"):
        messages.take_apart(np.frombuffer(data, np.uint8))


def test_messages_cut_short_or_too_long():
    values = matrix((5, 6), 0)
    mask = values != 0
    for data in (messages.pack_matrix(values), messages.pack_activations(values)):
        for wrong in (data[:-4], data + bytes(4)):
            with pytest.raises(ValueError, match="must have"):
                messages.unpack(received(wrong))
    for wrong in (messages.pack_at(values, mask)[:-4], messages.pack_at(values, None)):
        with pytest.raises(ValueError, match="must have"):
            messages.add_at(received(wrong), mask, np.zeros_like(values))
