"""The ranks that save or load together, and how they fail together."""

from collections.abc import Callable
from typing import Any

from tf_dslide.parallel.errors import RankError
from tf_dslide.parallel.lone import LoneCommunicator


class CheckpointError(RankError, ValueError):
    """A checkpoint could not be written, or does not fit; all ranks raise the same one."""


class Ranks:
    """The ranks that save or load together."""

    def __init__(self, strategy: Any) -> None:
        self.communicator = LoneCommunicator() if strategy is None else strategy.communicator
        self.rank, self.size = self.communicator.rank, self.communicator.size
        self.first = self.rank == 0

    def together(self, failed: str, work: Callable[[], Any]) -> list[Any]:
        """The results of all ranks' work, for each rank.

        Raises:
            CheckpointError: A rank's work failed; all ranks raise it with the same words.
        """
        outcome: dict[str, Any] = {}
        try:
            outcome["result"] = work()
        except (OSError, CheckpointError) as error:
            outcome["error"] = str(error)
        outcomes = self.communicator.allgather(outcome)
        errors = {
            rank: outcome["error"] for rank, outcome in enumerate(outcomes) if "error" in outcome
        }
        if errors:
            raise CheckpointError(f"{failed}: {self._listed(errors)}")
        return [outcome["result"] for outcome in outcomes]

    def _listed(self, errors: dict[int, str]) -> str:
        if len(errors) == self.size and len(set(errors.values())) == 1:
            return errors[0]
        return "; ".join(f"rank {rank} of {self.size}: {text}" for rank, text in errors.items())
