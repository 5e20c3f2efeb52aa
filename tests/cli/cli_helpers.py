"""What the tests of the command line share."""

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from typer.testing import CliRunner

from tf_dslide.cli.application import app
from tf_dslide.data import Dataset

NUM_FEATURES, NUM_LABELS = 200, 60
SMALL = ("--hidden", 16, "--batch-size", 32, "--active", 20, "--learning-rate", 0.02)


@dataclass
class Result:
    status: int
    out: str
    err: str

    def succeeded(self) -> "Result":
        assert self.status == 0, self.err
        return self

    def failed(self, status: int = 1) -> str:
        """Checks that exactly one line of error was given, and returns it."""
        assert self.status == status, (self.status, self.out, self.err)
        assert self.err.count("\n") == 1, self.err
        assert self.err.endswith("\n")
        assert "Traceback" not in self.out + self.err
        return self.err.strip()


def dslide(*arguments: Any) -> Result:
    """Runs the command line within this process."""
    result = CliRunner().invoke(app, [str(argument) for argument in arguments])
    if result.exception is not None and not isinstance(result.exception, SystemExit):
        raise result.exception
    return Result(result.exit_code, result.stdout, result.stderr)


@dataclass
class Files:
    folder: Path
    train: Path
    test: Path
    names: Path
    train_data: Dataset
    test_data: Dataset
    label_names: list[str] = field(default_factory=list)


@dataclass
class Trained:
    path: Path
    out: str
    log: list[dict[str, Any]]
