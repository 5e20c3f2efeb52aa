"""Omikuji: an ensemble of label trees of linear classifiers, in one process."""

import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np

from baselines.training import Hits, Method, Session, worth_of
from tf_dslide.data import write_xmc

TREES = 3


class Omikuji(Method):
    """Three trees with Omikuji's default settings.

    Omikuji trains from a file and to its end; its time has the reading of that file in it.
    """

    def __init__(self, session: Session) -> None:
        del session

    def train(self, session: Session) -> None:
        """Trains whole trees, however long they take."""
        import os

        import omikuji

        from benchmarks.environment import peak_megabytes

        settings = omikuji.Model.default_hyper_param()
        settings.n_trees = TREES
        with tempfile.TemporaryDirectory() as folder:
            path = str(Path(folder) / "train.txt")
            write_xmc(path, session.train)
            begin = time.perf_counter()
            threads = len(os.sched_getaffinity(0))
            model = omikuji.Model.train_on_data(path, settings, n_threads=threads)
            seconds = time.perf_counter() - begin
        samples = session.train.num_samples
        began = time.perf_counter()
        precisions = self._precisions(model, session)
        session.measure(
            epoch=1.0,
            step=0,
            samples=samples,
            train_seconds=seconds,
            evaluation_seconds=time.perf_counter() - began,
            **precisions,
        )
        if session.record:
            host = {"rank": 0, "host": os.uname().nodename, "bytes_sent_per_step": 0.0}
            session.record.steps(
                epoch_seconds=seconds,
                epoch_measured=True,
                ranks=[{**host, "bytes_source": "counted", "peak_mb": peak_megabytes()}],
            )

    def _precisions(self, model: Any, session: Session) -> dict[str, float]:
        best = np.full((session.test.num_samples, 5), -1)
        features = session.test.features
        for row in range(len(best)):
            part = slice(features.indptr[row], features.indptr[row + 1])
            pairs = list(
                zip(features.indices[part].tolist(), features.data[part].tolist(), strict=True)
            )
            found = [label for label, _ in model.predict(pairs, beam_size=10, top_k=5)]
            best[row, : len(found)] = found
        hits = Hits.of(session.test, best, worth_of(session.train))
        return hits.precisions(session.test.num_samples)
