"""Who holds what."""

from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tf_dslide.sharding import (
    LayerPlan,
    balanced_ranges,
    equal_ranges,
    plan_table,
)


def assert_cover(ranges, units):
    assert ranges[0][0] == 0
    assert ranges[-1][1] == units
    assert all(a[1] == b[0] for a, b in pairwise(ranges))
    assert all(begin <= end for begin, end in ranges)


@given(st.integers(0, 60), st.integers(1, 9))
def test_equal_ranges(units, ranks):
    ranges = equal_ranges(units, ranks)
    assert_cover(ranges, units)
    sizes = [end - begin for begin, end in ranges]
    assert len(sizes) == ranks
    assert max(sizes) - min(sizes) <= 1


@given(
    st.lists(st.integers(0, 50), min_size=1, max_size=40),
    st.integers(1, 6),
)
def test_balanced_ranges(unit_load, ranks):
    ranges = balanced_ranges(unit_load, ranks)
    assert len(ranges) == ranks
    assert_cover(ranges, len(unit_load))
    # Each border is as near to its share as a border between two units can be.
    total = np.concatenate([[0], np.cumsum(unit_load)])
    for rank, (_, end) in enumerate(ranges[:-1]):
        wanted = total[-1] * (rank + 1) / ranks
        assert abs(total[end] - wanted) == pytest.approx(np.abs(total - wanted).min())


@pytest.mark.parametrize("unit_load", [[[1, 2]], [1, -1], [1, np.nan], [np.inf]])
def test_activity_that_is_none(unit_load):
    with pytest.raises(ValueError, match="unit_load"):
        balanced_ranges(unit_load, 2)


def test_plan_table():
    plans = [LayerPlan("hidden", [(0, 3), (3, 5)], 11), LayerPlan("out", [(0, 50), (50, 100)], 6)]
    lines = plan_table(plans).splitlines()
    assert len(lines) == 3
    assert lines[1].split() == ["0", "0", "to", "3", "0", "to", "50", "333", "0.0"]
    assert "50 to 100" in lines[2]
