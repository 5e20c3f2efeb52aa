"""The run record, schema 1: what each event of a run file holds, and the check of it.

A run file is a text file of JSON lines, one event a line. The classes below are the schema: a
field without a default is a required key, `| None` allows null, and `About` gives the unit, the
meaning and the allowed range. `reports/README.md` says the same for people.
"""

import math
import types
from collections.abc import Mapping
from dataclasses import MISSING, dataclass, fields, is_dataclass
from functools import cache
from numbers import Integral, Real
from typing import Annotated, Any, Literal, TypeVar, Union, get_args, get_origin, get_type_hints

SCHEMA = 1
STATUSES = ("ok", "failed", "out of memory", "timed out", "interrupted", "unavailable")

Scalar = str | int | float | bool | None
Status = Literal["ok", "failed", "out of memory", "timed out", "interrupted", "unavailable"]
BytesSource = Literal["counted", "interface", "computed"]
Shape = TypeVar("Shape")


class RecordError(ValueError):
    """An event that does not fit the schema; the message names the field and what was received."""


@dataclass(frozen=True)
class About:
    """What a field means.

    Args:
        unit: The unit, or "" for texts and lists.
        meaning: One sentence.
        low: The smallest allowed number.
        high: The largest allowed number.
    """

    unit: str
    meaning: str
    low: float = 0.0
    high: float = math.inf


@dataclass(frozen=True)
class Model:
    """The network that was trained."""

    units: Annotated[int, About("neurons", "Outputs: the classes.", low=1)]
    hidden: Annotated[int | None, About("neurons", "Hidden width; null if there is none.")] = None
    parameters: Annotated[int | None, About("numbers", "Trained weights and biases.")] = None


@dataclass(frozen=True)
class Data:
    """The data set."""

    name: Annotated[str, About("", "Name; runs are compared only within one name.")]
    num_features: Annotated[int, About("features", "Width of the input.", low=1)]
    num_labels: Annotated[int, About("labels", "Different labels.", low=1)]
    num_train: Annotated[int, About("samples", "Training samples.")]
    num_test: Annotated[int | None, About("samples", "Test samples.")] = None
    evaluated: Annotated[int | None, About("samples", "Test samples that P@k is taken over.")] = (
        None
    )
    source: Annotated[str, About("", "Where the data is from.")] = ""


@dataclass(frozen=True, kw_only=True)
class RunEvent:
    """Event `run`, the first line: what is trained, on what, where and how."""

    schema: Annotated[int, About("", "Version of this schema: 1.", low=1)] = SCHEMA
    run_id: Annotated[str, About("", "Hexadecimal name of the run, different for each.")]
    time: Annotated[str, About("", "Start, ISO 8601 with time zone.")]
    method: Annotated[str, About("", "Short name of the method, as dslide-lsh.")]
    title: Annotated[str, About("", "The method's name for people.")]
    model: Annotated[Model, About("", "The network that was trained.")]
    data: Annotated[Data, About("", "The data set.")]
    settings: Annotated[dict[str, Scalar], About("", "Settings: free keys, scalar values.")]
    ranks: Annotated[int, About("processes", "Processes that train together.", low=1)]
    hosts: Annotated[list[str], About("", "Host of each rank, or the distinct hosts.")]
    network: Annotated[str, About("", "Network between the hosts, as 1gbit,0.2ms; or local.")]
    environment: Annotated[dict[str, Scalar], About("", "Machine, versions, commit; gpu if any.")]
    seed: Annotated[int | None, About("", "Seed of all random numbers.", low=-math.inf)] = None
    threads_per_rank: Annotated[int | None, About("threads", "Threads of a process.")] = None
    command: Annotated[str, About("", "The command line that made the run.")] = ""
    line: int = 1


@dataclass(frozen=True)
class Measure:
    """Event `measure`: accuracy and loss after some training."""

    step: Annotated[int, About("steps", "Optimizer steps so far.")]
    samples: Annotated[int, About("samples", "Training samples seen so far.")]
    train_seconds: Annotated[float, About("seconds", "Training so far, without evaluation.")]
    epoch: Annotated[float | None, About("epochs", "Passes over the training data so far.")] = None
    loss: Annotated[float | None, About("nats", "Training loss.", low=-math.inf)] = None
    p1: Annotated[float | None, About("fraction", "Precision at 1 on test data.", high=1)] = None
    p3: Annotated[float | None, About("fraction", "Precision at 3 on test data.", high=1)] = None
    p5: Annotated[float | None, About("fraction", "Precision at 5 on test data.", high=1)] = None
    psp5: Annotated[
        float | None, About("fraction", "Propensity-scored precision at 5 on test data.", high=1)
    ] = None
    evaluation_seconds: Annotated[
        float | None, About("seconds", "Duration of this evaluation, not in train_seconds.")
    ] = None
    line: int = 0


@dataclass(frozen=True)
class RankFigures:
    """One rank's figures over the training steps."""

    rank: Annotated[int, About("", "Number of the rank, from 0.")]
    host: Annotated[str | None, About("", "The rank's host.")] = None
    bytes_sent_per_step: Annotated[float | None, About("bytes", "Sent by this rank a step.")] = None
    bytes_source: Annotated[
        BytesSource | None,
        About("", "How bytes are known: counted in the program, interface counters, computed."),
    ] = None
    messages_per_step: Annotated[float | None, About("messages", "Exchanges a step.")] = None
    seconds_computing: Annotated[float | None, About("seconds", "Computing, a step.")] = None
    seconds_waiting: Annotated[float | None, About("seconds", "Waiting for others, a step.")] = None
    peak_mb: Annotated[float | None, About("MB", "Peak resident memory of the process.")] = None


@dataclass(frozen=True)
class StepFigures:
    """Event `steps`, at most one: speed, traffic and memory over the training steps."""

    steps: Annotated[int | None, About("steps", "Steps that the figures are taken over.")] = None
    median_step_seconds: Annotated[float | None, About("seconds", "Median of a step.")] = None
    mean_step_seconds: Annotated[float | None, About("seconds", "Mean of a step.")] = None
    samples_per_second: Annotated[
        float | None, About("samples/second", "All ranks together, over the mean step.")
    ] = None
    epoch_seconds: Annotated[
        float | None, About("seconds", "One pass over the training data, without evaluation.")
    ] = None
    epoch_measured: Annotated[
        bool | None, About("", "true: a whole pass was timed; false: samples by rate.")
    ] = None
    ranks: Annotated[list[RankFigures] | None, About("", "Figures of each rank.")] = None
    line: int = 0


@dataclass(frozen=True)
class End:
    """Event `end`, the last line: how the run ended. Missing if the process died hard."""

    status: Annotated[Status, About("", "How the run ended.")]
    message: Annotated[str, About("", "Why, in words; empty if all went well.")] = ""
    seconds: Annotated[float | None, About("seconds", "Duration of the whole run.")] = None
    line: int = 0


EVENTS: dict[str, type] = {"run": RunEvent, "measure": Measure, "steps": StepFigures, "end": End}


@cache
def schema_of(shape: type) -> dict[str, tuple[Any, About, bool]]:
    """The fields of an event or part: name -> (type, About, required)."""
    hints = get_type_hints(shape, include_extras=True)
    return {
        field.name: (*get_args(hints[field.name])[:2], field.default is MISSING)
        for field in fields(shape)
        if get_origin(hints[field.name]) is Annotated
    }


def build(shape: type[Shape], values: Mapping[str, Any], where: str, strict: bool) -> Shape:
    """Checks an event, or a part of one, and makes an object of it.

    Args:
        shape: One of this module's classes.
        values: The keys and values of a JSON object. NumPy scalars count as numbers.
        where: Name of the object for error messages, as "run.model".
        strict: Whether unknown keys are an error (a writer's slip) or left out (a later schema's).

    Raises:
        RecordError: A key is missing or unknown, or a value has a wrong type or range.
    """
    schema = schema_of(shape)  # type: ignore[arg-type]
    missing = [name for name, (_, _, required) in schema.items() if required and name not in values]
    if missing:
        raise RecordError(f"{where}: missing {_listed(missing)}; received {_listed(values)}")
    unknown = [name for name in values if name not in schema]
    if unknown and strict:
        raise RecordError(f"{where}: unknown {_listed(unknown)}; known are {_listed(schema)}")
    checked = {
        name: _check(values[name], kind, about, f"{where}.{name}", strict)
        for name, (kind, about, _) in schema.items()
        if name in values
    }
    return shape(**checked)


def as_json(value: Any) -> Any:
    """An object of this module as what `json.dumps` takes, without the fields that are ours."""
    if is_dataclass(value) and not isinstance(value, type):
        return {name: as_json(getattr(value, name)) for name in schema_of(type(value))}
    if isinstance(value, list):
        return [as_json(item) for item in value]
    return value


def _check(value: Any, kind: Any, about: About, where: str, strict: bool) -> Any:
    origin = get_origin(kind)
    if origin in (Union, types.UnionType):
        return _check_union(value, kind, about, where, strict)
    if origin is Literal:
        if value not in get_args(kind):
            raise RecordError(f"{where}: {value!r} is none of {_listed(get_args(kind))}")
        return value
    if origin is list:
        if not isinstance(value, list | tuple):
            raise RecordError(f"{where}: expected a list, received {_shown(value)}")
        item = get_args(kind)[0]
        return [_check(v, item, about, f"{where}[{i}]", strict) for i, v in enumerate(value)]
    if origin is dict:
        return _check_free(value, where)
    if is_dataclass(kind):
        if not isinstance(value, Mapping):
            raise RecordError(f"{where}: expected an object, received {_shown(value)}")
        return build(kind, value, where, strict)  # type: ignore[arg-type]
    return _check_plain(value, kind, about, where)


def _check_union(value: Any, kind: Any, about: About, where: str, strict: bool) -> Any:
    if value is None:
        return None
    (inner,) = [part for part in get_args(kind) if part is not type(None)]
    return _check(value, inner, about, where, strict)


def _check_free(value: Any, where: str) -> dict[str, Scalar]:
    if not isinstance(value, Mapping):
        raise RecordError(f"{where}: expected an object, received {_shown(value)}")
    return {str(key): _check_scalar(item, f"{where}.{key}") for key, item in value.items()}


def _check_scalar(value: Any, where: str) -> Scalar:
    if value is None or isinstance(value, str | bool):
        return value
    if isinstance(value, Integral):
        return int(value)
    if isinstance(value, Real):
        return float(value) if math.isfinite(value) else None
    raise RecordError(
        f"{where}: expected a text, a number, true, false or null, received {_shown(value)}"
    )


def _check_plain(value: Any, kind: type, about: About, where: str) -> Any:
    expected = {str: "a text", bool: "true or false", int: "a whole number", float: "a number"}
    accepted = {str: str, bool: bool, int: Integral, float: Real}[kind]
    if not isinstance(value, accepted) or (isinstance(value, bool) and kind is not bool):
        raise RecordError(f"{where}: expected {expected[kind]}, received {_shown(value)}")
    if kind in (str, bool):
        return value
    number = kind(value)
    if not math.isfinite(number):
        raise RecordError(f"{where}: expected a finite number, received {number}")
    if not about.low <= number <= about.high:
        limits = f"at least {about.low:g}" if about.high == math.inf else f"0 to {about.high:g}"
        raise RecordError(f"{where}: expected {limits}, received {number:g}")
    return number


def _listed(names: Any) -> str:
    return ", ".join(repr(name) for name in names) or "nothing"


def _shown(value: Any) -> str:
    text = repr(value)
    return f"{type(value).__name__} {text if len(text) <= 60 else text[:57] + '...'}"
