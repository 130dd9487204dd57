"""What the recordings did to single bookies, translated for one machine that answers for all of them.

A recording holds, breaks or stops the bookie with some index of a ledger's ensemble. Which entries that touches follows
from the write set: entry *i* of a ledger lies on the bookies ``(i + k) % ensemble`` for ``k < write quorum``, and is
read from them in this order until one gives it.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

OK = 0
READ_ERROR = -1
DIGEST_MISMATCH = -5
NOT_ENOUGH_BOOKIES = -6
NO_SUCH_LEDGER_ON_BOOKIE = -7
NOT_AVAILABLE = -8
WRITE_ERROR = -12
NO_SUCH_ENTRY = -13
LIMBO = -108

READ_FAULTS = {
    "read_corrupt": DIGEST_MISMATCH,
    "read_short": DIGEST_MISMATCH,
    "read_eio": READ_ERROR,
    "read_no_entry": NO_SUCH_ENTRY,
    "read_no_ledger": NO_SUCH_LEDGER_ON_BOOKIE,
    "read_unknown": LIMBO,
}
SHORT_BYTES = 20
ABSENT = (NO_SUCH_ENTRY, NO_SUCH_LEDGER_ON_BOOKIE)


@dataclass(frozen=True)
class Shape:
    """Of a ledger: what decides which bookies have which entry."""

    ensemble: int = 3
    write_quorum: int = 2
    ack_quorum: int = 2
    deferred: bool = False

    def write_set(self, entry_id: int) -> list[int]:
        return [(entry_id + k) % self.ensemble for k in range(self.write_quorum)]

    def everywhere(self) -> range:
        return range(self.ensemble)


@dataclass
class Bookies:
    total: int = 3
    shapes: dict[int, Shape] = field(default_factory=dict)
    holds: dict[int, tuple[str, frozenset[int] | None]] = field(default_factory=dict)
    faults: list[tuple[int, int | None, str]] = field(default_factory=list)
    stopped: set[tuple[int, int]] = field(default_factory=set)  # (ledger, index)
    all_stopped: bool = False
    read_only: bool = False

    # -- what the recordings do

    def hold(self, ledger: int, mode: str, index: Iterable[int] | int | None) -> None:
        self.holds[ledger] = (mode, None if index is None else frozenset(_indexes(index)))

    def fault(self, ledger: int, kind: str, index: Iterable[int] | int | None) -> None:
        indexes: list[int | None] = [None] if index is None else list(_indexes(index))
        for one in indexes:
            # A bookie is broken in one way at a time.
            self.faults = [
                f
                for f in self.faults
                if not (f[0] == ledger and f[1] == one and f[2].startswith("read_") and kind.startswith("read_"))
            ]
            self.faults.append((ledger, one, kind))

    def stop(self, ledger: int | None, index: Iterable[int] | int | None) -> None:
        if ledger is None:
            self.all_stopped = True
            return
        shape = self.shapes[ledger]
        for one in shape.everywhere() if index is None else _indexes(index):
            self.stopped.add((ledger, one))

    def start(self) -> None:
        self.all_stopped = False
        self.stopped.clear()

    # -- what it means for one machine

    @property
    def available(self) -> int:
        """How many could take a new ledger."""
        if self.read_only or self.all_stopped:
            return 0
        return self.total - len(self.stopped)

    def is_down(self, ledger: int, index: int) -> bool:
        return self.all_stopped or (ledger, index) in self.stopped

    def kinds(self, ledger: int, index: int) -> list[str]:
        return [kind for where, which, kind in self.faults if where == ledger and which in (None, index)]

    def hold_of(self, ledger: int, entry_id: int) -> str | None:
        """``"add"``: not stored; ``"minority"``: stored by too few; ``"ack"``: stored, the answer waits; None."""
        if ledger not in self.holds:
            return None
        mode, indexes = self.holds[ledger]
        shape = self.shapes[ledger]
        write_set = shape.write_set(entry_id)
        free = [index for index in write_set if indexes is not None and index not in indexes]
        if len(free) >= shape.ack_quorum:
            return None
        if mode == "ack":
            return "ack"
        return "minority" if free else "add"

    def add_fault(self, ledger: int, entry_id: int) -> int:
        if self.read_only:
            return NOT_ENOUGH_BOOKIES
        shape = self.shapes[ledger]
        failing = [
            index
            for index in shape.write_set(entry_id)
            if self.is_down(ledger, index) or "add_eio" in self.kinds(ledger, index)
        ]
        if not failing:
            return OK
        if shape.deferred:
            return WRITE_ERROR
        broken = sum(1 for index in shape.everywhere() if self.is_down(ledger, index) or self.kinds(ledger, index))
        return OK if self.total - shape.ensemble >= len(failing) and broken == len(failing) else NOT_ENOUGH_BOOKIES

    def read_fault(self, ledger: int, entry_id: int) -> int:
        answer = OK
        for index in self.shapes[ledger].write_set(entry_id):
            code = self._read_code(ledger, index)
            if code == OK:
                return OK
            if answer == OK or (answer in ABSENT and code not in ABSENT):
                answer = code
        return answer

    def _read_code(self, ledger: int, index: int) -> int:
        if self.is_down(ledger, index):
            return NOT_AVAILABLE
        codes = [READ_FAULTS[kind] for kind in self.kinds(ledger, index) if kind in READ_FAULTS]
        return codes[-1] if codes else OK

    def spoil(self, ledger: int, stored: bytes) -> bytes:
        """What a bookie that spoils entries gives instead of one."""
        if any(where == ledger and kind == "read_short" for where, _, kind in self.faults):
            return stored[:SHORT_BYTES]
        return stored[:-1] + bytes([stored[-1] ^ 1])

    def read_lac_fault(self, ledger: int) -> int:
        """Asking for the LAC goes another way than reading entries: only what spoils the bytes spoils it."""
        codes = []
        for index in self.shapes[ledger].everywhere():
            code = self._read_code(ledger, index)
            if code not in (DIGEST_MISMATCH, NOT_AVAILABLE):
                return OK
            codes.append(code)
        return codes[0]

    def fence_fault(self, ledger: int) -> int:
        codes = [
            NOT_AVAILABLE if self.is_down(ledger, index) else READ_ERROR if "fence_eio" in kinds else OK
            for index in self.shapes[ledger].everywhere()
            for kinds in [self.kinds(ledger, index)]
        ]
        return OK if OK in codes else codes[0]


def _indexes(index: Iterable[int] | int) -> list[int]:
    return [index] if isinstance(index, int) else list(index)
