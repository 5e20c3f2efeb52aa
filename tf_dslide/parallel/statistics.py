"""What the ranks of a job send each other: bytes, messages and waiting, by kind of exchange."""

from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields


@dataclass
class Counts:
    """What one rank sent, received and waited for.

    Attributes:
        exchanges: Exchanges that this rank took part in.
        messages_sent: Messages handed to MPI, to all peers together; two for one above 4 MiB.
        bytes_sent: Bytes of these, 64 bytes of header a message among them, without what MPI and
            the network add. The rank's own message is never sent and not counted.
        bytes_received: The same of the messages received.
        seconds_waiting: Seconds from when the messages were handed to MPI until all had come in.
    """

    exchanges: int = 0
    messages_sent: int = 0
    bytes_sent: int = 0
    bytes_received: int = 0
    seconds_waiting: float = 0.0

    def add(self, other: "Counts") -> None:
        """Adds another count to this one."""
        self.exchanges += other.exchanges
        self.messages_sent += other.messages_sent
        self.bytes_sent += other.bytes_sent
        self.bytes_received += other.bytes_received
        self.seconds_waiting += other.seconds_waiting


def _sum(counts: Mapping[str, Counts]) -> Counts:
    total = Counts()
    for count in counts.values():
        total.add(count)
    return total


class Statistics:
    """Counts by kind of exchange, of each step and in total, of one rank.

    Attributes:
        steps: Number of steps that were closed.
        total: Counts by kind since the start.
        last_step: Counts by kind of the step that was closed last.

    Example:
    >>> from tf_dslide.parallel.statistics import Counts, Statistics
    >>> statistics = Statistics()
    >>> statistics.add("hidden", Counts(exchanges=1, messages_sent=3, bytes_sent=3_000))
    >>> statistics.end_step()["hidden"].bytes_sent
    3000
    >>> statistics.steps, statistics.total["hidden"].messages_sent
    (1, 3)
    """

    def __init__(self) -> None:
        self.reset()

    def reset(self) -> None:
        """Forgets everything, for example what the start of a job sent."""
        self.steps = 0
        self.total: dict[str, Counts] = {}
        self.last_step: dict[str, Counts] = {}
        self._open: dict[str, Counts] = {}
        self._in_steps = Counts()

    def add(self, kind: str, counts: Counts) -> None:
        """Adds what one exchange sent, received and waited for."""
        self.total.setdefault(kind, Counts()).add(counts)
        self._open.setdefault(kind, Counts()).add(counts)

    def end_step(self) -> dict[str, Counts]:
        """Closes a step; returns the counts by kind since the step before was closed."""
        self.last_step, self._open = self._open, {}
        self._in_steps.add(_sum(self.last_step))
        self.steps += 1
        return self.last_step

    def as_dict(self) -> dict:
        """All counts as plain numbers, fit for JSON."""
        return {
            "steps": self.steps,
            "total": {kind: asdict(counts) for kind, counts in self.total.items()},
            "last_step": {kind: asdict(counts) for kind, counts in self.last_step.items()},
            "mean_step": {
                field.name: getattr(self._in_steps, field.name) / self.steps
                for field in fields(Counts)
            }
            if self.steps
            else {},
        }

    def table(self) -> str:
        """Totals by kind and the mean of the closed steps, as text."""
        rows: list[tuple[str, ...]] = [
            ("kind", "exchanges", "messages", "MB sent", "MB received", "s waiting")
        ]
        rows += [_row(kind, counts, 1, ".3f") for kind, counts in self.total.items()]
        rows.append(_row("all", _sum(self.total), 1, ".3f"))
        if self.steps:
            rows.append(_row("mean step", self._in_steps, self.steps, ".6f"))
        widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
        return "\n".join(
            "  ".join(
                [row[0].ljust(widths[0])]
                + [cell.rjust(width) for cell, width in zip(row[1:], widths[1:], strict=True)]
            )
            for row in rows
        )


def _row(name: str, counts: Counts, steps: int, form: str) -> tuple[str, ...]:
    return (
        name,
        f"{counts.exchanges / steps:,g}",
        f"{counts.messages_sent / steps:,g}",
        f"{counts.bytes_sent / steps / 1e6:,{form}}",
        f"{counts.bytes_received / steps / 1e6:,{form}}",
        f"{counts.seconds_waiting / steps:,{form}}",
    )
