"""Compiles custom_ops/ into one library inside tf_dslide/. Metadata is in pyproject.toml."""

import json
import os
import platform
import shlex
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from setuptools import Extension, setup
from setuptools.command.build_ext import build_ext

BUILD_INFO = "_build_info.json"
SIMD_FLAGS = {
    "simd_avx2.cc": "-mavx2 -mfma",
    "simd_avx512.cc": "-mavx512f -mavx512dq -mavx512bw -mavx512vl -mavx2 -mfma",
}
# Warnings stop our own builds, but not those of a user whose compiler knows newer ones.
STRICT = ["-Werror"] if os.environ.get("DSLIDE_WERROR") else []


class BuildNativeLibrary(build_ext):
    """Builds a plain shared library: it registers ops with TensorFlow and is no Python module."""

    def get_ext_filename(self, fullname: str) -> str:
        """The library's path, without the suffix that names a Python version."""
        return os.path.join(*fullname.split(".")) + ".so"

    def get_export_symbols(self, ext: Extension) -> list[str]:
        """None: there is no PyInit function."""
        return []

    def copy_extensions_to_source(self) -> None:
        """For an editable install: the library and the note of what it was built with."""
        super().copy_extensions_to_source()
        build_py = self.get_finalized_command("build_py")
        for ext in self.extensions:
            built = Path(self.build_lib, self.get_ext_filename(ext.name)).with_name(BUILD_INFO)
            package = build_py.get_package_dir(ext.name.rpartition(".")[0])
            self.copy_file(str(built), os.path.join(package, BUILD_INFO))

    def build_extension(self, ext: Extension) -> None:
        """Compiles in parallel, each instruction set with flags of its own."""
        import tensorflow as tf

        headers = tf.sysconfig.get_include()
        defines = [f for f in tf.sysconfig.get_compile_flags() if f.startswith("-D")]
        compiler = shlex.split(os.environ.get("CXX", "g++"))
        flags = [
            "-std=c++17",
            "-O3",
            "-fPIC",
            "-fno-math-errno",
            "-ffp-contract=fast",
            "-DNDEBUG",
            "-Wall",
            "-Wextra",
            *STRICT,
            "-fvisibility=hidden",
            "-I.",
            "-isystem",
            headers,
            *defines,
            *shlex.split(os.environ.get("CXXFLAGS", "")),
        ]
        output = Path(self.build_temp)
        output.mkdir(parents=True, exist_ok=True)

        def compile_one(source: str) -> str:
            target = output / (source.replace("/", "_") + ".o")
            extra = SIMD_FLAGS.get(Path(source).name, "") if platform.machine() == "x86_64" else ""
            self.spawn([*compiler, *flags, *extra.split(), "-c", source, "-o", str(target)])
            return str(target)

        with ThreadPoolExecutor(max_workers=os.cpu_count() or 1) as pool:
            objects = list(pool.map(compile_one, ext.sources))
        library = Path(self.build_lib, self.get_ext_filename(ext.name))
        library.parent.mkdir(parents=True, exist_ok=True)
        self.spawn(
            [*compiler, "-shared", *objects, *tf.sysconfig.get_link_flags(), "-o", str(library)]
        )
        info = {
            "tensorflow": tf.__version__,
            "compiler": " ".join(compiler),
            "flags": " ".join(flags[: flags.index("-I.")]),
            "python": platform.python_version(),
        }
        library.with_name(BUILD_INFO).write_text(json.dumps(info, indent=2) + "\n")


setup(
    ext_modules=[
        Extension("tf_dslide._dslide_ops", sorted(str(p) for p in Path("custom_ops").rglob("*.cc")))
    ],
    cmdclass={"build_ext": BuildNativeLibrary},
)
