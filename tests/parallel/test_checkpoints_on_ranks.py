"""Checkpoints of jobs under mpirun."""

import keras
import numpy as np
import pytest
import tensorflow as tf

from tests.parallel.checkpoint_cases import FEATURES, build
from tests.parallel.mpi import PROGRAMS, run_ranks
from tf_dslide.checkpoints import export, latest, load_checkpoint

pytestmark = pytest.mark.mpi


def test_a_training_goes_on_exactly_and_on_other_ranks_and_in_one_process(tmp_path):
    outcome = run_ranks(PROGRAMS / "checkpoint_resume.py", 2, 120, [tmp_path, "through"])
    assert outcome.code == 0, outcome
    assert "resumed exactly on 2 ranks" in outcome.stdout
    outcome = run_ranks(PROGRAMS / "checkpoint_resume.py", 3, 120, [tmp_path, "other"])
    assert outcome.code == 0, outcome
    assert "went on with 3 ranks" in outcome.stdout
    export(latest(tmp_path), tmp_path / "model.keras")
    model = keras.models.load_model(tmp_path / "model.keras")
    scores = model(tf.sparse.from_dense(np.eye(FEATURES, dtype="float32")))
    np.testing.assert_allclose(scores, np.load(tmp_path / "scores.npy"), atol=1e-4)


@pytest.mark.parametrize(
    ("fault", "message"),
    [
        ("disk", "epoch-0002 was not saved: rank 1 of 2: [Errno 27] File too large"),
        ("kill", "rank 1 of 2"),
    ],
)
def test_a_fault_ends_the_job_with_one_message(fault, message, tmp_path):
    outcome = run_ranks(PROGRAMS / "checkpoint_faults.py", 2, 60, [tmp_path, fault])
    assert outcome.code not in (0, None), outcome
    truncated = "rank 1 of 2: the file rank-00001-of-00002.safetensors is truncated"
    assert outcome.stdout.count(truncated) == (2 if fault == "disk" else 0), outcome
    assert "not reached" not in outcome.stdout, outcome
    assert outcome.stderr.count("failed: ") + outcome.stderr.count("was killed") == 1, outcome
    assert message in outcome.stderr, outcome
    assert latest(tmp_path) == tmp_path / "epoch-0001"
    assert load_checkpoint(tmp_path / "epoch-0001", build(units=2000)) == {"epoch": 1}
