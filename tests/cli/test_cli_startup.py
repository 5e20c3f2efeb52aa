"""The command line itself needs no TensorFlow, and keeps TensorFlow's chatter from the user."""

import subprocess
import sys
from pathlib import Path

import tf_dslide.cli

# An empty stand-in for the parent package, whose own imports are not at issue here.
STAND_IN = """
import sys, types
parent = types.ModuleType("tf_dslide")
parent.__path__ = [sys.argv.pop(1)]
sys.modules["tf_dslide"] = parent
"""

WITHOUT_TENSORFLOW = """
import tf_dslide.cli
try:
    tf_dslide.cli.main()
finally:
    heavy = {"tensorflow", "keras", "sklearn", "scipy", "numpy"} & set(sys.modules)
    print("imported:", *sorted(heavy))
"""

CHATTER = """
import os
from tf_dslide.cli import tensorflow_setup
def chatter():
    for line in (
        b"WARNING: All log messages before absl::InitializeLog() is called are ...\\n",
        b"I0000 00:00:1795983460.763686   16816 port.cc:153] oneDNN is on\\n",
        b"W0000 00:00:1795983460.763686   16816 port.cc:153] beware\\n",
        b"E0000 00:00:1795983460.763686   16816 port.cc:153] this is an error\\n",
    ):
        os.write(2, line)
    print("from Python", file=sys.stderr)
tensorflow_setup._import = chatter
tensorflow_setup.start()
print("after", file=sys.stderr)
"""


def run(program, *arguments, **environment):
    package = str(Path(tf_dslide.cli.__file__).parent.parent)
    command = [sys.executable, "-c", STAND_IN + program, package, *arguments]
    return subprocess.run(
        command, capture_output=True, text=True, check=False, env={"HOME": "/", **environment}
    )


def test_help_and_mistakes_need_no_tensorflow():
    for arguments, status in ((["--help"], 0), (["train", "--help"], 0), (["train", "x"], 1)):
        result = run(WITHOUT_TENSORFLOW, *arguments)
        assert result.returncode == status, result.stderr
        assert result.stdout.endswith("imported:\n"), result.stdout


def test_chatter_is_held_back_and_errors_are_not():
    result = run(CHATTER)
    assert result.returncode == 0, result.stderr
    kept = result.stderr.splitlines()
    assert kept[0].endswith("this is an error")
    assert kept[1:] == ["from Python", "after"]


def test_user_who_sets_the_log_level_sees_it_all():
    result = run(CHATTER, TF_CPP_MIN_LOG_LEVEL="0")
    assert len(result.stderr.splitlines()) == 6
