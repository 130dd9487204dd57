"""Ledgers. Compared are the metadata (format, state, quorums, last entry, length, digest, password, creation time,
token, ensembles, custom metadata), the LAC and the length that a client sees without recovery, and of each entry id,
size, cumulative length, digest and payload; of open ledgers all entries that there are, behind gaps too. Of deleted
ledgers that are in no metadata: entries, digest type, master key. Of ledgers that were closed by recovery after the
disks had been taken: the end within its bounds, which for one bookie is one place, and the length there. Of what
writers had been told: that it is in the ledger, and its payload."""

from __future__ import annotations

import base64
from collections.abc import Iterator
from typing import Any

from bookstand.disk.disks import DiskLedger, Disks
from bookstand.errors import NoSuchLedgerError
from bookstand.storage.format.digest import master_key
from bookstand.storage.format.ledger_metadata import LedgerMetadata
from tests.replay.disk_compare import EntryOf, base64_of, differs, entries, fields, judged
from tests.replay.disk_ends import AFTER_RESTART, CLOSED, bounds
from tests.replay.disk_recordings import Recording
from tests.replay.outcome import Outcome

DIGESTS = {"MAC": "hmac", "CRC32": "crc32", "CRC32C": "crc32c", "DUMMY": "dummy"}
OF_THE_END = ("state", "last_entry", "length", "ctoken")
"""What changes when recovery closes a ledger; the client that does forgets the token of the one that made it."""

Line = dict[str, Any]


def replay(recording: Recording, disks: Disks) -> Iterator[Outcome]:
    name = recording.name
    for line in recording.truth("ledgers"):
        if not recording.is_of_restart(line["ledger_id"]):
            yield judged(f"{name}/ledgers/{line['ledger_id']}", _ledger, disks, line)
    for group in recording.truth("deleted"):
        for line in group["ledgers"]:
            yield judged(f"{name}/deleted/{line['ledger_id']}", _deleted, disks, line)
    known = {} if disks.dump is None else disks.dump.ledgers
    for stem in AFTER_RESTART:
        for line in recording.truth(stem):
            ledger_id = line["ledger_id"]
            if ledger_id in recording.dumped_ledgers and (ledger_id not in known or known[ledger_id].state != CLOSED):
                yield judged(f"{name}/{stem}/{ledger_id}", _after_restart, disks, line)


# -- in the metadata -------------------------------------------------------------------------------------------------


def _ledger(disks: Disks, line: Line) -> Iterator[str]:
    ledger, truth = disks.ledger(line["ledger_id"]), line["metadata"]
    metadata = ledger.metadata
    if metadata is None:
        yield "there is no metadata"
        return
    closed_later = metadata.state != CLOSED == truth["state"]
    yield from metadata_differences(truth, metadata, OF_THE_END if closed_later else ())
    if ledger.digest_name != DIGESTS[truth["digest"]]:
        yield differs("digest", truth["digest"], ledger.digest_name)
    if ledger.master_key != master_key(base64.b64decode(truth["password"])):
        yield "the master key is not that of the password"
    if closed_later:
        yield from _end(disks, ledger, truth["last_entry"], truth["length"])
        found = ledger.entries(0, truth["last_entry"])
    else:
        extent = ledger.extent
        ours = {"state": extent.state, "lac": extent.lac, "length": extent.length if metadata.state == CLOSED else 0}
        yield from fields({"state": truth["state"], "lac": line["lac"], "length": line["length"]}, ours)
        found = ledger.entries(beyond=metadata.state != CLOSED)
    yield from _entries(ledger, line, found)


def metadata_differences(truth: Line, ours: LedgerMetadata, left_out: tuple[str, ...] = ()) -> Iterator[str]:
    said = {
        "format_version": ours.format_version,
        "state": ours.state,
        "ensemble_size": ours.ensemble_size,
        "write_quorum": ours.write_quorum_size,
        "ack_quorum": ours.ack_quorum_size,
        "last_entry": ours.last_entry_id,
        "length": ours.length,
        "digest": next((name for name, digest in DIGESTS.items() if digest == ours.digest_type), None),
        "has_password": ours.has_password,
        "password": base64_of(ours.password),
        "ctime": ours.ctime,
        "ctoken": ours.ctoken,
        "ensembles": [{"first_entry": first, "bookies": list(bookies)} for first, bookies in ours.ensembles],
        "custom_metadata": {name: base64_of(value) for name, value in ours.custom_metadata.items()},
    }
    for name in left_out:
        said[name] = truth[name]
    yield from (f"metadata, {what}" for what in fields(truth, said))


def _entries(ledger: DiskLedger, line: Line, found: Iterator[Any], more_behind: int | None = None) -> Iterator[str]:
    unchecked = []

    def ours() -> Iterator[EntryOf]:
        for entry in found:
            if not entry.checked:
                unchecked.append(entry.entry_id)
            yield EntryOf(entry.entry_id, entry.cumulative_length, entry.payload)

    yield from entries(line["entries"], ours(), more_behind=more_behind)
    can_be_checked = line["metadata"]["digest"] in ("CRC32", "CRC32C") or (
        line["metadata"]["digest"] == "MAC" and ledger.metadata is not None
    )
    if unchecked and can_be_checked:
        yield f"the digests of entries {unchecked[:8]} were not checked"


def _end(disks: Disks, ledger: DiskLedger, last_entry: int, length: int) -> Iterator[str]:
    """Whether recovery may have closed the ledger there, and we keep all that it may."""
    metadata, extent = ledger.metadata, ledger.extent
    assert metadata is not None
    lowest, highest = bounds(disks, ledger.id, metadata.ack_quorum_size)
    if not lowest <= last_entry <= highest:
        yield f"recovery closed it at {last_entry}, which is not from {lowest} to {highest}"
    if extent.last_entry != highest or extent.gapless != highest:
        yield differs("end of the gapless run", highest, (extent.last_entry, extent.gapless))
    if len(disks.bookies) > 1 and extent.enough != lowest:
        yield differs("end of the run with enough copies", lowest, extent.enough)
    if last_entry >= 0:
        lengths = [entry.cumulative_length for entry in ledger.entries(last_entry, last_entry)]
        if lengths != [length]:
            yield differs(f"length at entry {last_entry}", length, lengths)
    if last_entry == extent.last_entry and extent.length != length:
        yield differs("length", length, extent.length)


# -- elsewhere -------------------------------------------------------------------------------------------------------


def _deleted(disks: Disks, line: Line) -> Iterator[str]:
    truth = line["metadata"]
    try:
        ledger = disks.ledger(line["ledger_id"])
    except NoSuchLedgerError:
        if line["entries"] or line.get("still_in_metadata"):
            raise
        return  # an empty one leaves nothing
    # It was read while the others were still written.
    closed = truth["state"] == CLOSED
    if ledger.metadata is not None:
        yield from metadata_differences(truth, ledger.metadata, () if closed else OF_THE_END)
        found = ledger.entries(beyond=not closed)
    elif line.get("still_in_metadata"):
        yield "there is no metadata"
        return
    else:
        found = ledger.entries(beyond=True)
        if line["entries"] and ledger.digest_name != DIGESTS[truth["digest"]]:
            yield differs("digest", truth["digest"], ledger.digest_name)
        # The key lies in the journal, shortly before the first entry.
        kinds = {disks.catalog.files[file].kind for file in disks.catalog.copies(ledger.id, 0, 0).files.tolist()}
        if "journal" in kinds and ledger.master_key != master_key(base64.b64decode(truth["password"])):
            yield "the master key is not that of the password"
    last = truth["last_entry"] if closed else max((entry["entry"] for entry in line["entries"]), default=-1)
    yield from _entries(ledger, line, found, more_behind=last)


def _after_restart(disks: Disks, line: Line) -> Iterator[str]:
    ledger = disks.ledger(line["ledger_id"])
    if line["state"] == CLOSED:
        yield from _end(disks, ledger, line["last_entry"], line["length"])
    elif line["state"] != ledger.extent.state:
        yield differs("state", line["state"], ledger.extent.state)


# -- acknowledged to writers -----------------------------------------------------------------------------------------


def replay_acked(recording: Recording, disks: Disks) -> Iterator[Outcome]:
    """Records of raw ledgers: what was acknowledged is in its ledger."""
    by_ledger: dict[int, list[int]] = {}
    for line in recording.truth("acked"):
        if "ledger" in line:
            by_ledger.setdefault(line["ledger"], []).append(line["entry"])
    for ledger_id, wanted in by_ledger.items():
        try:
            there = {entry.entry_id: entry.checked for entry in disks.ledger(ledger_id).entries()}
        except NoSuchLedgerError:
            there = {}
        for entry_id in wanted:
            yield judged(f"{recording.name}/acked/{ledger_id}:{entry_id}", _is_right, there.get(entry_id))


def _is_right(checked: bool | None) -> Iterator[str]:
    if not checked:
        yield "it is not there" if checked is None else "its digest is not known to be right"
