"""What is saved of a model: its variables, those of its optimizer, and its samplers."""

import hashlib
import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import keras
import tensorflow as tf

from tf_dslide.checkpoints.ranks import CheckpointError
from tf_dslide.checkpoints.shards import shape_of
from tf_dslide.layers import HashedLayer
from tf_dslide.sharding import Shard, axis_of, shard_of


@dataclass(frozen=True)
class Entry:
    """A variable of the model or of its optimizer.

    Attributes:
        key: Its name in the files.
        path: Its name for people.
        variable: The TensorFlow variable, this rank's part.
        shard: Which part; `None` if each rank has all of it.
        axis: The axis that is split, or `None`.
    """

    key: str
    path: str
    variable: tf.Variable
    shard: Shard | None
    axis: int | None

    @property
    def dtype(self) -> str:
        """Its type."""
        return self.variable.dtype.name

    @property
    def shape(self) -> tuple[int, ...]:
        """The whole's."""
        shape = shape_of(self.variable)
        if self.shard is not None and self.axis is not None:
            shape[self.axis] = self.shard.total
        return tuple(shape)


@dataclass(frozen=True)
class SamplerEntry:
    """The sampler of a layer at work.

    Attributes:
        key: Begins the names of its variables in the files.
        layer: The layer.
    """

    key: str
    layer: HashedLayer

    @property
    def selector(self) -> Any:
        """Who chooses the active units; `None` with `AllNeurons`."""
        return self.layer._sampled_weights.selector

    @property
    def units(self) -> tuple[int, int]:
        """Those of this rank."""
        shard = shard_of(self.layer.kernel)
        return (0, int(self.layer.kernel.shape[0])) if shard is None else (shard.begin, shard.end)

    @property
    def variables(self) -> dict[str, tf.Variable]:
        """Tables, their schedule, and whether they are stale, by name in the files."""
        kept = {} if self.selector is None else self.selector.variables
        return {f"{self.key}/{name}": variable for name, variable in kept.items()}

    @property
    def learned(self) -> dict[str, tf.Variable]:
        """What was learned from data, by name in the files."""
        kept = {} if self.selector is None else self.selector.learned
        return {f"{self.key}/{name}": variable for name, variable in kept.items()}

    @property
    def config(self) -> Any:
        """The sampler, as JSON has it."""
        return json.loads(json.dumps(keras.saving.serialize_keras_object(self.layer.sampler)))

    @property
    def schedule(self) -> list[int]:
        """Steps of the layer, and the state of the selector's schedule."""
        state = [] if self.selector is None else self.selector.get_state()
        return [int(self.layer._sampled_weights.step), *map(int, state)]

    def restore_schedule(self, schedule: Sequence[int]) -> None:
        """Sets the schedule alone; the tables are built when they are needed."""
        self.layer._sampled_weights.step.assign(schedule[0])
        if self.selector is None:
            return
        self.selector.invalidate()
        if schedule[1:]:
            self.selector.set_state(list(schedule[1:]))


@dataclass(frozen=True)
class State:
    """All that a training changes.

    Attributes:
        variables: Those of the model.
        optimizer: The optimizer, or `None`.
        slots: Those of the optimizer.
        samplers: Those at work.
    """

    variables: list[Entry]
    optimizer: Any
    slots: list[Entry]
    samplers: list[SamplerEntry]

    @classmethod
    def of(cls, model: keras.Model) -> "State":
        """The state of a model.

        Raises:
            ValueError: It is not built.
        """
        if not model.built or not model.variables:
            raise ValueError(
                f"the model {model.name!r} is not built: call it on an input, or begin it with "
                "keras.Input"
            )
        variables = [
            Entry(f"model/{number}/{v.name}", v.path, v._value, shard_of(v), axis_of(v))
            for number, v in enumerate(model.variables)
        ]
        layers = [layer for layer in model._flatten_layers() if isinstance(layer, HashedLayer)]
        samplers = [SamplerEntry(f"sampler/{i}", layer) for i, layer in enumerate(layers)]
        optimizer = getattr(model, "optimizer", None)
        slots = [] if optimizer is None else _slots_of(optimizer, model)
        return cls(variables, optimizer, slots, samplers)

    @property
    def entries(self) -> list[Entry]:
        """Variables of the model and of the optimizer."""
        return [*self.variables, *self.slots]

    def fingerprint(self) -> str:
        """The same for models of the same variables, however they are split."""
        kinds = [[e.key, e.dtype, e.shape] for e in self.variables]
        return hashlib.sha256(json.dumps(kinds).encode()).hexdigest()[:16]

    def tensors_of(self, first: bool) -> dict[str, tf.Variable]:
        """What a rank writes: the first one also what all have."""
        tensors = {e.key: e.variable for e in self.entries if first or e.shard is not None}
        for sampler in self.samplers:
            tensors.update(sampler.variables)
        return tensors


def _slots_of(optimizer: Any, model: keras.Model) -> list[Entry]:
    if not optimizer.built:
        optimizer.build(model.trainable_variables)
    owners = _owners_of_slots(optimizer)
    return [
        Entry(f"optimizer/{number}", v.path, v._value, shard_of(owner), axis_of(owner))
        for number, v in enumerate(optimizer.variables)
        for owner in [owners.get(id(v))]
    ]


def _owners_of_slots(optimizer: Any) -> dict[int, Any]:
    """The split variables whose slots these are: what a rank keeps of a part is a part likewise.

    Keras' optimizers have a list of slots a kind, one for each variable in order.

    A slot may lack its variable's last axes, as one number a row: all ranks have it where another
    axis is split.

    Raises:
        CheckpointError: There is state of a variable that is split that has another shape.
    """
    # LossScaleOptimizer has another one at work.
    optimizer = getattr(optimizer, "inner_optimizer", optimizer)
    owners = list(optimizer._trainable_variables)
    split: dict[int, Any] = {}
    for name, slots in vars(optimizer).items():
        if name in ("_variables", "_trainable_variables") or not isinstance(slots, list | tuple):
            continue
        for slot, owner in zip(slots, owners, strict=False):
            if not isinstance(slot, keras.Variable) or shard_of(owner) is None:
                continue
            if len(slots) != len(owners) or slot.shape != owner.shape[: max(1, len(slot.shape))]:
                raise CheckpointError(
                    f"{type(optimizer).__name__} keeps {slot.path} of shape {tuple(slot.shape)} "
                    f"for {owner.path} of shape {tuple(owner.shape)}, which is split over ranks: "
                    "such state cannot be saved"
                )
            axis = axis_of(owner)
            if axis is not None and axis < len(slot.shape):
                split[id(slot)] = owner
    return split
