"""Data sets in folders of mapped arrays, and text files that are parsed once."""

import contextlib
import json
import logging
import mmap
import os
import subprocess
import sys
import threading
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import sparse

import tf_dslide.data
from tf_dslide.data import (
    Dataset,
    StoreError,
    batches,
    cached,
    load_dataset,
    make_synthetic,
    read_xmc,
    read_xmc_pair,
    save_dataset,
    write_xmc,
)

ARRAYS = [
    "features.data.npy",
    "features.indices.npy",
    "features.indptr.npy",
    "labels.indices.npy",
    "labels.indptr.npy",
]
PARTS = [*ARRAYS, "label_names.json"]
NAMES = ["cat", "a\tb\nc", "", "Ünïcödé \U0001f600"]


def small(seed=0, name="small"):
    random = np.random.default_rng(seed)
    features = sparse.random(30, 50, 0.1, random_state=random, dtype=np.float32)
    labels = sparse.random(30, 4, 0.3, random_state=random)
    return Dataset(features, labels, label_names=NAMES, name=name)


def assert_same(found, expected):
    for one, other in (
        (found.features, expected.features),
        (found.labels, expected.labels),
    ):
        assert one.shape == other.shape
        for part in ("indptr", "indices", "data"):
            a, b = getattr(one, part), getattr(other, part)
            assert a.dtype == b.dtype
            np.testing.assert_array_equal(a, b)
    assert found.label_names == expected.label_names
    assert found.name == expected.name


def is_mapped(array):
    while isinstance(array, np.ndarray):
        array = array.base
    return isinstance(array, mmap.mmap)


@pytest.fixture
def saved(tmp_path):
    folder = tmp_path / "small"
    save_dataset(folder, small())
    return folder


@pytest.mark.parametrize("mapped", [True, False])
@pytest.mark.parametrize("verify", [True, False])
def test_round_trip(saved, mapped, verify):
    data = load_dataset(saved, mmap=mapped, verify=verify)
    assert_same(data, small())
    assert sorted(path.name for path in saved.iterdir()) == sorted([*PARTS, "manifest.json"])
    stored = [data.features.indptr, data.features.indices, data.features.data]
    stored += [data.labels.indptr, data.labels.indices]
    assert [is_mapped(array) for array in stored] == [mapped] * 5
    assert [array.flags.writeable for array in stored] == [not mapped] * 5
    assert {type(array) for array in stored} == {np.ndarray}


@settings(max_examples=40, deadline=None)
@given(rows=st.integers(0, 5), columns=st.integers(0, 4), labels=st.integers(0, 3), data=st.data())
def test_any_shape_comes_back(tmp_path_factory, rows, columns, labels, data):
    def matrix(width, values):
        cells = st.lists(values, min_size=rows * width, max_size=rows * width)
        return sparse.csr_matrix(np.array(data.draw(cells), np.float32).reshape(rows, width))

    made = Dataset(
        matrix(columns, st.sampled_from([0, 0, -1.5, 3e-39])), matrix(labels, st.integers(0, 1))
    )
    folder = tmp_path_factory.mktemp("store")
    save_dataset(folder, made)
    assert_same(load_dataset(folder, verify=True), made)


def test_64_bit_indices_stay(tmp_path):
    made = small()
    for matrix in (made.features, made.labels):
        matrix.indptr = matrix.indptr.astype(np.int64)
        matrix.indices = matrix.indices.astype(np.int64)
    save_dataset(tmp_path, made)
    found = load_dataset(tmp_path)
    assert found.features.indices.dtype == found.features.indptr.dtype == np.int64
    assert_same(found, made)


def test_unused_capacity_is_left_out(tmp_path):
    features = sparse.csr_matrix(np.eye(3, dtype=np.float32))
    features.indices = np.append(features.indices, np.int32(7))
    features.data = np.append(features.data, np.float32(np.nan))
    save_dataset(tmp_path, Dataset._trusted(features, features, None, "capacity"))
    found = load_dataset(tmp_path)
    assert found.features.indices.tolist() == found.labels.indices.tolist() == [0, 1, 2]
    assert found.features.data.tolist() == found.labels.data.tolist() == [1, 1, 1]


def test_loading_does_not_look_at_the_data(saved):
    """Values that the checks of `Dataset` refuse, and columns that it would sort, come through."""
    stored = small().features
    values, columns = stored.data.copy(), stored.indices.copy()
    values[3] = np.nan
    first, last = stored.indptr[:2]
    assert last - first >= 2
    columns[first:last] = columns[first:last][::-1]
    np.save(saved / "features.data.npy", values)
    np.save(saved / "features.indices.npy", columns)
    found = load_dataset(saved).features
    assert np.isnan(found.data[3])
    np.testing.assert_array_equal(found.indices, columns)
    assert found.has_canonical_format
    with pytest.raises(StoreError, match=r"features\.\w+\.npy: found checksum \d+, expected \d+"):
        load_dataset(saved, verify=True)


def test_what_a_dataset_can_do_works_on_a_mapping(saved):
    found, expected = load_dataset(saved), small()
    np.testing.assert_array_equal(found.label_counts, expected.label_counts)
    assert_same(found.take([4, 4, 0]), expected.take([4, 4, 0]))
    assert_same(found.take(slice(None)), expected)
    right = np.arange(50, dtype=np.float32)
    np.testing.assert_array_equal(found.features @ right, expected.features @ right)
    assert_same(Dataset(found.features, found.labels, NAMES, "small"), expected)
    with pytest.raises(ValueError, match="read-only"):
        found.features.data[0] = 1


@pytest.mark.parametrize("shuffle", [False, True])
def test_batches_are_those_of_the_data_in_memory(tmp_path, shuffle):
    expected = make_synthetic(70, 40, 20, features_per_sample=5, labels_per_sample=2)
    save_dataset(tmp_path, expected)
    streams = [
        batches(data, 16, shuffle=shuffle, seed=3) for data in (load_dataset(tmp_path), expected)
    ]
    for _ in range(2):
        pairs = list(zip(*streams, strict=True))
        assert len(pairs) == 5
        for (features, labels), (other_features, other_labels) in pairs:
            np.testing.assert_array_equal(features.indices, other_features.indices)
            np.testing.assert_array_equal(features.values, other_features.values)
            np.testing.assert_array_equal(features.dense_shape, other_features.dense_shape)
            assert labels.to_list() == other_labels.to_list()


def test_saving_again_replaces_and_leaves_nothing_behind(saved):
    mapped = load_dataset(saved)
    save_dataset(saved, Dataset(sparse.eye(2), sparse.eye(2), name="two"))
    assert_same(load_dataset(saved), Dataset(sparse.eye(2), sparse.eye(2), name="two"))
    assert not (saved / "label_names.json").exists()
    assert_same(mapped, small())
    assert [path.name for path in saved.parent.iterdir()] == [saved.name]


def test_the_same_data_give_the_same_bytes(saved, tmp_path):
    save_dataset(tmp_path / "again", small())
    for path in saved.iterdir():
        assert path.read_bytes() == (tmp_path / "again" / path.name).read_bytes()


def test_saving_makes_folders_and_follows_links(tmp_path):
    save_dataset(tmp_path / "a" / "b", small())
    (tmp_path / "link").symlink_to(tmp_path / "a" / "b")
    save_dataset(tmp_path / "link", small(1, "other"))
    assert (tmp_path / "link").is_symlink()
    assert_same(load_dataset(tmp_path / "a" / "b"), small(1, "other"))


def test_saving_does_not_destroy_other_things(tmp_path):
    file, folder = tmp_path / "file", tmp_path / "folder"
    file.write_text("mine")
    folder.mkdir()
    (folder / "thesis.txt").write_text("mine")
    mixed, other = tmp_path / "mixed", tmp_path / "other"
    save_dataset(mixed, small())
    (mixed / "notes.txt").write_text("mine")
    other.mkdir()
    (other / "manifest.json").write_text("{}")
    for path in (file, folder, mixed, other):
        with pytest.raises(FileExistsError, match=f"{path} is there and holds no saved data set"):
            save_dataset(path, small())
    assert file.read_text() == (folder / "thesis.txt").read_text() == "mine"
    assert (mixed / "notes.txt").read_text() == "mine"
    assert (other / "manifest.json").read_text() == "{}"


def test_a_failure_to_save_keeps_the_earlier_data(saved, monkeypatch):
    with pytest.raises(ValueError, match="label_names holds 7; only str can be saved"):
        save_dataset(saved, Dataset(sparse.eye(2), sparse.eye(2), label_names=["a", 7]))

    def full(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(np, "save", full)
    with pytest.raises(OSError, match="No space left"):
        save_dataset(saved, Dataset(sparse.eye(2), sparse.eye(2)))
    assert_same(load_dataset(saved), small())
    assert [path.name for path in saved.parent.iterdir()] == [saved.name]


def test_no_such_folder(tmp_path):
    with pytest.raises(FileNotFoundError, match=f"{tmp_path}/none: no such folder; expected one"):
        load_dataset(tmp_path / "none")
    (tmp_path / "file").write_text("")
    with pytest.raises(NotADirectoryError, match=f"{tmp_path}/file: no such folder"):
        load_dataset(tmp_path / "file")
    with pytest.raises(StoreError, match=f"{tmp_path}/manifest.json: found no such file, exp"):
        load_dataset(tmp_path)


@pytest.mark.parametrize("part", PARTS)
def test_missing_part(saved, part):
    size = (saved / part).stat().st_size
    (saved / part).unlink()
    with pytest.raises(StoreError, match=f"{part}: found no such file, expected {size:,} bytes"):
        load_dataset(saved)


@pytest.mark.parametrize("part", PARTS)
@pytest.mark.parametrize("change", [-1, 4])
def test_part_of_another_size(saved, part, change):
    size = (saved / part).stat().st_size
    os.truncate(saved / part, size + change)
    message = f"{part}: found {size + change:,} bytes, expected {size:,} bytes"
    with pytest.raises(StoreError, match=message):
        load_dataset(saved)


def test_part_of_another_type(saved):
    (saved / "features.data.npy").write_bytes((saved / "features.indices.npy").read_bytes())
    with pytest.raises(StoreError, match=r"features.data.npy: found .* <i4, expected .* <f4"):
        load_dataset(saved)


def test_part_that_is_no_array(saved):
    path = saved / "features.data.npy"
    path.write_bytes(b"x" * path.stat().st_size)
    with pytest.raises(StoreError, match="features.data.npy: found no NumPy array"):
        load_dataset(saved)


@pytest.mark.parametrize("kind", ["features", "labels"])
def test_rows_that_disagree_with_their_entries(saved, kind):
    path = saved / f"{kind}.indptr.npy"
    ends = np.load(path)
    np.save(path, ends + 1)
    message = f"{kind}.indptr.npy: found rows from 1 to {ends[-1] + 1}, expected from 0 to"
    with pytest.raises(StoreError, match=f"{message} {ends[-1]}"):
        load_dataset(saved)


def test_another_format(saved):
    path = saved / "manifest.json"
    path.write_text(json.dumps({"format": 7, "anything": "else"}))
    with pytest.raises(StoreError, match="manifest.json: found format 7, expected format 1: save"):
        load_dataset(saved)


@pytest.mark.parametrize("text", ["", "{", "[]", "3", "null", '"format"', "{}", "\xff"])
def test_manifest_that_is_none(saved, text):
    (saved / "manifest.json").write_text(text, encoding="latin-1")
    with pytest.raises(StoreError, match="manifest.json: found '.*', expected a manifest"):
        load_dataset(saved)


def test_changed_manifest(saved):
    path = saved / "manifest.json"
    path.write_text(path.read_text().replace('"num_features": 50', '"num_features": 9'))
    with pytest.raises(StoreError, match="manifest.json: found checksum .* was changed"):
        load_dataset(saved)


@pytest.fixture(scope="module")
def fragile(tmp_path_factory):
    folder = tmp_path_factory.mktemp("fragile")
    save_dataset(folder, small())
    return folder


@settings(max_examples=200, deadline=None)
@given(st.sampled_from([*PARTS, "manifest.json"]), st.data())
def test_no_damage_goes_unnoticed(fragile, part, data):
    whole = (fragile / part).read_bytes()
    place = data.draw(st.integers(0, len(whole) - 1))
    value = data.draw(st.integers(0, 255).filter(lambda value: value != whole[place]))
    try:
        (fragile / part).write_bytes(whole[:place] + bytes([value]) + whole[place + 1 :])
        if (
            part == "manifest.json"
            and whole[place : place + 1].isspace()
            and chr(value) in " \n\t\r"
        ):
            assert_same(load_dataset(fragile, verify=True), small())
        else:
            with pytest.raises(StoreError, match=str(fragile / part)):
                load_dataset(fragile, verify=True)
        # Without checksums damage may pass, but no other error comes of it.
        with contextlib.suppress(StoreError):
            load_dataset(fragile)
    finally:
        (fragile / part).write_bytes(whole)


def test_savers_and_loaders_at_once(tmp_path):
    """What is loaded is always one whole data set, or an error: never parts of two."""
    folder, choices = tmp_path / "shared", [small(1, "one"), small(2, "two")]
    save_dataset(folder, choices[0])
    failures = []

    def save(data):
        try:
            for _ in range(60):
                save_dataset(folder, data)
        except BaseException as error:
            failures.append(error)

    savers = [threading.Thread(target=save, args=(data,)) for data in choices]
    for saver in savers:
        saver.start()
    seen = set()
    while any(saver.is_alive() for saver in savers):
        try:
            found = load_dataset(folder)
        except (FileNotFoundError, StoreError):
            continue
        seen.add(found.name)
        assert_same(found, choices[found.name == "two"])
    assert failures == []
    assert seen
    assert load_dataset(folder, verify=True).name in ("one", "two")
    assert [path.name for path in tmp_path.iterdir()] == ["shared"]


# The cache. A reader that counts its calls stands for `read_xmc`, which works as it does.
calls: list[str] = []


def counting_reader(path, *, num_features=None, label_names=None):
    calls.append(Path(path).name)
    return read_xmc(path, num_features=num_features, label_names=label_names)


def useless_reader(path):
    return None


@pytest.fixture
def text(tmp_path):
    calls.clear()
    path = tmp_path / "text.txt"
    write_xmc(path, small())
    return path


def test_reads_once_and_then_maps(text, tmp_path):
    first, second = (cached(tmp_path / "cache", counting_reader, text) for _ in range(2))
    assert calls == ["text.txt"]
    assert_same(first, read_xmc(text))
    assert_same(second, first)
    assert is_mapped(second.features.data)
    (entry,) = (tmp_path / "cache").iterdir()
    assert entry.name.startswith("text.txt-")
    assert_same(load_dataset(entry), first)


def test_the_path_may_be_written_otherwise(text, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "link.txt").symlink_to(text)
    cached("cache", counting_reader, text)
    cached(tmp_path / "cache", counting_reader, "text.txt", num_features=None)
    assert calls == ["text.txt"]


def test_changed_file_is_read_again_and_replaces(text, tmp_path):
    cached(tmp_path / "cache", counting_reader, text)
    write_xmc(text, small(1))
    assert_same(cached(tmp_path / "cache", counting_reader, text), read_xmc(text))
    before = text.stat()
    changed = text.read_bytes().replace(b"30 50 4\n", b"30 51 4\n")
    text.write_bytes(changed)
    os.utime(text, ns=(before.st_atime_ns, before.st_mtime_ns + 1))
    assert cached(tmp_path / "cache", counting_reader, text).num_features == 51
    assert cached(tmp_path / "cache", counting_reader, text).num_features == 51
    assert len(calls) == 3
    assert len(list((tmp_path / "cache").iterdir())) == 1


def test_file_that_changes_while_it_is_read_is_read_again(text, tmp_path, monkeypatch):
    def read_and_change(path):
        data = read_xmc(path)
        write_xmc(path, small(1))
        return data

    read_and_change.__qualname__ = "read_and_change"
    cached(tmp_path / "cache", read_and_change, text)
    found = cached(tmp_path / "cache", read_and_change, text)
    assert_same(found, Dataset(small(1).features, small(1).labels, name="text"))


def test_arguments_and_their_files_matter(text, tmp_path):
    names = tmp_path / "names.txt"
    names.write_text("a\nb\nc\nd\n")

    def read(**arguments):
        return cached(tmp_path / "cache", counting_reader, text, **arguments).label_names

    for _ in range(2):
        assert read() is None
        assert read(num_features=np.int64(50)) is None
        assert read(label_names=names) == ("a", "b", "c", "d")
        assert read(label_names=["e", "f", "g", "h"]) == ("e", "f", "g", "h")
        assert read(label_names=("e", "f", "g", "i")) == ("e", "f", "g", "i")
    assert len(calls) == 5
    names.write_text("a\nb\nc\nxyz\n")
    assert read(label_names=str(names)) == ("a", "b", "c", "xyz")
    assert len(calls) == 6


def test_readers_and_files_are_told_apart(text, tmp_path):
    features, labels = tmp_path / "x.txt", tmp_path / "y.txt"
    features.write_text("2 3\n0:0.6 1:0.8\n2:1\n")
    labels.write_text("2 2\n0:1\n0:1 1:1\n")
    for _ in range(2):
        pair = cached(tmp_path / "cache", read_xmc_pair, features, labels)
        assert_same(pair, read_xmc_pair(features, labels))
        assert_same(cached(tmp_path / "cache", read_xmc, text), read_xmc(text))
    (tmp_path / "y.txt").write_text("2 2\n0:1\n0:1\n")
    assert cached(tmp_path / "cache", read_xmc_pair, features, labels).labels.nnz == 2


@pytest.mark.parametrize("part", [*ARRAYS, "manifest.json"])
@pytest.mark.parametrize("how", ["missing", "short", "changed"])
def test_damaged_cache_is_made_anew(text, tmp_path, caplog, part, how):
    cached(tmp_path / "cache", counting_reader, text)
    (entry,) = (tmp_path / "cache").iterdir()
    whole = (entry / part).read_bytes()
    if how == "missing":
        (entry / part).unlink()
    else:
        damaged = whole[:-1] if how == "short" else whole[:-3] + bytes([whole[-3] ^ 1]) + whole[-2:]
        (entry / part).write_bytes(damaged)
    expected = read_xmc(text)
    assert_same(cached(tmp_path / "cache", counting_reader, text), expected)
    assert f"{entry / part}: found" in caplog.text
    caplog.clear()
    assert_same(cached(tmp_path / "cache", counting_reader, text), expected)
    assert caplog.text == ""
    assert len(calls) == 2


def test_cache_of_another_format_is_made_anew(text, tmp_path, monkeypatch):
    monkeypatch.setattr("tf_dslide.data.store._FORMAT", 0)
    cached(tmp_path / "cache", counting_reader, text)
    monkeypatch.undo()
    for _ in range(2):
        assert_same(cached(tmp_path / "cache", counting_reader, text), read_xmc(text))
    assert len(calls) == 2


def test_anything_under_the_name_of_an_entry_is_replaced(text, tmp_path):
    cached(tmp_path / "cache", counting_reader, text)
    (entry,) = (tmp_path / "cache").iterdir()
    entry.rename(tmp_path / "away")
    entry.write_text("a file")
    for _ in range(2):
        assert_same(cached(tmp_path / "cache", counting_reader, text), read_xmc(text))
    assert len(calls) == 2


def test_data_are_returned_though_they_cannot_be_kept(text, tmp_path, monkeypatch, caplog):
    def full(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(np, "save", full)
    assert_same(cached(tmp_path / "cache", counting_reader, text), read_xmc(text))
    (record,) = caplog.records
    assert record.levelno == logging.WARNING
    assert "could not be kept: [Errno 28] No space left on device" in record.message
    assert list((tmp_path / "cache").iterdir()) == []


def test_mistakes_are_told_before_anything_is_read(text, tmp_path):
    folder = tmp_path / "cache"
    for read in (lambda path: None, np.load.__call__, "read_xmc"):
        with pytest.raises(TypeError, match="expected a function of a module, such as read_xmc"):
            cached(folder, read, text)
    with pytest.raises(TypeError, match="no file was given for counting_reader"):
        cached(folder, counting_reader)
    with pytest.raises(TypeError, match="unexpected keyword argument 'nonsense'"):
        cached(folder, counting_reader, text, nonsense=3)
    with pytest.raises(TypeError, match="an argument holds <object object"):
        cached(folder, counting_reader, text, label_names=object())
    with pytest.raises(FileNotFoundError, match=r"none\.txt"):
        cached(folder, counting_reader, tmp_path / "none.txt")
    assert not folder.exists()
    folder.write_text("")
    with pytest.raises(FileExistsError, match=str(folder)):
        cached(folder, counting_reader, text)
    assert calls == []
    with pytest.raises(TypeError, match="useless_reader returned None; expected a Dataset"):
        cached(tmp_path / "other", useless_reader, text)


# An empty stand-in for the parent package, which would import TensorFlow.
PROGRAM = """
import sys, types
parent = types.ModuleType("tf_dslide")
parent.__path__ = [sys.argv[5]]
sys.modules["tf_dslide"] = parent
from tf_dslide.data import cached, read_xmc
for _ in range(20):
    data = cached(sys.argv[1], read_xmc, sys.argv[2])
    assert data.features.nnz == int(sys.argv[3]), data.features.nnz
    if sys.argv[4] == "damaging":
        import pathlib
        for part in pathlib.Path(sys.argv[1]).glob("text.txt-*/features.data.npy"):
            part.unlink(missing_ok=True)
"""


@pytest.mark.slow
def test_processes_that_share_a_folder(text, tmp_path):
    nonzero = read_xmc(text).features.nnz
    command = [sys.executable, "-c", PROGRAM, str(tmp_path / "cache"), str(text), str(nonzero)]
    package = str(Path(tf_dslide.data.__file__).parent.parent)
    processes = [
        subprocess.Popen([*command, role, package], stderr=subprocess.PIPE, text=True)
        for role in ("quiet", "damaging")
    ]
    for process in processes:
        _, errors = process.communicate(timeout=120)
        assert process.returncode == 0, errors
    assert_same(cached(tmp_path / "cache", counting_reader, text), read_xmc(text))
    assert not [path for path in (tmp_path / "cache").iterdir() if path.name.startswith(".")]
