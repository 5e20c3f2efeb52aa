"""How messages travel between ranks: the header before each, and when a rank waits in vain.

In an exchange each rank sends one message, any number of bytes, to each other rank. A header of 64
bytes comes before it; integers are little-endian, without gaps:

| bytes | type | content |
| --- | --- | --- |
| 0 to 3 | 4 characters | `DSLX` |
| 4 to 5 | uint16 | version of this protocol: 2 |
| 6 to 7 | uint16 | 0 if the message follows its header at once, 1 if it travels by itself |
| 8 to 15 | uint64 | number of the exchange, counted from 1 by every rank |
| 16 to 23 | uint64 | bytes of the message |
| 24 to 27 | uint32 | CRC-32 of the kind of exchange, as UTF-8 |
| 28 to 63 | 36 characters | the kind's first 36 bytes, filled up with zeros: for error messages |

A message of up to 4 MiB travels with its header, which costs a copy but only one MPI message. A
larger one is sent from where it lies, however large, and its header before it tells the receiver
how much room to make. Both travel under `DATA_TAG` on a duplicate of the communicator; MPI keeps
their order between two ranks. On a second duplicate, under `LEAVING_TAG`, a rank that ends tells
all others: JSON, `{"finished": number of its last whole exchange, "reason": text}`.
"""

import struct
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from tf_dslide.parallel.errors import RankError, named

MAGIC = b"DSLX"
VERSION = 2
HEADER = struct.Struct("<4sHHQQI36s")
DATA_TAG = 1
LEAVING_TAG = 2
# Up to this size a message is copied behind its header.
COPIED_BYTES = 4 << 20
# How long messages of a peer that has left may still be on their way.
_STRAGGLER_SECONDS = 2.0


@dataclass(frozen=True)
class Turn:
    """An exchange as one rank sees it.

    Attributes:
        rank: This rank.
        number: The exchange's number, from 1 on.
        kind: What is exchanged.
    """

    rank: int
    number: int
    kind: str

    @property
    def name(self) -> str:
        """Number and kind, for messages."""
        return f"exchange {self.number} {self.kind!r}"

    def header(self, length: int) -> bytes:
        """The header of a message of so many bytes."""
        kind, apart = self.kind.encode(), length > COPIED_BYTES
        return HEADER.pack(MAGIC, VERSION, apart, self.number, length, zlib.crc32(kind), kind[:36])

    def read(self, peer: int, header: bytes | memoryview) -> tuple[int, bool]:
        """Length of the message behind a header, and whether it travels by itself.

        Raises:
            RankError: `peer` is at another exchange.
        """
        magic, version, apart, number, length, check, kind = HEADER.unpack(header)
        if (magic, version) != (MAGIC, VERSION):
            raise RankError(
                f"rank {peer} speaks {magic!r} version {version}, but rank {self.rank} speaks "
                f"{MAGIC!r} version {VERSION}: install the same tf_dslide on all hosts"
            )
        if (number, check) != (self.number, zlib.crc32(self.kind.encode())):
            other = f"exchange {number} {kind.rstrip(bytes(1)).decode(errors='replace')!r}"
            # The same text on both ranks.
            (low, first), (high, second) = sorted([(self.rank, self.name), (peer, other)])
            raise RankError(
                f"rank {low} is at {first} but rank {high} at {second}: all ranks must do the "
                "same in the same order; look for a condition on the rank, or data that differ"
            )
        return length, bool(apart)

    def require_hope(
        self, awaited: Sequence[int], left: Mapping[int, dict], idle: float, timeout: float
    ) -> None:
        """Checks that waiting is not in vain.

        Args:
            awaited: The ranks waited for.
            left: What the ranks that have left said then.
            idle: Seconds since anything has come.
            timeout: How many are too many.

        Raises:
            RankError: It is.
        """
        for peer in awaited:
            note = left.get(peer)
            # A peer that finished this exchange has sent its messages, and they are on their way.
            if note and (note["finished"] < self.number or idle > _STRAGGLER_SECONDS):
                raise RankError(
                    f"rank {peer} has left ({note['reason']}) after exchange {note['finished']}, "
                    f"but rank {self.rank} waits for it at {self.name}"
                )
        if idle > timeout:
            raise RankError(
                f"rank {self.rank} has waited {timeout:g} s at {self.name} for {named(awaited)}; "
                "are they stuck, or much slower? `timeout` sets how long to wait"
            )
