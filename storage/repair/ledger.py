"""Repair of one ledger: valid entries, losses, and the state and metadata in the new store. Plain values, no I/O.

Rules:

- An entry is valid if its digest is, and if its header has the ids of its key. Others are not copied.
- A lost state is reconstructed from the entries: their number, and the highest last-add-confirmed.
- Lost metadata is reconstructed: closed at the last stored entry, on one bookie, with the digest of the entries. The
  password is preserved if it is empty or was given. Otherwise the metadata has none, so that clients that know it can
  open the ledger.
- A ledger that was open and has lost its last entries is closed where it ended.
- Confirmed entries that are missing read as lost in the new store, not as never written.
"""

from __future__ import annotations

from collections.abc import Sequence

from bookstand.errors import DigestMismatchError
from bookstand.storage.format import entry_codec as layout
from bookstand.storage.format import ledger_state as state
from bookstand.storage.format.digest import Digest, digest_for, master_key
from bookstand.storage.format.ledger_metadata import CLOSED, MADE_UP, LedgerMetadata
from bookstand.storage.format.ledger_state import LedgerState
from bookstand.storage.format.schema import ENTRY_KEY
from bookstand.storage.repair.report import Loss

_PLACEHOLDER_BOOKIE = "bookie-0"
_NOT_FOUND = "not found in the file"
_CANDIDATE_DIGESTS = ("crc32c", "crc32", "hmac")


class LedgerRepair:
    """Repair of one ledger: :meth:`take` the entries in order, then read the results."""

    def __init__(
        self,
        ledger_id: int,
        known: LedgerState | None,
        metadata: LedgerMetadata | None,
        passwords: Sequence[bytes],
        lost_metadata: bool,
    ) -> None:
        self.ledger_id = ledger_id
        self._known = known
        self._metadata = metadata
        self._lost_metadata = lost_metadata
        self._passwords = [b"", *passwords]
        self._digests = self._possible_digests()
        self.unchecked = self._is_unchecked()
        self._found = LedgerState(0, None)
        self._length = 0
        self._rising = True
        self._invalid: dict[int, str] = {}
        self._gaps: list[tuple[int, int]] = []
        self.last_taken = -1
        # The last invalid entry whose key and content agree on its id.
        self._last_certain = -1

    # -- entries -----------------------------------------------------------------------------------------------------

    def take(
        self, entry_id: int, in_tree: bool, in_place: bytes | None, elsewhere: Sequence[bytes]
    ) -> tuple[bytes, int] | None:
        """Return the valid one of the values found under a key, with its last-add-confirmed. None if there is none; the
        reason is recorded. Call in order of id. ``in_tree``: the tree has the key, though its value may be lost."""
        why = "its page cannot be read"
        copies = [] if in_place is None else [in_place]
        # Values after the last known entry were never committed.
        if self._known is None or entry_id <= self._known.last_entry:
            copies += dict.fromkeys(elsewhere)
        valid: dict[bytes, tuple[int, int, int]] = {}
        for stored in copies:
            try:
                valid[stored] = self._decoded(entry_id, stored)
            except DigestMismatchError as damage:
                # The reason follows the name of the entry.
                why = str(damage).partition(": ")[2] or str(damage)
                continue
            if stored is in_place:
                break
        if len(valid) == 1:
            ((stored, decoded),) = valid.items()
            self._count(entry_id, stored, *decoded)
            return stored, decoded[0]
        if copies or in_tree:
            ids = ENTRY_KEY.pack(self.ledger_id, entry_id)
            if any(stored.startswith(ids) for stored in copies):
                self._last_certain = entry_id
            self._invalid[entry_id] = "several versions were found, and the newest is unknown" if valid else why
        return None

    def _decoded(self, entry_id: int, stored: bytes) -> tuple[int, int, int]:
        """Return (last add confirmed, cumulative length, payload size); raise if the entry is invalid."""
        if self.unchecked:
            ledger, entry, _, length = layout.decode_header(stored)
            if (ledger, entry) != (self.ledger_id, entry_id):
                raise DigestMismatchError(f"entry: the stored bytes are those of entry {ledger}:{entry}")
            # The LAC is not verified either, so it must not determine the end of the ledger.
            return -1, length, len(stored) - layout.HEADER_BYTES
        failure = DigestMismatchError(f"entry {self.ledger_id}:{entry_id}: its digest type is unknown")
        for digest, password in self._digests:
            try:
                lac, length, payload = layout.decode(digest, self.ledger_id, entry_id, stored)
            except DigestMismatchError as damage:
                failure = damage if len(self._digests) == 1 else failure
                continue
            # All entries of a ledger have the same digest.
            self._digests = [(digest, password)]
            # A LAC is lower than the entry's id; without a digest it may be damaged.
            return min(lac, entry_id - 1), length, len(payload)
        raise failure

    def _count(self, entry_id: int, stored: bytes, lac: int, length: int, payload_bytes: int) -> None:
        if entry_id > self.last_taken + 1:
            self._gaps.append((self.last_taken + 1, entry_id - 1))
        self.last_taken = entry_id
        state.record_added(self._found, entry_id, 1, len(stored), lac)
        self._rising &= self.unchecked or length >= self._length + payload_bytes
        self._length = max(self._length, length)

    # -- results -----------------------------------------------------------------------------------------------------

    @property
    def end(self) -> int:
        """Last entry that was stored, as far as the remaining data shows."""
        known, metadata = self._known, self._metadata
        candidates = [] if known is None else [known.unbroken, known.known_lac]
        if metadata is not None and metadata.state == CLOSED:
            candidates.append(metadata.last_entry_id)
        end = max([self._found.lac, *candidates])
        # An invalid entry was stored. After the last valid one, however, its id may be damaged, or the gap before it
        # may always have existed.
        if known is None:
            inside = (entry_id for entry_id in self._invalid if entry_id < self.last_taken)
            end = max(end, self._last_certain, max(inside, default=-1))
        while max(end, self.last_taken) + 1 in self._invalid:
            end = max(end, self.last_taken) + 1
        return end

    def losses(self) -> list[Loss]:
        spans = self._lost()
        losses = [Loss("entries", why, self.ledger_id, first, last) for first, last, why in _joined(spans)]
        if self._known is not None:
            more = self._known.count - self._found.count - sum(last - first + 1 for first, last, _ in spans)
            if more > 0:
                losses.append(Loss("entries", f"{more} more were stored; their ids are unknown", self.ledger_id))
        return losses

    @property
    def absent(self) -> int:
        return sum(last - first + 1 for first, last, why in self._lost() if why == _NOT_FOUND)

    def _lost(self) -> list[tuple[int, int, str]]:
        """Lost entries as (first, last, reason), in order of id."""
        invalid = sorted(self._invalid.items())
        spans: list[tuple[int, int, str]] = []
        index = 0
        for first, last in self._missing():
            while index < len(invalid) and invalid[index][0] <= last:
                entry_id, why = invalid[index]
                index += 1
                spans += [(first, entry_id - 1, _NOT_FOUND)] if first < entry_id else []
                spans.append((entry_id, entry_id, why))
                first = entry_id + 1
            spans += [(first, last, _NOT_FOUND)] if first <= last else []
        return [*spans, *((entry_id, entry_id, why) for entry_id, why in invalid[index:])]

    def _missing(self) -> list[tuple[int, int]]:
        end = self.end
        gaps = [(first, min(last, end)) for first, last in self._gaps if first <= end]
        return [*gaps, (self.last_taken + 1, end)] if end > self.last_taken else gaps

    @property
    def has_only_damage(self) -> bool:
        """True if nothing valid is known of the ledger, so that its id may be the damaged part."""
        return self._known is None and self._metadata is None and self.last_taken < 0

    @property
    def existed(self) -> bool:
        """True if the ledger existed, as opposed to a fence of an unknown ledger or an unfinished import."""
        return self._metadata is not None or self._known is None or self._known.digest != "" or self._lost_metadata

    def state(self, incarnation: int) -> LedgerState:
        """State in the new store. ``incarnation`` is used if the ledger has lost its own."""
        known, found, missing = self._known, self._found, self._missing()
        if known is None:
            new = LedgerState(incarnation, self._master_key, self._digest_name)
            new.in_order = self._rising
            new.fenced = self._metadata is None or self._metadata.state != "OPEN"
        else:
            new = known.copy()
            new.deleted_at = 0
            new.digest = known.digest or (self._digest_name if self.existed else "")
        new.count, new.unbroken, new.largest = found.count, found.unbroken, found.largest
        new.last_entry = max(found.last_entry, new.last_entry, missing[-1][1] if missing else -1)
        new.lac = max(found.lac, new.lac, missing[-1][1] if missing else -1)
        return new

    def closed(self) -> LedgerMetadata | None:
        """Metadata of an open ledger that has lost its last entries, closed: recovery could not find its end, so it
        could not be opened. None if the metadata need not change."""
        if self._metadata is None or self._metadata.state == CLOSED or self.end <= self.last_taken:
            return None
        return self._metadata.replace(state=CLOSED, last_entry_id=self.end, length=self._length)

    def metadata(self) -> LedgerMetadata:
        password = self._password
        name = self._digest_name
        with_password = password is not None and name != ""
        last = max(self.last_taken, -1 if self._known is None else self._known.last_entry, self.end)
        return LedgerMetadata(
            self.ledger_id,
            ensemble_size=1,
            write_quorum_size=1,
            ack_quorum_size=1,
            ensembles=[(0, [_PLACEHOLDER_BOOKIE])],
            state=CLOSED,
            last_entry_id=last,
            length=self._length,
            # The oldest format has neither password nor digest: clients that know the password can open it.
            format_version=3 if with_password else 1,
            digest_type=name if with_password else None,
            password=password if with_password else None,
            custom_metadata={MADE_UP: b"closed at the last entry that was stored"} if with_password else {},
        )

    # -- digests and passwords ---------------------------------------------------------------------------------------

    def _possible_digests(self) -> list[tuple[Digest, bytes]]:
        recorded = self._recorded_digest
        key = None if self._known is None else self._known.master_key
        if self._metadata is not None and self._metadata.has_password:
            passwords = [self._metadata.password]
        elif key is not None:
            passwords = [password for password in self._passwords if master_key(password) == key]
        else:
            passwords = self._passwords
        return [
            (digest_for(name, password), password)
            for name in ([recorded] if recorded else _CANDIDATE_DIGESTS)
            for password in (passwords if name == "hmac" else passwords[:1] or [b""])
        ]

    @property
    def _recorded_digest(self) -> str:
        if self._metadata is not None and self._metadata.digest_type is not None:
            return self._metadata.digest_type
        return "" if self._known is None else self._known.digest

    def _is_unchecked(self) -> bool:
        """Return True if the digests cannot be verified, as in the damaged store itself."""
        recorded = self._recorded_digest
        return (recorded == "hmac" and not self._digests) or (recorded == "" and self._known is not None)

    @property
    def _digest_name(self) -> str:
        found = self._digests[0][0].name if len(self._digests) == 1 and not self.unchecked else ""
        return self._recorded_digest or found

    @property
    def _password(self) -> bytes | None:
        if self._metadata is not None and self._metadata.has_password:
            return self._metadata.password
        key = None if self._known is None else self._known.master_key
        if key is not None:
            return next((password for password in self._passwords if master_key(password) == key), None)
        return self._digests[0][1] if len(self._digests) == 1 else None

    @property
    def _master_key(self) -> bytes | None:
        return None if self._password is None else master_key(self._password)


def _joined(spans: list[tuple[int, int, str]]) -> list[tuple[int, int, str]]:
    joined: list[tuple[int, int, str]] = []
    for first, last, why in spans:
        if joined and joined[-1][1] + 1 == first and joined[-1][2] == why:
            joined[-1] = (joined[-1][0], last, why)
        else:
            joined.append((first, last, why))
    return joined
