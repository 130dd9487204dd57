"""Operations that restore ledgers from another store: entries byte for byte, metadata and state unchanged.

The entries come first, in several commits if needed. The commit that writes the metadata creates the ledger. Until then
it has a state and entries, but no metadata: it cannot be opened, and its id is not given to another ledger.
"""

from __future__ import annotations

from itertools import pairwise

from bookstand.errors import IllegalOperationError, LedgerExistsError
from bookstand.storage.format import ledger_state as state
from bookstand.storage.format import schema, sealed_record
from bookstand.storage.format.entry_batch import EncodedEntries
from bookstand.storage.format.ledger_state import LedgerState

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence

    from bookstand.storage.commit.operations import WriteSet


class RestoreEntries:
    """Restore stored entries of one ledger, in ascending order of id, possibly with gaps.

    ``after`` is the last entry restored before, -1 for none; refused if that is not so.
    """

    __slots__ = ("after", "entry_ids", "lac", "ledger_id", "stored")

    def __init__(self, ledger_id: int, after: int, entry_ids: Sequence[int], stored: Sequence[bytes], lac: int) -> None:
        self.ledger_id = ledger_id
        self.after = after
        self.entry_ids = entry_ids
        self.stored = stored
        self.lac = lac

    def apply(self, staging: WriteSet) -> None:
        ledger = restoring_state(staging, self.ledger_id)
        if ledger.last_entry != self.after:
            raise IllegalOperationError(
                f"ledger {self.ledger_id} has entries up to {ledger.last_entry}, not up to {self.after}"
            )
        largest = max(map(len, self.stored))
        for first, last in runs(self.entry_ids):
            state.record_added(ledger, first, last - first + 1, largest, self.lac)
        entry_keys = [schema.ENTRY_KEY.pack(self.ledger_id, entry_id) for entry_id in self.entry_ids]
        pairs = list(zip(entry_keys, self.stored, strict=True))
        staging.entries.append(EncodedEntries(pairs.__iter__, entry_keys[0], len(pairs), largest))


class RestoreLedger:
    """Restore the metadata of a ledger whose entries have been restored, and its bookies' state."""

    __slots__ = ("digest", "explicit_lac", "fenced", "in_order", "ledger_id", "master_key", "metadata")

    def __init__(
        self,
        ledger_id: int,
        metadata: bytes,
        *,
        master_key: bytes | None,
        digest: str,
        fenced: bool,
        explicit_lac: int,
        in_order: bool,
    ) -> None:
        self.ledger_id = ledger_id
        self.metadata = metadata
        self.master_key = master_key
        self.digest = digest
        self.fenced = fenced
        self.explicit_lac = explicit_lac
        # True if cumulative lengths rise with the ids.
        self.in_order = in_order

    def apply(self, staging: WriteSet) -> None:
        ledger = restoring_state(staging, self.ledger_id)
        self.update_state(ledger)
        key = schema.LEDGER_KEY.pack(self.ledger_id)
        staging.put(schema.LEDGERS, key, sealed_record.seal_versioned(key, 0, self.metadata))

    def update_state(self, ledger: LedgerState) -> None:
        """Set the parts of the ledger's state that do not follow from its entries."""
        ledger.master_key = self.master_key
        ledger.digest = self.digest
        ledger.fenced = self.fenced
        ledger.explicit_lac = self.explicit_lac
        ledger.in_order &= self.in_order


class RestoreState:
    """Restore the state of a ledger whose entries, if any, have been restored."""

    __slots__ = ("ledger_id", "state")

    def __init__(self, ledger_id: int, state: LedgerState) -> None:
        self.ledger_id = ledger_id
        self.state = state

    def apply(self, staging: WriteSet) -> None:
        staging.states[self.ledger_id] = self.state


class RestoreVersioned:
    __slots__ = ("database", "key", "value", "version")

    def __init__(self, database: bytes, key: bytes, value: bytes, version: int) -> None:
        self.database = database
        self.key = key
        self.value = value
        self.version = version

    def apply(self, staging: WriteSet) -> None:
        staging.put(self.database, self.key, sealed_record.seal_versioned(self.key, self.version, self.value))


class RestoreSealed:
    """Restore the body of a sealed record of the store or of a server."""

    __slots__ = ("body", "database", "key")

    def __init__(self, database: bytes, key: bytes, body: bytes) -> None:
        self.database = database
        self.key = key
        self.body = body

    def apply(self, staging: WriteSet) -> None:
        staging.put(self.database, self.key, sealed_record.seal(self.key, self.body))


class RestoreOverride:
    __slots__ = ("key", "override")

    def __init__(self, key: bytes, override: bytes) -> None:
        self.key = key
        self.override = override

    def apply(self, staging: WriteSet) -> None:
        staging.overrides[self.key] = self.override


class RaiseCounter:
    __slots__ = ("name", "number")

    def __init__(self, name: bytes, number: int) -> None:
        self.name = name
        self.number = number

    def apply(self, staging: WriteSet) -> None:
        following = max(staging.next_number(self.name), self.number)
        staging.put(
            schema.META, self.name, sealed_record.seal(self.name, following.to_bytes(schema.COUNTER_BYTES, "big"))
        )


class RaiseNextLedger(RaiseCounter):
    __slots__ = ()

    def __init__(self, ledger_id: int) -> None:
        super().__init__(schema.META_NEXT_LEDGER, ledger_id)


def restoring_state(staging: WriteSet, ledger_id: int) -> LedgerState:
    """State of a ledger that has no metadata yet."""
    if staging.get(schema.LEDGERS, schema.LEDGER_KEY.pack(ledger_id)) is not None:
        raise LedgerExistsError(f"ledger {ledger_id} exists")
    ledger = staging.state(ledger_id)
    if ledger is not None and ledger.deleted_at:
        raise LedgerExistsError(f"ledger {ledger_id} was deleted, but its entries are not collected yet")
    if ledger is None or not ledger.count:
        # A state without entries was created by a fence before the ledger existed.
        incarnation = staging.next_number(schema.META_NEXT_INCARNATION) + 1 if ledger is None else ledger.incarnation
        ledger = staging.states[ledger_id] = LedgerState(incarnation, None)
    return ledger


def runs(entry_ids: Sequence[int]) -> list[tuple[int, int]]:
    """Contiguous runs of ascending ids, as (first, last)."""
    if not entry_ids:
        return []
    gaps = [(before, after) for before, after in pairwise(entry_ids) if after != before + 1]
    firsts = [entry_ids[0], *(after for _, after in gaps)]
    return list(zip(firsts, [*(before for before, _ in gaps), entry_ids[-1]], strict=True))
