"""What becomes of one ledger of a damaged store: which of its entries are right, what is missing, and which state and
metadata it has in the new one. Plain values, no I/O.

The rules, where something is lost:

- An entry is right if its digest is, and if it says that it is the one that it is stored as. Others are not copied.
- Without its state a ledger is known by its entries: how many there are, and the highest last-add-confirmed.
- Without its metadata it is made anew: closed at the last entry that was stored, on one bookie, with the digest that
  its entries have. Its password is kept if it is empty or was given; else anybody who knows it gets in.
- A ledger that was open and has lost its last entries is closed where it ended.
- What was confirmed and is not there reads as lost in the new store, and not as never written.
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

_MADE_UP_HOLDER = "bookie-0"
_NOWHERE = "nowhere in the file"
_UNKNOWN = ("crc32c", "crc32", "hmac")


class LedgerRepair:
    """Take the entries in their order, then ask."""

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
        self._words = [b"", *passwords]
        self._digests = self._possible_digests()
        self.unchecked = self._is_unchecked()
        self._found = LedgerState(0, None)
        self._length = 0
        self._rising = True
        self._wrong: dict[int, str] = {}
        self._gaps: list[tuple[int, int]] = []
        self.behind = -1
        # The last one of those that are wrong, and of which both key and content say which they are.
        self._surely = -1

    # -- entries -----------------------------------------------------------------------------------------------------

    def take(
        self, entry_id: int, is_there: bool, in_place: bytes | None, elsewhere: Sequence[bytes]
    ) -> tuple[bytes, int] | None:
        """The right one among what was found under its key, with the last-add-confirmed that it carries; None, and why
        is remembered, if there is none. Ids ascend. ``is_there``: its tree has it, though its value may be lost."""
        why = "its page is not to be had"
        copies = [] if in_place is None else [in_place]
        # Behind the last entry that is known of there is nothing but what never was committed.
        if self._known is None or entry_id <= self._known.last_entry:
            copies += dict.fromkeys(elsewhere)
        right: dict[bytes, tuple[int, int, int]] = {}
        for stored in copies:
            try:
                right[stored] = self._decoded(entry_id, stored)
            except DigestMismatchError as damage:
                # Which entry it is of, stands before it.
                why = str(damage).partition(": ")[2] or str(damage)
                continue
            if stored is in_place:
                break
        if len(right) == 1:
            ((stored, told),) = right.items()
            self._count(entry_id, stored, *told)
            return stored, told[0]
        if copies or is_there:
            says = ENTRY_KEY.pack(self.ledger_id, entry_id)
            if any(stored.startswith(says) for stored in copies):
                self._surely = entry_id
            self._wrong[entry_id] = "several are found, and which is the last is not known" if right else why
        return None

    def _decoded(self, entry_id: int, stored: bytes) -> tuple[int, int, int]:
        """(last add confirmed, cumulative length, bytes of payload)."""
        if self.unchecked:
            ledger, entry, _, length = layout.decode_header(stored)
            if (ledger, entry) != (self.ledger_id, entry_id):
                raise DigestMismatchError(f"entry: the stored bytes are those of entry {ledger}:{entry}")
            # None of this is checked, and no end may come of it.
            return -1, length, len(stored) - layout.HEADER_BYTES
        failure = DigestMismatchError(f"entry {self.ledger_id}:{entry_id}: which digest it has is not known")
        for digest, word in self._digests:
            try:
                lac, length, payload = layout.decode(digest, self.ledger_id, entry_id, stored)
            except DigestMismatchError as damage:
                failure = damage if len(self._digests) == 1 else failure
                continue
            # That of one is that of all.
            self._digests = [(digest, word)]
            # What an entry confirms came before it; without a digest that may be damaged.
            return min(lac, entry_id - 1), length, len(payload)
        raise failure

    def _count(self, entry_id: int, stored: bytes, lac: int, length: int, payload_bytes: int) -> None:
        if entry_id > self.behind + 1:
            self._gaps.append((self.behind + 1, entry_id - 1))
        self.behind = entry_id
        state.record_added(self._found, entry_id, 1, len(stored), lac)
        self._rising &= self.unchecked or length >= self._length + payload_bytes
        self._length = max(self._length, length)

    # -- what is to be written ---------------------------------------------------------------------------------------

    @property
    def end(self) -> int:
        """All entries up to there were stored, as far as anything that is left tells."""
        known, metadata = self._known, self._metadata
        told = [] if known is None else [known.unbroken, known.known_lac]
        if metadata is not None and metadata.state == CLOSED:
            told.append(metadata.last_entry_id)
        end = max([self._found.lac, *told])
        # What is wrong was stored all the same. Behind a gap, its id may be what is wrong, or the gap was always there.
        if known is None:
            end = max(end, self._surely)
        while max(end, self.behind) + 1 in self._wrong:
            end = max(end, self.behind) + 1
        return end

    def losses(self) -> list[Loss]:
        spans = self._lost()
        losses = [Loss("entries", why, self.ledger_id, first, last) for first, last, why in _joined(spans)]
        if self._known is not None:
            more = self._known.count - self._found.count - sum(last - first + 1 for first, last, _ in spans)
            if more > 0:
                losses.append(Loss("entries", f"{more} more were stored; which is not known", self.ledger_id))
        return losses

    @property
    def absent(self) -> int:
        """How many of those that are lost are nowhere in the file."""
        return sum(last - first + 1 for first, last, why in self._lost() if why == _NOWHERE)

    def _lost(self) -> list[tuple[int, int, str]]:
        """First, last, and why, by their ids."""
        wrong = sorted(self._wrong.items())
        spans: list[tuple[int, int, str]] = []
        place = 0
        for first, last in self._missing():
            while place < len(wrong) and wrong[place][0] <= last:
                entry_id, why = wrong[place]
                place += 1
                spans += [(first, entry_id - 1, _NOWHERE)] if first < entry_id else []
                spans.append((entry_id, entry_id, why))
                first = entry_id + 1
            spans += [(first, last, _NOWHERE)] if first <= last else []
        # What is wrong behind the end.
        return [*spans, *((entry_id, entry_id, why) for entry_id, why in wrong[place:])]

    def _missing(self) -> list[tuple[int, int]]:
        end = self.end
        gaps = [(first, min(last, end)) for first, last in self._gaps if first <= end]
        return [*gaps, (self.behind + 1, end)] if end > self.behind else gaps

    @property
    def is_nothing_but_damage(self) -> bool:
        """Then its id may be what is damaged."""
        return self._known is None and self._metadata is None and self.behind < 0

    @property
    def is_known(self) -> bool:
        """Whether there was such a ledger, and it was more than a fence or an import that has not come to its end."""
        return self._metadata is not None or self._known is None or self._known.digest != "" or self._lost_metadata

    def state(self, incarnation: int) -> LedgerState:
        """``incarnation`` is for a ledger that has lost its own."""
        known, found, missing = self._known, self._found, self._missing()
        if known is None:
            new = LedgerState(incarnation, self._master_key, self._digest_name)
            new.in_order = self._rising
            new.fenced = self._metadata is None or self._metadata.state != "OPEN"
        else:
            new = known.copy()
            new.deleted_at = 0
            new.digest = known.digest or (self._digest_name if self.is_known else "")
        new.count, new.unbroken, new.largest = found.count, found.unbroken, found.largest
        new.last_entry = max(found.last_entry, new.last_entry, missing[-1][1] if missing else -1)
        new.lac = max(found.lac, new.lac, missing[-1][1] if missing else -1)
        return new

    def closed(self) -> LedgerMetadata | None:
        """The metadata of a ledger that was open and has lost its last entries: nobody could find its end any more, and
        so nobody could open it. None if there is nothing to change."""
        if self._metadata is None or self._metadata.state == CLOSED or self.end <= self.behind:
            return None
        return self._metadata.replace(state=CLOSED, last_entry_id=self.end, length=self._length)

    def metadata(self) -> LedgerMetadata:
        """Made up."""
        password = self._password
        name = self._digest_name
        with_password = password is not None and name != ""
        last = max(self.behind, -1 if self._known is None else self._known.last_entry, self.end)
        return LedgerMetadata(
            self.ledger_id,
            ensemble_size=1,
            write_quorum_size=1,
            ack_quorum_size=1,
            ensembles=[(0, [_MADE_UP_HOLDER])],
            state=CLOSED,
            last_entry_id=last,
            length=self._length,
            # The oldest format has neither password nor digest: it lets everyone who knows the password in.
            format_version=3 if with_password else 1,
            digest_type=name if with_password else None,
            password=password if with_password else None,
            custom_metadata={MADE_UP: b"closed at the last entry that was stored"} if with_password else {},
        )

    # -- digests and passwords ---------------------------------------------------------------------------------------

    def _possible_digests(self) -> list[tuple[Digest, bytes]]:
        """Each with the password that goes with it."""
        told = self._told_digest
        key = None if self._known is None else self._known.master_key
        if self._metadata is not None and self._metadata.has_password:
            words = [self._metadata.password]
        elif key is not None:
            words = [word for word in self._words if master_key(word) == key]
        else:
            words = self._words
        return [
            (digest_for(name, word), word)
            for name in ([told] if told else _UNKNOWN)
            for word in (words if name == "hmac" else words[:1] or [b""])
        ]

    @property
    def _told_digest(self) -> str:
        if self._metadata is not None and self._metadata.digest_type is not None:
            return self._metadata.digest_type
        return "" if self._known is None else self._known.digest

    def _is_unchecked(self) -> bool:
        """Where the store itself could not check them, either."""
        told = self._told_digest
        return (told == "hmac" and not self._digests) or (told == "" and self._known is not None)

    @property
    def _digest_name(self) -> str:
        found = self._digests[0][0].name if len(self._digests) == 1 and not self.unchecked else ""
        return self._told_digest or found

    @property
    def _password(self) -> bytes | None:
        if self._metadata is not None and self._metadata.has_password:
            return self._metadata.password
        key = None if self._known is None else self._known.master_key
        if key is not None:
            return next((word for word in self._words if master_key(word) == key), None)
        return self._digests[0][1] if len(self._digests) == 1 else None

    @property
    def _master_key(self) -> bytes | None:
        return None if self._password is None else master_key(self._password)


def _joined(spans: list[tuple[int, int, str]]) -> list[tuple[int, int, str]]:
    """Those that follow each other for the same reason become one."""
    joined: list[tuple[int, int, str]] = []
    for first, last, why in spans:
        if joined and joined[-1][1] + 1 == first and joined[-1][2] == why:
            joined[-1] = (joined[-1][0], last, why)
        else:
            joined.append((first, last, why))
    return joined
