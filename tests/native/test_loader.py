"""What the loader says when the library does not fit."""

import json

import pytest
import tensorflow as tf
from tensorflow.python.framework import op_def_registry

from tf_dslide._native import loader

NOTE = {"tensorflow": "2.21.0", "compiler": "g++", "flags": "-O3", "python": "3.11.7"}


@pytest.fixture
def folder(tmp_path):
    """A folder like that of a built package."""
    (tmp_path / loader.LIBRARY).write_bytes(b"")
    (tmp_path / loader.BUILD_INFO).write_text(json.dumps(NOTE))
    return tmp_path


@pytest.mark.parametrize("version", ["2.21.0", "2.21.5", "2.21.0-rc1"])
def test_same_minor_version_fits(folder, version):
    assert loader.check_build(folder, version) == NOTE


@pytest.mark.parametrize("version", ["2.20.0", "2.22.1", "3.21.0", "2.2.1", "2.210.0"])
def test_another_minor_version_does_not(folder, version):
    with pytest.raises(ImportError) as error:
        loader.check_build(folder, version)
    message = str(error.value)
    assert "built for TensorFlow 2.21.0" in message
    assert f"TensorFlow {version} is running" in message
    assert "pip install" in message


@pytest.mark.parametrize("name", [loader.LIBRARY, loader.BUILD_INFO])
def test_a_missing_file_is_named(folder, name):
    (folder / name).unlink()
    with pytest.raises(ImportError, match="is missing") as error:
        loader.check_build(folder, "2.21.0")
    assert str(folder / name) in str(error.value)
    assert "pip install" in str(error.value)


@pytest.mark.parametrize("text", ["", "{", "[]", "{}", '"2.21.0"', '{"tensorflow": null}', "\xff"])
def test_a_damaged_note_is_named(folder, text):
    (folder / loader.BUILD_INFO).write_text(text, encoding="latin-1")
    with pytest.raises(ImportError) as error:
        loader.check_build(folder, "2.21.0")
    assert str(folder / loader.BUILD_INFO) in str(error.value)
    assert "pip install" in str(error.value)


def test_a_library_that_cannot_be_loaded_is_an_import_error(folder, monkeypatch):
    note = NOTE | {"tensorflow": tf.__version__}
    (folder / loader.BUILD_INFO).write_text(json.dumps(note))
    (folder / loader.LIBRARY).write_bytes(b"no library")
    monkeypatch.setattr(loader, "PACKAGE", folder)
    with pytest.raises(ImportError, match="cannot be loaded") as error:
        loader.load.__wrapped__()
    assert "pip install" in str(error.value)


def test_loading_twice_gives_one_module():
    assert loader.load() is loader.load()


def test_build_info():
    info = loader.build_info()
    assert info.tensorflow_found == tf.__version__
    assert info.tensorflow_built.split(".")[:2] == tf.__version__.split(".")[:2]
    assert info.simd in ("portable", "avx2", "avx512")
    assert "-O3" in info.flags
    assert info.as_dict()["compiler"] == info.compiler


def test_every_op_on_a_variable_either_reads_or_updates():
    names = [name for name in dir(loader.load()) if name.startswith("Dslide")]
    definitions = [op_def_registry.get(name) for name in names]
    on_variables = {
        definition.name
        for definition in definitions
        if any(argument.type == tf.resource.as_datatype_enum for argument in definition.input_arg)
    }
    updating = {name for name in on_variables if name.endswith(("Adam", "Adagrad"))}
    assert len(updating) == 7
    assert set(loader.READING_OPS) == on_variables - updating
