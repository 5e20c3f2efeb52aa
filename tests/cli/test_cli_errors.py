"""Each expected problem is one line on standard error, and costs nothing that was there before."""

import json
import zipfile

import keras
import pytest
from cli_helpers import NUM_LABELS, SMALL, dslide

from tf_dslide import DSlideDense, SparseDense
from tf_dslide.cli import callbacks
from tf_dslide.cli.errors import describe

COMMANDS_ON_DATA = ("train", "evaluate", "predict")


def on_data(command, trained, data, *options):
    model = () if command == "train" else (trained.path,)
    return dslide(command, *model, data, *options)


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (("--epochs", 0), "'--epochs'"),
        (("--epochs", "many"), "'--epochs'"),
        (("--hidden", -1), "'--hidden'"),
        (("--batch-size", -1), "'--batch-size'"),
        (("--bits", 25), "'--bits'"),
        (("--seed", -1), "'--seed'"),
        (("--threads", 0), "'--threads'"),
        (("--sampler", "best"), "'best' is not one of 'lsh', 'uniform', "),
        (("--schedule", "up"), "'up' is not one of"),
        (("--dropout", 1), "1.0 is not a share from 0 to below 1"),
        (("--dropout", "nan"), "nan is not a share"),
        (("--learning-rate", 0), "0.0 is not a positive number"),
        (("--learning-rate", "inf"), "inf is not a positive number"),
        (("--weight-decay", -1), "-1.0 is not 0 or more"),
        (("--validation-split", 1), "1.0 is not a share"),
        (("--sampler", "all", "--active", 9), "belongs to --sampler lsh"),
        (("--num-sampled", 9), "belongs to --sampler uniform or log_uniform"),
        (("--test-labels", "y.txt"), "it needs --test DATA"),
        (("--test", "x.txt", "--validation-split", 0.1), "nothing is held out with --test"),
        (("--out", "model.h5"), "model.h5 does not end in .keras"),
        (("--no-such-option",), "No such option: --no-such-option"),
    ],
)
def test_option_values(files, tmp_path, monkeypatch, arguments, expected):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "x.txt").write_bytes(files.train.read_bytes())
    message = dslide("train", files.train, *arguments).failed(2)
    assert expected in message
    assert message.startswith("Error: ")
    assert message.endswith("(see `dslide train --help`)")
    assert [path.name for path in tmp_path.iterdir()] == ["x.txt"]


@pytest.mark.parametrize("command", COMMANDS_ON_DATA)
def test_missing_file(trained, command):
    assert on_data(command, trained, "nowhere.txt").failed() == "Error: nowhere.txt: no such file"


@pytest.mark.parametrize("command", COMMANDS_ON_DATA)
def test_folder_for_a_file(trained, tmp_path, command):
    assert f"{tmp_path} is a folder" in on_data(command, trained, tmp_path).failed()


@pytest.mark.parametrize(
    ("text", "line", "words"),
    [
        ("2 200 60\n0 1:1\n0 1:x\n", 3, ["'1:x'", "feature:value"]),
        ("1 200 60\n60 1:1\n", 2, ["60", "0 <= index < 60"]),
        ("1 200 60\n0 200:1\n", 2, ["feature 200", "0 <= index < 200"]),
        ("1 200 60\n0 1:nan\n", 2, ["nan", "finite"]),
        ("3 200 60\n0 1:1\n", 2, ["after 1 rows", "3 rows"]),
        ("0 1:1\n", 1, ["num_features"]),
        ("", 1, ["empty file"]),
    ],
)
def test_malformed_data(trained, tmp_path, text, line, words):
    path = tmp_path / "bad.txt"
    path.write_text(text)
    for command in COMMANDS_ON_DATA:
        message = on_data(command, trained, path).failed()
        assert f"{path}, line {line}: found" in message
        assert all(word in message for word in words)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("synth:small:0", "asks for '0' samples"),
        ("synth:small:x", "asks for 'x' samples"),
        ("synth:nothing", "no preset 'nothing'"),
    ],
)
def test_synthetic_names(trained, text, expected):
    for command in COMMANDS_ON_DATA:
        assert expected in on_data(command, trained, text).failed()


def test_cache_that_cannot_be(files, tmp_path):
    out = ("--out", tmp_path / "model.keras")
    message = dslide("train", files.train, "--cache", files.names, *out).failed()
    assert message == f"Error: {files.names} is a file; expected a folder for --cache"
    message = dslide("train", "synth:small", "--cache", tmp_path, *out).failed()
    assert "synth:small is synthetic" in message
    assert "--cache" in message
    assert list(tmp_path.iterdir()) == []


def test_header_that_disagrees_with_the_sizes_given(files, trained):
    message = dslide("evaluate", trained.path, files.test, "--num-features", 9).failed()
    assert f"{files.test}, line 1" in message
    assert "num_features 200" in message


def test_data_of_another_shape(files, trained, tmp_path):
    features, labels = tmp_path / "features.txt", tmp_path / "labels.txt"
    features.write_text("1 7 60\n0 1:1\n")
    labels.write_text("1 200 7\n0 1:1\n")
    for command in ("evaluate", "predict"):
        message = dslide(command, trained.path, features).failed()
        assert f"{features} has 7 features but {trained.path} has 200" in message
    message = dslide("evaluate", trained.path, labels).failed()
    assert f"{labels} has 7 labels but {trained.path} has 60" in message
    message = dslide("evaluate", trained.path, files.test, "--train", labels).failed()
    assert f"{labels} has 7 labels but {trained.path} has 60" in message
    message = dslide("train", files.train, "--test", features).failed()
    assert f"{features} has 7 features but {files.train} has 200" in message


def test_data_without_anything_to_learn(trained, tmp_path):
    path = tmp_path / "empty.txt"
    path.write_text("0 200 60\n")
    for command in COMMANDS_ON_DATA:
        assert "has no samples" in on_data(command, trained, path).failed()
    path.write_text("1 0 60\n0\n")
    assert "has no features" in dslide("evaluate", trained.path, path).failed()
    path.write_text("1 200 0\n 1:1\n")
    assert "has no labels" in dslide("train", path, "--out", tmp_path / "m.keras").failed()
    path.write_text("1 200 60\n0 1:1\n")
    assert "too few to hold out" in dslide("train", path, "--out", tmp_path / "m.keras").failed()


def test_number_of_label_names(files, trained, tmp_path):
    names = tmp_path / "names.txt"
    names.write_text("one\ntwo\n")
    out = ("--out", tmp_path / "model.keras")
    for message in (
        dslide("train", files.train, "--label-names", names, *out).failed(),
        dslide("predict", trained.path, files.test, "--label-names", names).failed(),
    ):
        assert f"{names} has 2 names but" in message
        assert "60 labels" in message


def test_names_of_an_earlier_model(files, tmp_path):
    (tmp_path / "model.labels.txt").write_text("earlier\n")
    message = dslide("train", files.train, "--out", tmp_path / "model.keras").failed()
    assert "names the labels of an earlier model" in message


@pytest.mark.parametrize("option", ["--out", "--log"])
def test_output_is_checked_before_training(files, tmp_path, monkeypatch, option):
    def trained_anyway(*_, **__):
        raise AssertionError("it should not have come to training")

    monkeypatch.setattr(callbacks.TrainingProgress, "on_train_begin", trained_anyway)
    folder = tmp_path / "folder.keras"
    folder.mkdir()
    for path, reason in (
        (tmp_path / "nowhere" / "m.keras", "there is no folder"),
        (folder, "is not a file"),
    ):
        others = () if option == "--out" else ("--out", tmp_path / "m.keras")
        message = dslide("train", files.train, option, path, *others).failed()
        assert f"{path} cannot be written" in message
        assert reason in message


def test_folder_that_nothing_can_be_written_to(files, trained, monkeypatch):
    def refuse(**_):
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr("tempfile.TemporaryFile", refuse)
    for arguments in (
        ("train", files.train),
        ("predict", trained.path, files.test),
        ("synth", "small"),
    ):
        out = files.folder / "m.keras"
        option = () if arguments[0] == "synth" else ("--out",)
        message = dslide(*arguments, *option, out).failed()
        assert message == f"Error: {out} cannot be written: {files.folder}: Permission denied"


def test_failed_save_keeps_the_earlier_model(files, tmp_path, monkeypatch):
    def disk_full(model, path, **_):
        path.write_bytes(b"half a model")
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(keras.Model, "save", disk_full)
    monkeypatch.setattr(keras.Sequential, "save", disk_full)
    path = tmp_path / "model.keras"
    path.write_text("earlier")
    options = ("--epochs", 1, "--validation-split", 0, "--out", path)
    message = dslide("train", files.train, *SMALL, *options).failed()
    assert "No space left on device" in message
    assert path.read_text() == "earlier"
    assert [file.name for file in tmp_path.iterdir()] == ["model.keras"]


@pytest.mark.parametrize(
    "options",
    [
        ("uniform",),
        *(pytest.param(o, marks=pytest.mark.slow) for o in (("lsh",), ("lsh", "--hash", "dwta"))),
    ],
)
def test_divergence_saves_nothing(files, tmp_path, options):
    path = tmp_path / "model.keras"
    path.write_text("earlier")
    large = ("--hidden", 8, "--learning-rate", 1e30, "--epochs", 3, "--batch-size", 64)
    message = dslide("train", files.train, "--sampler", *options, *large, "--out", path).failed()
    assert "training diverged: " in message
    assert message.endswith("; lower --learning-rate")
    assert path.read_text() == "earlier"


def test_divergence_found_by_an_op(files, tmp_path, monkeypatch):
    """As above, where the loss still looks well when a hash table is rebuilt."""
    monkeypatch.setattr(callbacks.TrainingProgress, "on_train_batch_end", lambda *_, **__: None)
    large = ("--hidden", 8, "--learning-rate", 1e30, "--epochs", 3, "--batch-size", 64)
    message = dslide("train", files.train, *large, "--out", tmp_path / "model.keras").failed()
    assert "training diverged: " in message
    assert "must be finite" in message
    assert message.endswith("; lower --learning-rate")


def altered(trained, path, change):
    """A copy of the model whose configuration is another."""
    with zipfile.ZipFile(trained.path) as source, zipfile.ZipFile(path, "w") as target:
        for name in source.namelist():
            content = source.read(name)
            if name == "config.json":
                content = json.dumps(change(json.loads(content))).encode()
            target.writestr(name, content)
    return path


def test_model_of_another_version(files, trained, tmp_path):
    def from_the_future(config):
        text = json.dumps(config)
        assert '"format": 2' in text
        return json.loads(text.replace('"format": 2', '"format": 99'))

    path = altered(trained, tmp_path / "future.keras", from_the_future)
    for command in ("evaluate", "predict"):
        message = dslide(command, path, files.test).failed()
        assert f"{path} cannot be loaded" in message
        assert "saved in format 99" in message


def test_model_with_an_unknown_layer(files, trained, tmp_path):
    def rename(config):
        return json.loads(json.dumps(config).replace("tf_dslide>DSlideDense", "other>Layer"))

    path = altered(trained, tmp_path / "unknown.keras", rename)
    assert f"{path} cannot be loaded" in dslide("predict", path, files.test).failed()


def test_no_model_file(files, trained, tmp_path):
    path = tmp_path / "model.keras"
    whole = trained.path.read_bytes()
    for content in (b"", b"hello", whole[: len(whole) // 2]):
        path.write_bytes(content)
        for command in ("evaluate", "predict"):
            message = dslide(command, path, files.test).failed()
            assert f"{path} is not a .keras file" in message
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("readme.txt", "a zip file all the same")
    assert "is not a .keras file" in dslide("predict", path, files.test).failed()


def test_model_of_another_kind(files, tmp_path):
    path = tmp_path / "model.keras"
    inputs = keras.Input((200,), sparse=True)
    hidden = SparseDense(4)(inputs)
    keras.Model(inputs, keras.layers.Dense(NUM_LABELS)(hidden)).save(path)
    message = dslide("predict", path, files.test).failed()
    assert "has no DSlideDense or DSlideLinear among its layers" in message
    assert "SparseDense, Dense" in message
    keras.Model(inputs, keras.layers.ReLU()(DSlideDense(NUM_LABELS)(hidden))).save(path)
    assert (
        "the output being that of its DSlideDense" in dslide("predict", path, files.test).failed()
    )


def test_k_beyond_the_labels(files, trained):
    message = dslide("predict", trained.path, files.test, "-k", 61).failed()
    assert "61" in message
    assert "60 units" in message


def test_more_mistakes(files, trained):
    assert "needs --out FILE" in dslide(
        "predict", trained.path, files.test, "--format", "npz"
    ).failed(2)
    assert "it needs --train DATA" in dslide(
        "evaluate", trained.path, files.test, "--train-labels", files.test
    ).failed(2)
    assert (
        "brings its own labels"
        in dslide("evaluate", trained.path, "synth:small:9", "--num-labels", 60).failed()
    )
    assert "comes too late" in dslide("evaluate", trained.path, files.test, "--threads", 1).failed()
    assert "No such command 'tarin'" in dslide("tarin").failed(2)


def test_debug_shows_where_an_error_comes_from():
    with pytest.raises(Exception, match="no preset 'nothing'"):
        dslide("train", "synth:nothing", "--debug")


def test_unexpected_errors_say_so():
    message = describe(KeyError("surprise"))
    assert "unexpected KeyError" in message
    assert "--debug" in message
