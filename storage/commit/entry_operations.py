"""Operations on entries, and on what a ledger's state says of them."""

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
    """Consecutive entries of one ledger that carry the same last-add-confirmed.

    They are those of the writer that created the ledger with this ``incarnation``: refused where the ledger is gone or
    was created anew. ``in_order`` says that the first of them must follow the last one stored, so that a failed add can
    never leave a hole behind it. ``payloads`` may grow until :meth:`encode`, which makes ``keys`` and ``stored``.
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
        # Of the payloads, where they are known beforehand.
        self.sizes: PayloadSizes | None = None
        self.encoded: EncodedEntries | None = None

    @property
    def last_entry(self) -> int:
        return self.first_entry + len(self.payloads) - 1

    def encode(self) -> EncodedEntries:
        """Make keys, headers and digests; called first before the transaction begins, so that it is short."""
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
        """Key and stored bytes of a lone entry."""
        payload = self.payloads[0]
        length = self.length_before + len(payload)
        first = self.first_entry
        stored = encode(self.digest, self.ledger_id, first, self.last_add_confirmed, length, payload)
        return schema.ENTRY_KEY.pack(self.ledger_id, first), stored

    def admit(self, ledger: LedgerState | None) -> LedgerState:
        """The ledger's state, if it takes the entries."""
        if ledger is None or ledger.incarnation != self.incarnation:
            raise LedgerFencedError(f"ledger {self.ledger_id} was deleted and its entries collected; it takes no more")
        if ledger.master_key != self.master_key:
            ledger_state.authorize(ledger, self.ledger_id, self.master_key)
        if ledger.fenced:
            raise LedgerFencedError(f"entry {self.ledger_id}:{self.first_entry} refused: the ledger is fenced")
        if self.in_order and self.first_entry != ledger.last_entry + 1:
            raise WriteError(
                f"entry {self.ledger_id}:{self.first_entry} refused: the last one stored is {ledger.last_entry}"
            )
        return ledger

    def count_in(self, ledger: LedgerState) -> None:
        """The state with all of the entries, none of which is there yet."""
        encoded = self.encode()
        ledger_state.added(ledger, self.first_entry, encoded.count, encoded.largest, self.last_add_confirmed)
        if not self.in_order:
            # Where ids are chosen, lengths need not rise with them.
            ledger.in_order = False

    def apply(self, staging: WriteSet) -> range:
        ledger = self.admit(staging.state(self.ledger_id))
        if self.first_entry > ledger.last_entry:
            self.count_in(ledger)
            staging.entries.append(self.encode())
        else:
            # As on a bookie, what is there already stays, and the add is confirmed.
            encoded = self.encode()
            pairs = list(encoded.pairs())
            there = staging.entries_among([key for key, _ in pairs])
            fresh = [pair for pair in pairs if pair[0] not in there]
            ledger_state.added(ledger, self.first_entry, len(fresh), encoded.largest, self.last_add_confirmed)
            if fresh:
                staging.entries.append(EncodedEntries(fresh.__iter__, fresh[0][0], len(fresh), encoded.largest))
                extend_contiguous(staging, ledger, self.ledger_id)
        return range(self.first_entry, self.last_entry + 1)

    @property
    def room(self) -> int:
        """About how many bytes of the map it takes."""
        return sum(map(len, self.payloads)) + 200 * len(self.payloads)


def extend_contiguous(staging: WriteSet, ledger: LedgerState, ledger_id: int) -> None:
    """Where the gap that began behind ``unbroken`` is filled, what was stored beyond it counts as well."""
    # How far that is nobody knows: twice as far is looked each time.
    looked = 1
    while ledger.unbroken < ledger.last_entry:
        first = ledger.unbroken + 1
        wanted = [
            schema.ENTRY_KEY.pack(ledger_id, entry_id)
            for entry_id in range(first, min(first + looked, ledger.last_entry + 1))
        ]
        there = staging.entries_among(wanted)
        if len(there) < len(wanted):
            missing = next(number for number, key in enumerate(wanted) if key not in there)
            ledger.unbroken = first + missing - 1
            return
        ledger.unbroken = first + len(wanted) - 1
        looked *= 2


class DeleteEntries:
    """Remove up to ``limit`` entries of a ledger that has no metadata any more, and bookies' copies with them; result:
    how many are left to do. Without a limit all go at once, which another change of the same commit needs: what is
    staged is not seen when keys are looked up."""

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
        marks = staging.copy_keys(self.ledger_id, self.limit)
        staging.writes.update(((schema.COPIES, key), None) for key in marks if len(key) == schema.COPY_LEDGER.size)
        staging.marks.update((key, None) for key in marks if len(key) != schema.COPY_LEDGER.size)
        if len(marks) == self.limit:
            return max(1, ledger.count)
        doomed = staging.entry_keys(self.ledger_id, self.limit)
        staging.removed_entries += doomed
        ledger.count = max(0, ledger.count - len(doomed))
        if self.limit is None or len(doomed) < self.limit:
            staging.states[self.ledger_id] = None
            if ledger.deleted_at:
                staging.put(schema.META, schema.deletion_key(ledger.deleted_at, self.ledger_id), None)
            return 0
        return max(1, ledger.count)


class Fence:
    """Stop a ledger's writers for good; result: the ledger's incarnation.

    With an ``incarnation`` it must still be the ledger that was created with it. Without one, a bookie that is asked to
    fence a ledger it never saw makes it first; so do we.
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
            raise LedgerFencedError(f"ledger {self.ledger_id} was deleted and its entries collected")
        ledger_state.authorize(ledger, self.ledger_id, self.master_key)
        ledger.explicit_lac = max(ledger.explicit_lac, self.last_add_confirmed)


def next_incarnation(staging: WriteSet) -> int:
    # From 1 on.
    return staging.next_number(schema.META_NEXT_INCARNATION) + 1
