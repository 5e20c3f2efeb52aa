"""When a comparison's trainings evaluate and stop."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from baselines.plan import Plan


def train(plan: Plan, step_seconds: float, most: int = 10_000) -> tuple[int, list[int]]:
    """Steps of a training whose steps all take as long, and after which it was evaluated."""
    steps, evaluated = 0, []
    while stretch := plan.next(steps, steps * step_seconds, step_seconds if steps > 2 else None):
        assert stretch > 0
        steps += stretch
        assert steps < most
        if plan.evaluates(steps, steps * step_seconds):
            evaluated.append(steps)
    return steps, evaluated


@given(st.integers(1, 50), st.integers(1, 8), st.floats(0.001, 10))
def test_epochs_end_with_an_evaluation_each(per_epoch, epochs, step_seconds):
    steps, evaluated = train(Plan(per_epoch, epochs, None), step_seconds)
    assert steps == per_epoch * epochs
    assert evaluated == [per_epoch * (i + 1) for i in range(epochs)]


@given(st.integers(1, 500), st.floats(0.5, 50), st.floats(0.01, 20), st.integers(1, 7))
def test_seconds_are_used_up_and_not_much_exceeded(per_epoch, seconds, step_seconds, evaluations):
    plan = Plan(per_epoch, None, seconds, evaluations)
    steps, evaluated = train(plan, step_seconds)
    assert steps >= plan.fewest
    assert steps * step_seconds >= seconds
    # One step more than fits, or the fewest.
    assert steps <= max(plan.fewest, seconds / step_seconds + 1)
    assert evaluated[-1] == steps
    assert len(evaluated) == len(set(evaluated))
    assert len(evaluated) <= evaluations + 1


def test_quick_steps_are_evaluated_in_equal_distances():
    _, evaluated = train(Plan(1000, None, 10.0, 5), 0.01)
    assert evaluated == pytest.approx([200, 400, 600, 800, 1000], abs=2)


def test_the_first_limit_ends_the_training():
    assert train(Plan(10, 2, 1000.0), 1.0) == (20, [10, 20])
    steps, evaluated = train(Plan(10, 100, 25.0), 1.0)
    assert steps == 25
    assert evaluated == [10, 20, 25]


def test_some_limit_is_needed():
    with pytest.raises(ValueError, match="epochs or of seconds"):
        Plan(10, None, None)
