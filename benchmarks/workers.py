"""Measures methods in turns, each in a process of its own.

Peak memory is then each method's own, and all methods see the same machine: a slow minute slows
all of them. A script starts itself again with `--worker METHOD` for each method; a worker reads
numbers of steps from standard input and answers each with a line of JSON. 0 asks for its last
words.
"""

import argparse
import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple


def add_worker_option(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--worker", help=argparse.SUPPRESS)


# In a worker.
def requests() -> Iterator[int]:
    for line in sys.stdin:
        yield int(line)


def answer(figures: dict) -> None:
    print(json.dumps(figures), flush=True)


class StepClock:
    """Notes the seconds of each step, and time and the process's CPU time at the end of each."""

    def __init__(self) -> None:
        self.clear()

    def clear(self) -> None:
        self.seconds: list[float] = []
        self.ends: list[float] = []
        self.cpu_ends: list[float] = []

    def begin_step(self) -> None:
        self._start = time.perf_counter()

    def end_step(self) -> None:
        now = time.perf_counter()
        self.seconds.append(now - self._start)
        self.ends.append(now)
        self.cpu_ends.append(time.process_time())


class StepTimer:
    """A `StepClock` that is a Keras callback; `fit` clears it first."""

    def __new__(cls) -> Any:
        import keras

        class Timer(StepClock, keras.callbacks.Callback):
            def __init__(self):
                keras.callbacks.Callback.__init__(self)
                StepClock.__init__(self)

            def on_train_begin(self, logs=None):
                self.clear()

            def on_train_batch_begin(self, batch, logs=None):
                self.begin_step()

            def on_train_batch_end(self, batch, logs=None):
                self.end_step()

        return Timer()


# Outside.
class Worker:
    """A method's process, seen from the outside."""

    def __init__(self, method: str, environment: Mapping[str, str] | None = None) -> None:
        self.method = method
        self.process = subprocess.Popen(
            [sys.executable, *sys.argv, "--worker", method],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env={**os.environ, **(environment or {})},
        )

    def ask(self, steps: int) -> dict:
        assert self.process.stdin
        assert self.process.stdout
        print(steps, file=self.process.stdin, flush=True)
        line = self.process.stdout.readline()
        if not line:
            raise SystemExit(f"{self.method}: the worker ended with status {self.process.wait()}")
        return json.loads(line)

    def close(self) -> None:
        assert self.process.stdin
        self.process.stdin.close()
        self.process.wait()


class Answers(NamedTuple):
    """A worker's answers, one a turn, and its last words."""

    turns: list[dict]
    last: dict


def take_turns(
    steps: dict[str, int], rounds: int, environment: Mapping[str, str] | None = None
) -> dict[str, Answers]:
    """Has the methods train in turns, each so many steps a turn."""
    workers = {method: Worker(method, environment) for method in steps}
    for method, worker in workers.items():
        worker.ask(2)  # the first step compiles; the first of hashed training builds the tables
        print(f"{method} is ready", file=sys.stderr, flush=True)
    turns: dict[str, list[dict]] = {method: [] for method in steps}
    for _ in range(rounds):
        for method, worker in workers.items():
            turns[method].append(worker.ask(steps[method]))
    result = {}
    for method, worker in workers.items():
        result[method] = Answers(turns[method], worker.ask(0))
        worker.close()
    return result
