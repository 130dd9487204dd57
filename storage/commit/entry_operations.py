"""Operations on entries and on the ledger state derived from them."""

from __future__ import annotations

from bookstand.errors import LedgerFencedError, WriteError
from bookstand.storage.commit.operations import ConsumesSpace
from bookstand.storage.format import ledger_state, schema
from bookstand.storage.format.entry_batch import EncodedEntries, encode_entries
from bookstand.storage.format.entry_codec import encode
from bookstand.storage.format.ledger_state import LedgerState

TYPE_CHECKING = False
if TYPE_CHECKING:
    from bookstand.storage.commit.operations import WriteSet
    from bookstand.storage.format.digest import Digest
    from bookstand.storage.format.entry_batch import PayloadSizes


class AddEntries(ConsumesSpace):
    """Add consecutive entries of one ledger that carry the same last-add-confirmed.

    They belong to the ledger created with this ``incarnation``, and are refused if it has been deleted or recreated.
    With ``in_order`` the first entry must follow the last stored one, so a failed add cannot leave a gap.
    ``payloads`` may grow until :meth:`encode`.
    """

    __slots__ = (
        "digest",
        "encoded",
        "first_entry",
        "in_order",
        "incarnation",
        "last_add_confirmed",
        "ledger_id",
        "length_before",
        "master_key",
        "payloads",
        "sizes",
    )

    def __init__(
        self,
        ledger_id: int,
        incarnation: int,
        master_key: bytes,
        digest: Digest,
        first_entry: int,
        last_add_confirmed: int,
        length_before: int,
        payloads: list[bytes],
        in_order: bool,
    ) -> None:
        self.ledger_id = ledger_id
        self.incarnation = incarnation
        self.master_key = master_key
        self.digest = digest
        self.first_entry = first_entry
        self.last_add_confirmed = last_add_confirmed
        self.length_before = length_before
        self.payloads = payloads
        self.in_order = in_order
        self.sizes: PayloadSizes | None = None
        self.encoded: EncodedEntries | None = None

    @property
    def last_entry(self) -> int:
        return self.first_entry + len(self.payloads) - 1

    def encode(self) -> EncodedEntries:
        """Encode keys, headers and digests. First called before the transaction begins, to keep it short."""
        encoded = self.encoded
        if encoded is None:
            encoded = self.encoded = encode_entries(
                self.digest,
                self.ledger_id,
                self.first_entry,
                self.last_add_confirmed,
                self.length_before,
                self.payloads,
                self.sizes,
            )
        return encoded

    def encode_one(self) -> tuple[bytes, bytes]:
        payload = self.payloads[0]
        length = self.length_before + len(payload)
        first = self.first_entry
        stored = encode(self.digest, self.ledger_id, first, self.last_add_confirmed, length, payload)
        return schema.ENTRY_KEY.pack(self.ledger_id, first), stored

    def check(self, ledger: LedgerState | None) -> LedgerState:
        """Return the ledger's state, or raise if it does not accept the entries."""
        if ledger is None or ledger.incarnation != self.incarnation:
            raise LedgerFencedError(f"ledger {self.ledger_id} was deleted and its entries were collected")
        if ledger.master_key != self.master_key:
            ledger_state.authorize(ledger, self.ledger_id, self.master_key)
        if ledger.fenced:
            raise LedgerFencedError(f"entry {self.ledger_id}:{self.first_entry} refused: the ledger is fenced")
        if self.in_order and self.first_entry != ledger.last_entry + 1:
            raise WriteError(
                f"entry {self.ledger_id}:{self.first_entry} refused: the last one stored is {ledger.last_entry}"
            )
        return ledger

    def account(self, ledger: LedgerState) -> None:
        """Update the state for all entries, none of which is stored yet."""
        encoded = self.encode()
        ledger_state.record_added(ledger, self.first_entry, encoded.count, encoded.largest, self.last_add_confirmed)
        if not self.in_order:
            # With ids chosen by the writer, cumulative lengths need not rise with the ids.
            ledger.in_order = False

    def apply(self, staging: WriteSet) -> range:
        ledger = self.check(staging.state(self.ledger_id))
        if self.first_entry > ledger.last_entry:
            self.account(ledger)
            staging.entries.append(self.encode())
        else:
            # As on a bookie, existing entries remain unchanged, and the add is confirmed.
            encoded = self.encode()
            pairs = list(encoded.pairs())
            existing = staging.existing_entries([key for key, _ in pairs])
            fresh = [pair for pair in pairs if pair[0] not in existing]
            ledger_state.record_added(ledger, self.first_entry, len(fresh), encoded.largest, self.last_add_confirmed)
            if fresh:
                staging.entries.append(EncodedEntries(fresh.__iter__, fresh[0][0], len(fresh), encoded.largest))
                extend_contiguous(staging, ledger, self.ledger_id)
        return range(self.first_entry, self.last_entry + 1)

    @property
    def estimated_bytes(self) -> int:
        """Estimate of the map space needed, in bytes."""
        return sum(map(len, self.payloads)) + 200 * len(self.payloads)


def extend_contiguous(staging: WriteSet, ledger: LedgerState, ledger_id: int) -> None:
    """Advance ``unbroken`` after its gap was filled, past all entries stored contiguously after it."""
    # The length of the run is unknown: look up exponentially growing ranges.
    size = 1
    while ledger.unbroken < ledger.last_entry:
        first = ledger.unbroken + 1
        keys = [
            schema.ENTRY_KEY.pack(ledger_id, entry_id)
            for entry_id in range(first, min(first + size, ledger.last_entry + 1))
        ]
        existing = staging.existing_entries(keys)
        if len(existing) < len(keys):
            missing = next(number for number, key in enumerate(keys) if key not in existing)
            ledger.unbroken = first + missing - 1
            return
        ledger.unbroken = first + len(keys) - 1
        size *= 2


class DeleteEntries:
    """Delete up to ``limit`` entries of a ledger without metadata, and bookies' replicas of them.

    The result estimates the number of entries left; 0 means none. Without a limit all are deleted in one step. A batch
    that reuses the ledger id needs that, because key scans do not see staged changes.
    """

    __slots__ = ("ledger_id", "limit")

    def __init__(self, ledger_id: int, limit: int | None = 10_000) -> None:
        self.ledger_id = ledger_id
        self.limit = limit

    def apply(self, staging: WriteSet) -> int:
        if staging.get(schema.LEDGERS, schema.LEDGER_KEY.pack(self.ledger_id)) is not None:
            return 0
        ledger = staging.state(self.ledger_id)
        if ledger is None:
            return 0
        keys = staging.replica_keys(self.ledger_id, self.limit)
        staging.writes.update(((schema.COPIES, key), None) for key in keys if len(key) == schema.COPY_LEDGER.size)
        staging.overrides.update((key, None) for key in keys if len(key) != schema.COPY_LEDGER.size)
        if len(keys) == self.limit:
            return max(1, ledger.count)
        entry_keys = staging.entry_keys(self.ledger_id, self.limit)
        staging.removed_entries += entry_keys
        ledger.count = max(0, ledger.count - len(entry_keys))
        if self.limit is None or len(entry_keys) < self.limit:
            staging.states[self.ledger_id] = None
            if ledger.deleted_at:
                staging.put(schema.META, schema.deletion_key(ledger.deleted_at, self.ledger_id), None)
            return 0
        return max(1, ledger.count)


class Fence:
    """Stop a ledger's writers permanently; the result is the ledger's incarnation.

    With an ``incarnation``, it must still be the ledger created with it. Without one, an unknown ledger is created and
    fenced, as on a bookie.
    """

    __slots__ = ("incarnation", "ledger_id", "master_key")

    def __init__(self, ledger_id: int, master_key: bytes, incarnation: int | None = None) -> None:
        self.ledger_id = ledger_id
        self.master_key = master_key
        self.incarnation = incarnation

    def apply(self, staging: WriteSet) -> int:
        ledger = staging.state(self.ledger_id)
        ledger_state.expect_incarnation(self.incarnation, ledger, self.ledger_id)
        if ledger is None:
            ledger = staging.states[self.ledger_id] = LedgerState(next_incarnation(staging), None)
        ledger_state.authorize(ledger, self.ledger_id, self.master_key)
        ledger.fenced = True
        return ledger.incarnation


class SetExplicitLac:
    """Record a last-add-confirmed that no entry carries yet."""

    __slots__ = ("incarnation", "last_add_confirmed", "ledger_id", "master_key")

    def __init__(self, ledger_id: int, incarnation: int, master_key: bytes, last_add_confirmed: int) -> None:
        self.ledger_id = ledger_id
        self.incarnation = incarnation
        self.master_key = master_key
        self.last_add_confirmed = last_add_confirmed

    def apply(self, staging: WriteSet) -> None:
        ledger = staging.state(self.ledger_id)
        if ledger is None or ledger.incarnation != self.incarnation:
            raise LedgerFencedError(f"ledger {self.ledger_id} was deleted and its entries were collected")
        ledger_state.authorize(ledger, self.ledger_id, self.master_key)
        ledger.explicit_lac = max(ledger.explicit_lac, self.last_add_confirmed)


def next_incarnation(staging: WriteSet) -> int:
    # Incarnations start at 1.
    return staging.next_number(schema.META_NEXT_INCARNATION) + 1
