"""Precision, data and clocks of a comparison."""

import numpy as np
import pytest
from scipy import sparse

from baselines import datasets
from baselines.methods import Kind
from baselines.ranks import Ranks, bytes_on_interface, without_launcher
from baselines.training import Clock, Exchanged, Hits, Rate, StepMethod, worth_of
from tf_dslide.data import Dataset, write_xmc

LABELS = [[0, 4], [], [1, 2, 3, 4]]


def small() -> Dataset:
    labels = np.zeros((3, 6))
    for row, ids in enumerate(LABELS):
        labels[row, ids] = 1
    return Dataset(sparse.csr_matrix(np.eye(3, 7)), sparse.csr_matrix(labels), name="small")


def test_hits_against_sets(rng):
    best = np.array([[4, 1, 0, 5, -1], [0, 1, 2, 3, 4], [5, -1, -1, -1, -1]])
    expected = [
        sum(len(set(best[row, :k]) & set(LABELS[row])) for row in range(3)) for k in (1, 3, 5)
    ]
    worth = np.array([1.0, 2.0, 3.0, 4.0, 5.0, 6.0])
    hits = Hits.of(small(), best, worth)
    assert hits.counts.tolist() == expected == [1, 2, 2]
    # Row 0 has all its labels, of worth 1 and 5; row 2 none of those of worth 2 to 5.
    wanted = {"p1": 1 / 3, "p3": 2 / 9, "p5": 2 / 15, "psp5": 6 / (6 + 14)}
    assert hits.precisions(3) == pytest.approx(wanted)
    parts = [small().take([row]) for row in range(3)]
    summed = sum((Hits.of(part, best[[i]], worth) for i, part in enumerate(parts)), Hits())
    assert summed.precisions(3) == pytest.approx(wanted)


def test_rare_labels_are_worth_more():
    worth = worth_of(small().take([0, 0, 0, 2]))
    assert worth[0] < worth[1] < worth[5]


def test_data_by_path(tmp_path):
    for name in ("train", "test"):
        write_xmc(tmp_path / f"{name}.txt", small())
    split = datasets.load(str(tmp_path), 0, None, 2)
    assert (split.train.num_samples, split.test.num_samples) == (3, 2)
    assert split.name == tmp_path.name
    np.testing.assert_array_equal(split.test.labels.toarray(), small().labels.toarray()[:2])


def test_data_by_preset_share_no_sample():
    split = datasets.load("small", 1, 300, 200)
    assert (split.train.num_samples, split.test.num_samples) == (300, 200)
    assert split.train.num_labels == split.test.num_labels == 3000
    assert (split.train.features[:200] != split.test.features).nnz > 0


def test_places():
    split = datasets.load("places:20", 0, 60, 40)
    assert (split.train.num_samples, split.test.num_samples) == (60, 40)
    assert (split.train.num_labels, split.name) == (20, "places-20")
    with pytest.raises(ValueError, match="no data 'places:0'"):
        datasets.require("places:0")


def test_skip_gram_of_a_file(tmp_path):
    path = tmp_path / "text.txt"
    path.write_text("one two three four five six seven eight nine ten " * 4)
    split = datasets.load(f"skipgram:{path}", 0, None, 100)
    assert (split.train.num_samples, split.test.num_samples) == (36, 4)
    assert split.train.num_labels == 10


@pytest.mark.parametrize(
    ("where", "message"),
    [("nowhere", "neither a preset"), ("skipgram:nowhere", "no such file"), (".", "train.txt")],
)
def test_no_data(where, message, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ValueError, match=message):
        datasets.load(where, 0, None, 10)


def test_files_that_do_not_belong_together(tmp_path):
    write_xmc(tmp_path / "train.txt", small())
    other = Dataset(small().features[:, :5], small().labels)
    write_xmc(tmp_path / "test.txt", other)
    with pytest.raises(ValueError, match="must agree"):
        datasets.load(str(tmp_path), 0, None, 10)


def test_the_first_two_steps_are_not_usual():
    class Counting(StepMethod):
        """Sends as many bytes in a step as the number of the step, from 1 on."""

        steps = 0

        def step(self):
            self.steps += 1
            return self.steps

        def exchanged(self):
            return Exchanged(self.steps * (self.steps + 1) // 2, 2 * self.steps, 0.0, "computed")

        def best(self, features, k):
            raise NotImplementedError

    clock, method = Clock(None), Counting()
    assert clock.rate is None
    assert [clock.timed(method) for _ in range(2)] == [1, 2]
    assert clock.rate is None
    assert clock.rank_figures(0)["bytes_sent_per_step"] == 1.5
    assert [clock.timed(method) for _ in range(3)] == [3, 4, 5]
    assert clock.usual == clock.step_seconds[2:]
    figures = clock.rank_figures(3)
    assert figures["bytes_sent_per_step"] == 4
    assert figures["messages_per_step"] == 2
    assert figures["seconds_waiting"] == 0
    assert figures["seconds_computing"] == pytest.approx(np.mean(clock.usual))
    assert figures["bytes_source"] == "computed"


def test_a_rate_falls_to_zero():
    rate = Rate(0.5, 4)
    assert [rate(step) for step in range(5)] == [0.5, 0.375, 0.25, 0.125, 0.0]
    assert Rate(0.5)(1000) == 0.5


def test_one_process_agrees_with_itself():
    assert Ranks().agreed(7) == 7
    assert Ranks().gathered("a") == ["a"]


def test_bytes_of_an_interface():
    assert bytes_on_interface(None) is None
    assert bytes_on_interface("no-such-interface") is None
    assert bytes_on_interface("lo") >= 0


def test_a_job_does_not_take_itself_for_a_rank():
    given = {"PMI_RANK": "1", "PMI_FD": "7", "MPI_LOCALRANKID": "1", "PATH": "/bin"}
    assert without_launcher(given) == {"PATH": "/bin"}


def test_methods_say_what_they_miss():
    assert Kind(("y", "Z"), False, ("numpy", "no_such_package")).missing() == ["no_such_package"]
