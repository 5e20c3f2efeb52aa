"""The work of `dslide tune`. Imports TensorFlow: the command imports it when all is checked."""

import gc
import time
from collections.abc import Callable
from dataclasses import asdict, replace
from functools import partial
from typing import Any

import keras
import numpy as np

from tf_dslide.cli import console
from tf_dslide.cli.callbacks import diverged
from tf_dslide.cli.inputs import hold_out
from tf_dslide.cli.network import build_network
from tf_dslide.cli.scoring import best_labels
from tf_dslide.cli.search import Choice, Factor, Outcome, search
from tf_dslide.cli.settings import NetworkSettings, SamplerSettings, TuneSettings
from tf_dslide.data import Dataset, batches
from tf_dslide.hashing import address_bits_for
from tf_dslide.samplers import LshSampler

# The rest of a trial's time is for building, tracing and scoring.
_SHARE_OF_TRAINING = 0.7


def usual(units: int) -> SamplerSettings:
    """What `dslide train` uses without options, spelled out."""
    sampler = LshSampler()
    return SamplerSettings(
        "lsh",
        "simhash",
        address_bits_for(units),
        sampler.hash.tables,
        sum(sampler.counts_of(units)),
        sampler.rebuild_every,
    )


def _samplers(best: SamplerSettings) -> Factor[SamplerSettings]:
    uniform = SamplerSettings("uniform", num_sampled=best.active)
    return Factor("sampler", [("uniform", uniform)])


def _active(best: SamplerSettings) -> Factor[SamplerSettings]:
    name = "active" if best.num_sampled is None else "num_sampled"
    now = getattr(best, name)
    values = [max(1, now // 3), 2 * now]
    return Factor(name, [(str(n), replace(best, **{name: n})) for n in values])


def _bits(best: SamplerSettings) -> Factor[SamplerSettings] | None:
    if best.bits is None:
        return None
    values = (best.bits - 2, best.bits + 2)
    return _others("bits", tuple(bits for bits in values if 1 <= bits <= 24), best)


def _others(name: str, values: tuple, best: SamplerSettings) -> Factor[SamplerSettings] | None:
    """The other values of a setting, of samplers that have it."""
    now = getattr(best, name)
    if now is None:
        return None
    choices = [(str(v), replace(best, **{name: v})) for v in values if v != now]
    return Factor(name, choices)


_FACTORS: list[Callable[[SamplerSettings], Factor[SamplerSettings] | None]] = [
    _samplers,
    _active,
    partial(_others, "hash", ("simhash", "dwta", "minhash", "learned")),
    _bits,
    partial(_others, "tables", (20, 50, 100)),
    partial(_others, "rebuild_every", (25, 100, 400)),
]


def _most_trials(start: SamplerSettings) -> int:
    """How many a search makes if it ends in time and keeps the sampler it begins with."""
    factors = [factor_of(start) for factor_of in _FACTORS]
    return 1 + sum(len(factor.choices) for factor in factors if factor is not None)


class Tuning:
    """One search.

    Args:
        settings: What to do.
    """

    def __init__(self, settings: TuneSettings) -> None:
        self._settings = settings
        self._console = console.messages() if settings.as_json else console.output()

    def run(self) -> None:
        """Reads the data, searches, and prints what was found.

        Raises:
            CommandError: There are too few samples to hold some out.
        """
        settings = self._settings
        data = settings.data.read("train")
        share = min(0.1, settings.held_out / len(data))
        train, held = hold_out(data, share, settings.network.seed)
        start = usual(train.num_labels)
        each = settings.seconds / _most_trials(start) * _SHARE_OF_TRAINING
        trial = Trial(settings.network, settings.batch_size, train, held, each)
        self._console.print(
            f"{len(train):,} samples to train on, {len(held):,} to score on; "
            f"{train.num_labels:,} labels; {each:.1f} s of training a trial"
        )
        self._console.print(_row("", "", ("P@1", "gain", "", "samples/s", "epochs")))
        choices = []
        for choice in search(start, _FACTORS, trial, settings.seconds):
            choices.append(choice)
            self._console.print(_told(choice, len(train)))
        best = next(choice for choice in reversed(choices) if choice.taken)
        command = " ".join(
            ["dslide train", *settings.data.words(), *_options(settings, best.settings)]
        )
        if settings.as_json:
            console.print_json(
                {"choices": [_record(choice) for choice in choices], "command": command}
            )
        else:
            self._console.print(command)


class Trial:
    """Trains a network from the beginning for a time, and scores it.

    Args:
        network: What to train; its sampler is the trial's.
        batch_size: Samples a step.
        train: What to train on.
        held: What to score on.
        seconds: Time to train, the first step, which builds the graph, left out.
    """

    def __init__(
        self,
        network: NetworkSettings,
        batch_size: int,
        train: Dataset,
        held: Dataset,
        seconds: float,
    ) -> None:
        self._network, self._batch_size, self._seconds = network, batch_size, seconds
        self._train, self._held = train, held

    def __call__(self, sampler: SamplerSettings) -> Outcome:
        """What comes of a sampler."""
        settings = replace(self._network, sampler=sampler)
        model = build_network(settings, self._train, 0, self._batch_size)
        deadline = _Deadline(self._seconds, settings.learning_rate)
        data = batches(self._train, self._batch_size, shuffle=True, seed=settings.seed)
        # Ended by the deadline long before.
        model.fit(data, epochs=1_000_000, callbacks=[deadline], shuffle=False, verbose=0)
        hits = self._hits(model)
        # Weights and moments of one network at a time.
        del model
        keras.backend.clear_session()
        gc.collect()
        return Outcome(hits, deadline.steps * self._batch_size, deadline.taken)

    def _hits(self, model: keras.Sequential) -> np.ndarray:
        layer = model.layers[-1]
        hidden = keras.Model(model.inputs, layer.input)
        best = best_labels(hidden, layer, self._held, 1, self._batch_size)
        first = np.concatenate([labels[:, 0] for labels, _ in best])
        return np.asarray(self._held.labels[np.arange(len(self._held)), first]).ravel() > 0


class _Deadline(keras.callbacks.Callback):
    """Ends a training after a time, to whose end the learning rate falls.

    Args:
        seconds: The time, from the end of the first step.
        rate: The learning rate at its beginning.

    Attributes:
        steps: Steps taken, without the first.
        taken: Seconds that they took.
    """

    def __init__(self, seconds: float, rate: float) -> None:
        super().__init__()
        self._seconds, self._rate = seconds, rate
        self.steps, self.taken = -1, 0.0

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        """Sets the rate of the next step, or ends the training."""
        now = time.perf_counter()
        self.steps += 1
        if self.steps == 0:
            self._begin = now
        if not np.isfinite(logs["loss"]):
            raise diverged(f"the loss is {logs['loss']} after {self.steps + 1} steps")
        self.taken = now - self._begin
        left = 1.0 - self.taken / self._seconds
        self.model.optimizer.learning_rate.assign(self._rate * max(left, 0.0))
        if left <= 0 and self.steps > 0:
            self.model.stop_training = True


def _told(choice: Choice[SamplerSettings], samples: int) -> str:
    """A line about a choice."""
    names = {"num_sampled": "sampled", "rebuild_every": "rebuild every"}
    name = names.get(choice.factor, choice.factor) or "start"
    value = choice.value or choice.settings.name
    outcome = choice.outcome
    if outcome is None:
        return _row(name, value, ("", "", "no time left", "", ""))
    gained = ""
    if choice.gain is not None:
        gained = f"{100 * choice.gain[0]:+.2f} ± {100 * choice.gain[1]:.2f}"
    verdict = "taken" if choice.taken and choice.factor else ""
    epochs = f"{outcome.samples / samples:.2f}"
    rate = f"{outcome.samples_per_second:,.0f}"
    precision = f"{100 * outcome.precision:.2f}"
    return _row(name, value, (precision, gained, verdict, rate, epochs))


def _row(name: str, value: str, cells: tuple[str, str, str, str, str]) -> str:
    precision, gained, verdict, rate, epochs = cells
    return (
        f"{name:13} {value:12} {precision:>6} {gained:>14} {verdict:12} {rate:>10} {epochs:>7}"
    ).rstrip()


def _options(settings: TuneSettings, sampler: SamplerSettings) -> list[str]:
    """The options of `dslide train` that differ from its defaults or were searched for."""
    network = settings.network
    words = [f"--hidden {n}" for n in network.hidden]
    words += [f"--batch-size {settings.batch_size}", f"--learning-rate {network.learning_rate:g}"]
    if network.dropout:
        words.append(f"--dropout {network.dropout:g}")
    if network.weight_decay:
        words.append(f"--weight-decay {network.weight_decay:g}")
    words.append(f"--sampler {sampler.name}")
    rest = {name: value for name, value in asdict(sampler).items() if name != "name"}
    words += [f"--{name.replace('_', '-')} {v}" for name, v in rest.items() if v is not None]
    return words


def _record(choice: Choice[SamplerSettings]) -> dict[str, Any]:
    """A choice as JSON."""
    outcome = choice.outcome
    return {
        "factor": choice.factor,
        "value": choice.value,
        "settings": asdict(choice.settings),
        "precision_at_1": outcome and outcome.precision,
        "gain": choice.gain and choice.gain[0],
        "standard_error": choice.gain and choice.gain[1],
        "samples": outcome and outcome.samples,
        "seconds": outcome and outcome.seconds,
        "taken": choice.taken,
    }
