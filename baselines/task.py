"""What one run is to train."""

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any


@dataclass(frozen=True)
class Task:
    """One method on one data set; it reaches the run's processes as a file of JSON.

    Attributes:
        method: A key of `METHODS`.
        record: The run file to write.
        run: The first event of the run file, as `RunWriter.run` takes it.
        train: Folder of the training data, as `save_dataset` writes it.
        test: The same of the test rows to evaluate.
        hidden: Width of the hidden layer.
        batch_size: Samples a step, of all processes together.
        learning_rate: Highest learning rate.
        epochs: Passes over the training data, or `None`.
        seconds: Seconds to train, evaluation left out, or `None`. The first limit reached counts.
        active: Active neurons of the sampled methods, beside the labels.
        seed: Of weights, batches and samples.
        wire: What D-SLIDE's ranks send numbers as, `float32` or `bfloat16`.
        cores: Cores of each process, or `None` for all.
        interface: Network interface whose bytes are counted, or `None`.
    """

    method: str
    record: str
    run: Mapping[str, Any]
    train: str
    test: str
    hidden: int
    batch_size: int
    learning_rate: float
    epochs: int | None
    seconds: float | None
    active: int
    seed: int
    wire: str = "float32"
    cores: list[list[int]] | None = None
    interface: str | None = None

    def save(self, path: Path) -> None:
        """Writes the task for the run's processes."""
        path.write_text(json.dumps(asdict(self)))

    @classmethod
    def load(cls, path: str | Path) -> "Task":
        """Reads what `save` wrote."""
        return cls(**json.loads(Path(path).read_text()))
