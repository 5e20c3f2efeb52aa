"""`dslide tune`: what a search takes, and that its result can be used."""

import json
import shlex

import numpy as np
import pytest
from cli_helpers import dslide

from tf_dslide.cli.inputs import Source
from tf_dslide.cli.search import Factor, Outcome, gain, search
from tf_dslide.cli.tuning import Trial, usual
from tf_dslide.data import Dataset


def outcome(hits: np.ndarray) -> Outcome:
    return Outcome(hits, 10, 2.0)


def hits(share: float, rows: int = 1000) -> np.ndarray:
    """The first rows are hit."""
    return np.arange(rows) < share * rows


def varied(name, *values):
    """A factor of settings that are tuples of texts."""
    return lambda best: Factor(name, [(value, (*best, value)) for value in values])


def test_gain_is_that_of_pairs():
    rng = np.random.default_rng(0)
    a, b = rng.random((2, 400)) < 0.5
    mean, error = gain(a, b)
    assert mean == pytest.approx(a.mean() - b.mean())
    better, worse = (a & ~b).sum(), (b & ~a).sum()
    # McNemar's: only rows that differ count.
    variance = (better + worse) / 400 - ((better - worse) / 400) ** 2
    assert error == pytest.approx(np.sqrt(variance / 400))
    assert gain(a, a) == (0.0, 0.0)


def test_search_takes_the_best_of_those_that_are_better_for_certain():
    found = {(): 0.3, ("a",): 0.32, ("b",): 0.35, ("b", "c"): 0.3505, ("b", "d"): 0.2}
    tried = []

    def trial(settings):
        tried.append(settings)
        return outcome(hits(found[settings]))

    choices = list(
        search((), [varied("x", "a", "b"), lambda best: None, varied("y", "c", "d")], trial, 60)
    )
    assert tried == list(found)
    assert [(c.factor, c.value, c.taken) for c in choices] == [
        ("", "", True),
        ("x", "a", False),
        ("x", "b", True),
        ("y", "c", False),
        ("y", "d", False),
    ]
    # Not half a row of a thousand: within the error, so the settings stay as they are.
    assert choices[3].gain[0] > 0
    assert choices[2].gain[0] == pytest.approx(0.05)


def test_search_keeps_the_first_of_equals():
    trial = {(): 0.3, ("a",): 0.4, ("b",): 0.4}
    choices = list(
        search((), [varied("x", "a", "b")], lambda settings: outcome(hits(trial[settings])), 60)
    )
    assert [c.value for c in choices if c.taken] == ["", "a"]


def test_search_begins_no_trial_after_its_time():
    now = 0.0

    def trial(settings):
        nonlocal now
        now += 10
        return outcome(hits(0.1 * len(settings)))

    factors = [varied("x", "a", "b"), varied("y", "c")]
    choices = list(search((), factors, trial, 15, clock=lambda: now))
    assert [c.value for c in choices if c.outcome is None] == ["b", "c"]
    assert [c.value for c in choices if c.taken] == ["", "a"]


def test_usual_settings_are_those_of_train_without_options():
    settings = usual(50_694)
    assert (settings.name, settings.hash, settings.tables) == ("lsh", "simhash", 50)
    assert (settings.bits, settings.active, settings.rebuild_every) == (10, 3000, 25)


def tune(data, *options):
    return dslide("tune", data, "--hidden", 16, "--batch-size", 32, *options)


@pytest.mark.slow
def test_command_that_is_printed_trains(files, tmp_path):
    result = tune(files.train, "--seconds", 3, "--learning-rate", 0.02, "--json").succeeded()
    report = json.loads(result.out)
    start, *others = report["choices"]
    assert start["settings"]["name"] == "lsh"
    assert 0 <= start["precision_at_1"] <= 1
    assert start["seconds"] > 0
    assert {choice["factor"] for choice in others} >= {"sampler", "active"}
    tried = [choice for choice in others if choice["precision_at_1"] is not None]
    for choice in tried:
        assert choice["settings"] != start["settings"]
    assert "540 samples to train on, 60 to score on" in result.err
    words = report["command"].split()
    assert words[:2] == ["dslide", "train"]
    out = tmp_path / "model.keras"
    dslide(*words[1:], "--epochs", 1, "--out", out).succeeded()
    assert out.exists()


def test_table_has_a_line_for_each_choice(files):
    out = tune(files.train, "--seconds", 0.1).succeeded().out.splitlines()
    assert out[1].split() == ["P@1", "gain", "samples/s", "epochs"]
    assert out[2].split()[:2] == ["start", "lsh"]
    assert all(line.endswith("no time left") for line in out[3:-1])
    assert out[-1].startswith(f"dslide train {files.train} --hidden 16 --batch-size 32 ")


def test_command_names_all_that_the_data_need(tmp_path):
    path = tmp_path / "two words.txt"
    source = Source(str(write(path)), write(tmp_path / "labels.txt"), 5, 4, tmp_path / "cache")
    told = shlex.split(" ".join(source.words()))
    options = {"--labels": tmp_path / "labels.txt", "--num-features": 5, "--num-labels": 4}
    expected = [path, *(word for pair in options.items() for word in pair)]
    assert told == [str(word) for word in (*expected, "--cache", tmp_path / "cache")]
    assert Source("synth:small").words() == ["synth:small"]


def write(path):
    path.write_text("0 1:1\n")
    return path


@pytest.mark.slow
def test_trial_counts_the_rows_whose_best_label_is_true(files):
    """A network that learns to say label 7 of everything hits the rows that have it."""
    rows = len(files.train_data)
    labels = np.zeros((rows, 60))
    labels[:, 7] = 1
    always = Dataset(files.train_data.features, labels)
    mixed = labels.copy()
    mixed[::2] = np.roll(mixed[::2], 1, axis=1)
    held = Dataset(files.train_data.features, mixed)
    from tf_dslide.cli.settings import NetworkSettings

    network = NetworkSettings((8,), 0.0, usual(60), 0.05, "constant", 0.0, 0)
    found = Trial(network, 32, always, held, 0.3)(usual(60))
    np.testing.assert_array_equal(found.hits, np.arange(rows) % 2 == 1)
    assert found.samples % 32 == 0
    assert found.seconds >= 0.3


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (("--seconds", 0), "0.0 is not a positive number"),
        (("--learning-rate", -1), "is not a positive number"),
        (("--dropout", 1), "1.0 is not a share"),
        (("--held-out", 0), "greater than or equal to 1"),
    ],
)
def test_bad_options(files, options, message):
    assert message in tune(files.train, *options).failed(2)


def test_too_few_samples(tmp_path):
    path = tmp_path / "one.txt"
    path.write_text("1 3 3\n0 1:1\n")
    assert "too few to hold out" in tune(path, "--seconds", 1).failed()


def test_training_that_diverges(files):
    assert "lower --learning-rate" in tune(files.train, "--learning-rate", 1e30).failed()
