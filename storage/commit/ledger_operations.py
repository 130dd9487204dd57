"""Operations on ledgers and their metadata."""

from __future__ import annotations

from bookstand.errors import LedgerExistsError, LedgerIdOverflowError, NoSuchLedgerError, StoreDamagedError
from bookstand.storage.commit.entry_operations import next_incarnation
from bookstand.storage.commit.operations import ANY_VERSION, ConsumesSpace, version_conflict
from bookstand.storage.format import schema, sealed_record
from bookstand.storage.format.ledger_state import LedgerState, expect_incarnation

TYPE_CHECKING = False
if TYPE_CHECKING:
    from bookstand.storage.commit.operations import WriteSet


class ReserveLedger:
    """Reserve a ledger id and an incarnation; the result is both. With ``deleted_too`` ids of deleted ledgers are free
    before their entries are collected; the creator must then collect them."""

    __slots__ = ("deleted_too",)

    def __init__(self, deleted_too: bool = False) -> None:
        self.deleted_too = deleted_too

    def apply(self, staging: WriteSet) -> tuple[int, int]:
        return _next_free(staging, self.deleted_too), next_incarnation(staging)


class RestartLedgerIds:
    """Restart ledger ids at 0 if the store has no ledgers; the result is True if it has none."""

    __slots__ = ()

    def apply(self, staging: WriteSet) -> bool:
        if next(staging.ledger_keys(), None) is not None:
            return False
        name = schema.META_NEXT_LEDGER
        staging.put(schema.META, name, sealed_record.seal(name, bytes(schema.COUNTER_BYTES)))
        return True


class CreateLedger(ConsumesSpace):
    """Create a ledger; the result is (ledger id, incarnation). Without reserved ones, the next free ones are used.

    ``home`` is NO_HOME_YET for a ledger that a client of a server creates. Its bookies may have received entries or a
    fence already. These remain, as on a bookie, which does not see ledger metadata.
    """

    __slots__ = ("digest", "home", "incarnation", "ledger_id", "master_key", "metadata")

    def __init__(
        self,
        ledger_id: int | None,
        master_key: bytes | None,
        digest: str,
        metadata: bytes,
        incarnation: int | None = None,
        home: int = 0,
    ) -> None:
        self.home = home
        self.ledger_id = ledger_id
        self.master_key = master_key
        self.digest = digest
        self.metadata = metadata
        self.incarnation = incarnation

    def apply(self, staging: WriteSet) -> tuple[int, int]:
        ledger_id = _next_free(staging) if self.ledger_id is None else self.ledger_id
        key = schema.LEDGER_KEY.pack(ledger_id)
        if staging.get(schema.LEDGERS, key) is not None:
            raise LedgerExistsError(f"ledger {ledger_id} exists")
        leftover = staging.state(ledger_id)
        if leftover is not None and leftover.home and self.home and not leftover.deleted_at:
            leftover.digest = self.digest
            staging.put(schema.LEDGERS, key, sealed_record.seal_versioned(key, 0, self.metadata))
            return ledger_id, leftover.incarnation
        if leftover is not None and leftover.count:
            raise EntriesNotCollectedError(f"ledger {ledger_id} was deleted, but its entries are not collected yet")
        incarnation = next_incarnation(staging) if self.incarnation is None else self.incarnation
        if leftover is not None and leftover.deleted_at:
            staging.put(schema.META, schema.deletion_key(leftover.deleted_at, ledger_id), None)
        staging.states[ledger_id] = LedgerState(incarnation, self.master_key, self.digest, self.home)
        staging.put(schema.LEDGERS, key, sealed_record.seal_versioned(key, 0, self.metadata))
        return ledger_id, incarnation


class EntriesNotCollectedError(LedgerExistsError):
    """The id belongs to a deleted ledger whose entries remain: collect them, then create the ledger again."""


class UpdateLedger:
    """Replace a ledger's metadata if it has the expected version; the result is the new version.

    With an ``incarnation`` it must also still be the ledger created with it.
    """

    __slots__ = ("expected_version", "incarnation", "ledger_id", "metadata")

    def __init__(
        self, ledger_id: int, metadata: bytes, expected_version: int | None, incarnation: int | None = None
    ) -> None:
        self.ledger_id = ledger_id
        self.metadata = metadata
        self.expected_version = expected_version
        self.incarnation = incarnation

    def apply(self, staging: WriteSet) -> int:
        key = schema.LEDGER_KEY.pack(self.ledger_id)
        if self.incarnation is not None:
            expect_incarnation(self.incarnation, staging.state(self.ledger_id), self.ledger_id)
        version = _expect_ledger(staging, key, self.ledger_id, self.expected_version) + 1
        staging.put(schema.LEDGERS, key, sealed_record.seal_versioned(key, version, self.metadata))
        return version


class DeleteLedger:
    """Delete a ledger's metadata. Its entries remain until they are collected, as on a bookie. If any version is
    accepted, metadata and state need not be readable."""

    __slots__ = ("expected_version", "ledger_id", "now")

    def __init__(self, ledger_id: int, now: int, expected_version: int | None = ANY_VERSION) -> None:
        self.ledger_id = ledger_id
        self.now = now
        self.expected_version = expected_version

    def apply(self, staging: WriteSet) -> None:
        key = schema.LEDGER_KEY.pack(self.ledger_id)
        if self.expected_version is not ANY_VERSION or staging.get(schema.LEDGERS, key) is None:
            _expect_ledger(staging, key, self.ledger_id, self.expected_version)
        staging.put(schema.LEDGERS, key, None)
        try:
            ledger = staging.state(self.ledger_id)
        except StoreDamagedError:
            # Replace the damaged state, so that the entries can be collected.
            ledger = staging.states[self.ledger_id] = LedgerState(next_incarnation(staging), None)
        if ledger is not None:
            ledger.deleted_at = max(1, self.now)
            due = schema.deletion_key(ledger.deleted_at, self.ledger_id)
            staging.put(schema.META, due, sealed_record.seal(due, b""))


def _next_free(staging: WriteSet, deleted_too: bool = False) -> int:
    while True:
        ledger_id = staging.next_number(schema.META_NEXT_LEDGER)
        if ledger_id > schema.MAX_LEDGER_ID:
            raise LedgerIdOverflowError("the store has no ledger ids left")
        key = schema.LEDGER_KEY.pack(ledger_id)
        if staging.get(schema.LEDGERS, key) is not None:
            continue
        state = staging.state(ledger_id)
        if state is None or (deleted_too and state.deleted_at):
            return ledger_id


def _expect_ledger(staging: WriteSet, key: bytes, ledger_id: int, expected_version: int | None) -> int:
    found = staging.versioned(schema.LEDGERS, key)
    if found is None:
        raise NoSuchLedgerError(f"ledger {ledger_id} does not exist")
    if expected_version is not ANY_VERSION and expected_version != found[1]:
        raise version_conflict(f"metadata of ledger {ledger_id}", found[1], expected_version)
    return found[1]
